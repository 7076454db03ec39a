"""One concept of session and version for the binding and for the cache: what a registry's step means to a cache.

Give it every step, in order, with the registry before it. A session enters the cache when it binds (its version is
then known), and leaves both when it is closed or its owner ends; a version is told of as its state or its number of
session refs changes. Costs what changed: the event's session, and the few versions that hold a slot.
"""

from __future__ import annotations

from lorafsm.events import BindFirst, CloseAndRelease, Event, OwnerExpired, OwnerGone
from lorafsm.kv.cache import SessionCache
from lorafsm.outcomes import Binding
from lorafsm.records import Registry
from lorafsm.registry.answer import Step


def follow(cache: SessionCache, before: Registry, event: Event, step: Step) -> None:
    """Apply one step to the cache."""
    if not step.outcome.ok:
        return
    after = step.registry
    if isinstance(event, BindFirst) and isinstance(step.outcome, Binding):
        cache.open(event.session, step.outcome.key, event.now)
    elif isinstance(event, CloseAndRelease):
        cache.close(event.session)
    elif isinstance(event, (OwnerExpired, OwnerGone)):
        cache.end_owner(after.epoch, event.owner)
    if after.versions is before.versions:
        return
    for key in dict.fromkeys((*before.slots, *after.slots)):
        old, new = before.versions.get(key), after.versions[key]
        if old is None or (old.state, old.session_refs) != (new.state, new.session_refs):
            cache.set_version(key, new.state, new.session_refs)
