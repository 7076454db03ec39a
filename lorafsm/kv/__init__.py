"""Which KV a prefix cache keeps: aware of sessions and of LoRA versions, pure, and without memory of its own."""

from lorafsm.kv.cache import SessionCache
from lorafsm.kv.eviction import Evicted, HostTier, HostWrite, Victim
from lorafsm.kv.node import FULL, Node
from lorafsm.kv.order import Class, Policy
from lorafsm.kv.records import CacheConfig, Held, Inserted, Lock, Released
from lorafsm.kv.tree import Match

__all__ = [
    "FULL",
    "CacheConfig",
    "Class",
    "Evicted",
    "Held",
    "HostTier",
    "HostWrite",
    "Inserted",
    "Lock",
    "Match",
    "Node",
    "Policy",
    "Released",
    "SessionCache",
    "Victim",
]
