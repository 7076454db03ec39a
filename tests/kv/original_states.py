"""Recurrent states: the real UnifiedRadixCache of SGLang 0.5.23 with its Mamba component, and ours, on one trace.

Importable only in a process that has the CPU stand-ins on its path: see `tests.kv.compare`.
"""

from __future__ import annotations

import logging

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context

from lorafsm.kv import CacheConfig, Inserted, SessionCache
from lorafsm.kv.coverage import NAMES
from lorafsm.kv.node import FULL, MAMBA
from lorafsm.kv.replay import Request
from tests.kv.original import allocator_of, array
from tests.kv.original_window import Served, Watched, named


class OurStates:
    """Two pools, of `full` slots and of `states`; each request keeps the state at its end."""

    def __init__(self, full: int, states: int) -> None:
        self.cache = SessionCache(CacheConfig(states=True, sessions=False, split_touches_suffix=True))
        self.sizes = {FULL: full, MAMBA: states}
        self.place = {kind: place for place, kind in enumerate(part.kind for part in self.cache.components)}

    def _free(self, kind: int) -> int:
        return self.sizes[kind] - self.cache.tree.used[self.place[kind]]

    def serve(self, request: Request) -> Served:
        cache, tokens = self.cache, request.prompt + request.output
        match = cache.match(request.prompt)
        lock = cache.lock(match.node)
        wanted = {FULL: len(tokens) - match.length, MAMBA: 1}
        victims = []
        for kind, slots in wanted.items():
            if slots > self._free(kind):
                victims += cache.evict(slots - self._free(kind), self.place[kind]).victims
        if any(slots > self._free(kind) for kind, slots in wanted.items()):
            cache.unlock(lock)
            return None, named(victims)
        stored = cache.insert(tokens, state=True)
        cache.unlock(lock)
        assert isinstance(stored, Inserted)
        return match.length, named(victims)


class TheirStates(Watched):
    """The same, driven as the scheduler does: the state at a request's end goes into the tree with its KV."""

    def __init__(self, full: int, states: int) -> None:
        logging.disable(logging.WARNING)
        get_context().override_server_args(_mamba_cache_chunk_size=1).install()
        shape = Mamba2StateShape.create(
            tp_world_size=1, intermediate_size=8, n_groups=1, num_heads=1, head_dim=8, state_size=4, conv_kernel=2
        )
        self.requests = HybridReqToTokenPool(
            size=8,
            mamba_size=states,
            mamba_spec_state_size=0,
            max_context_len=8,
            device="cpu",
            enable_memory_saver=False,
            cache_params=Mamba2CacheParams(shape=shape, layers=[0]),
            mamba_layer_ids=[0],
            enable_mamba_extra_buffer=False,
        )
        self.states = self.requests.mamba_allocator
        self.allocator = allocator_of(full)
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.requests,
                token_to_kv_pool_allocator=self.allocator,
                page_size=1,
                tree_components=(ComponentType.FULL, ComponentType.MAMBA),
                tree_core_backend="python",
            )
        )
        self.watch(ComponentType.MAMBA, NAMES[MAMBA])

    def serve(self, request: Request) -> Served:
        tokens = request.prompt + request.output
        match = self.match(request.prompt)
        lock = self.cache.inc_lock_ref(match.last_device_node)
        self.named.clear()
        matched, lacking = match.device_prefix_len, len(tokens) - match.device_prefix_len
        if lacking > self.allocator.available_size():
            self.cache.evict(EvictParams(num_tokens=lacking - self.allocator.available_size()))
        if not self.states.available_size():
            self.cache.evict(EvictParams(num_tokens=0, mamba_num=1))
        slots = self.allocator.alloc(lacking)
        state = self.states.alloc(1) if slots is not None else None
        if slots is None or state is None:
            self.cache.dec_lock_ref(match.last_device_node, lock.to_dec_params())
            return None, tuple(self.named)
        held = self.cache.tree_core.collect_full_device_indices(
            match.last_device_node, self.cache.tree_core.root_node_handle()
        )
        params = InsertParams(
            key=RadixKey(array("q", tokens)),
            value=torch.cat([held, slots]),
            mamba_value=state,
            prev_prefix_len=matched,
        )
        if self.cache.insert(params).mamba_exist:
            self.states.free(state)
        self.cache.dec_lock_ref(match.last_device_node, lock.to_dec_params())
        return matched, tuple(self.named)
