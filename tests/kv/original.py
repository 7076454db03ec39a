"""The real UnifiedRadixCache of SGLang 0.5.23 on a CPU, driven like ours.

Importable only in a process that has the CPU stand-ins on its path: see `tests.kv.compare`.
"""

from __future__ import annotations

import logging
from array import array
from types import SimpleNamespace

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from lorafsm.identity import SessionKey
from lorafsm.kv.replay import Request, Served

FULL = ComponentType.FULL


def allocator_of(slots: int) -> TokenToKVPoolAllocator:
    """Of a pool with one head, one layer and one slot a block, on the CPU."""
    pool = MHATokenToKVPool(
        size=slots,
        page_size=1,
        dtype=torch.float32,
        head_num=1,
        head_dim=1,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    return TokenToKVPoolAllocator(slots, dtype=torch.float32, device="cpu", kvcache=pool, need_sort=False)


class Original:
    """One head, one layer, one slot a block."""

    def __init__(
        self, blocks: int, *, sessions: bool, policy: str = "lru", backend: str = "python", watched: bool = True
    ) -> None:
        logging.disable(logging.WARNING)
        self.allocator = allocator_of(blocks)
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=ReqToTokenPool(1, 8, device="cpu", enable_memory_saver=False),
                token_to_kv_pool_allocator=self.allocator,
                page_size=1,
                eviction_policy=policy,
                enable_session_radix_cache=sessions,
                tree_components=(FULL,),
                tree_core_backend=backend,
            )
        )
        self.victims: list[int] = []
        if watched:
            self._watch()

    def _watch(self) -> None:
        """Note the last block of every leaf that goes."""
        core = self.cache.tree_core
        real = core.evict_device_leaf

        def noted(node_id, is_write_back):
            node = core.node_by_id(node_id)
            self.victims.append(node.key.token_ids[len(node.key) - 1])
            return real(node_id, is_write_back)

        core.evict_device_leaf = noted

    def tick(self, now: int) -> None:
        """It knows no time."""

    def open(self, session: str) -> int:
        return self.cache.session_refs.ensure_session_generation(session)

    def close(self, session: SessionKey) -> None:
        self.cache.release_radix_session(str(session))

    def match(self, tokens):
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))

    def insert(self, tokens, slots, matched: int = 0):
        key = RadixKey(array("q", tokens))
        return self.cache.insert(InsertParams(key=key, value=slots, prev_prefix_len=matched))

    @staticmethod
    def request(session: str, generation: int):
        """As much of a request as registering looks at."""
        return SimpleNamespace(session_id=session, session=None, session_generation=generation)

    def register(self, session: str, generation: int, leaf) -> None:
        self.cache.session_refs.register_session_ref(self.request(session, generation), leaf)

    @staticmethod
    def padded(slots, matched: int):
        """Slots of a whole request of which the first `matched` are in the tree already and not looked at."""
        return torch.cat([torch.zeros(matched, dtype=slots.dtype), slots])

    def serve(self, request: Request) -> Served:
        session = None if request.session is None else str(request.session)
        generation = None if session is None else self.open(session)
        tokens = request.prompt + request.output
        match = self.match(request.prompt)
        lock = self.cache.inc_lock_ref(match.last_device_node)
        self.victims = []
        lacking = len(tokens) - match.device_prefix_len
        short = lacking - self.allocator.available_size()
        if short > 0:
            self.cache.evict(EvictParams(num_tokens=short))
        slots = self.allocator.alloc(lacking)
        if slots is None:
            self.cache.dec_lock_ref(match.last_device_node, lock.to_dec_params())
            return Served(None, tuple(self.victims))
        held = self.cache.tree_core.collect_full_device_indices(
            match.last_device_node, self.cache.tree_core.root_node_handle()
        )
        inserted = self.insert(tokens, torch.cat([held, slots]), match.device_prefix_len)
        self.cache.dec_lock_ref(match.last_device_node, lock.to_dec_params())
        if session is not None:
            self.register(session, generation, inserted.last_device_node)
        return Served(match.device_prefix_len, tuple(self.victims))
