"""Window KV: the real UnifiedRadixCache of SGLang 0.5.23 with its sliding-window component, and ours, on one trace.

Importable only in a process that has the CPU stand-ins on its path: see `tests.kv.compare`.
"""

from __future__ import annotations

import logging

import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from lorafsm.kv import CacheConfig, Inserted, SessionCache
from lorafsm.kv.node import FULL, SWA
from lorafsm.kv.replay import Request
from tests.kv.original import Original, array

Served = tuple[int | None, tuple[tuple[str, int], ...]]
"""Tokens of the prompt that were there (None: it did not fit), and (component, last token) of each victim."""


class OurWindow:
    """Two pools, of `full` and `swa` slots; a request needs both for what it computes, and keeps its last window."""

    def __init__(self, full: int, swa: int, window: int) -> None:
        self.cache = SessionCache(CacheConfig(window=window, sessions=False, split_touches_suffix=True))
        self.sizes, self.window = (full, swa), window

    def serve(self, request: Request) -> Served:
        cache, tokens = self.cache, request.prompt + request.output
        match = cache.match(request.prompt)
        lock = cache.lock(match.node)
        lacking = len(tokens) - match.length
        victims = []
        for component in (FULL, SWA):
            short = lacking - (self.sizes[component] - cache.tree.used[component])
            if short > 0:
                victims += cache.evict(short, component).victims
        if any(lacking > self.sizes[c] - cache.tree.used[c] for c in (FULL, SWA)):
            cache.unlock(lock)
            return None, named(victims)
        stored = cache.insert(tokens, window_from=max(match.length, len(tokens) - self.window))
        cache.unlock(lock)
        assert isinstance(stored, Inserted)
        return match.length, named(victims)


def named(victims) -> tuple[tuple[str, int], ...]:
    return tuple((victim.component, victim.last) for victim in victims)


class Watched(Original):
    """The original with two components, whose victims are noted."""

    def watch(self, component: ComponentType, name: str) -> None:
        """Note the last token of every leaf that goes, and of every node that loses its share of `component` alone."""
        self.named: list[tuple[str, int]] = []
        core = self.cache.tree_core
        leaf, detach = core.evict_device_leaf, core._evict_component_and_detach_lru
        other = self.cache.components[component]
        start, end = other._evict_device_start, other._evict_device_end
        trigger = ["full"]

        def started(count):
            trigger[0] = name
            return start(count)

        def ended():
            trigger[0] = "full"
            return end()

        def leaf_goes(node_id, is_write_back):
            node = core.node_by_id(node_id)
            self.named.append((trigger[0], node.key.token_ids[len(node.key) - 1]))
            trigger.append("leaf")
            try:
                return leaf(node_id, is_write_back)
            finally:
                trigger.pop()

        def detached(node, component, *args, **kwargs):
            if trigger[-1] == name and component is other:
                self.named.append((name, node.key.token_ids[len(node.key) - 1]))
            return detach(node, component, *args, **kwargs)

        core.evict_device_leaf, core._evict_component_and_detach_lru = leaf_goes, detached
        other._evict_device_start, other._evict_device_end = started, ended


class TheirWindow(Watched):
    """The same, driven as the scheduler does: slots out of the window are freed before the insert."""

    def __init__(self, full: int, swa: int, window: int) -> None:
        logging.disable(logging.WARNING)
        pool = SWAKVPool(
            size=full,
            size_swa=swa,
            page_size=1,
            dtype=torch.float32,
            head_num=1,
            head_dim=1,
            swa_attention_layer_ids=[0],
            full_attention_layer_ids=[1],
            device="cpu",
        )
        self.window = window
        self.allocator = SWATokenToKVPoolAllocator(full, swa, 1, torch.float32, "cpu", pool, False)
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=ReqToTokenPool(1, 8, device="cpu", enable_memory_saver=False),
                token_to_kv_pool_allocator=self.allocator,
                page_size=1,
                sliding_window_size=window,
                tree_components=(ComponentType.FULL, ComponentType.SWA),
                tree_core_backend="python",
            )
        )
        self.watch(ComponentType.SWA, "swa")

    def serve(self, request: Request) -> Served:
        tokens = request.prompt + request.output
        match = self.match(request.prompt)
        lock = self.cache.inc_lock_ref(match.last_device_node)
        self.named.clear()
        matched, lacking = match.device_prefix_len, len(tokens) - match.device_prefix_len
        for name, free in (
            ("num_tokens", self.allocator.full_available_size),
            ("swa_num_tokens", self.allocator.swa_available_size),
        ):
            if lacking > free():
                self.cache.evict(EvictParams(**{name: lacking - free()}))
        slots = self.allocator.alloc(lacking)
        if slots is None:
            self.cache.dec_lock_ref(match.last_device_node, lock.to_dec_params())
            return None, tuple(self.named)
        window_from = max(matched, len(tokens) - self.window)
        self.allocator.free_swa(slots[: window_from - matched])
        held = self.cache.tree_core.collect_full_device_indices(
            match.last_device_node, self.cache.tree_core.root_node_handle()
        )
        params = InsertParams(key=RadixKey(array("q", tokens)), value=torch.cat([held, slots]), prev_prefix_len=matched)
        params.set_evicted_seqlen(ComponentType.SWA, window_from)
        self.cache.insert(params)
        self.cache.dec_lock_ref(match.last_device_node, lock.to_dec_params())
        return matched, tuple(self.named)
