"""`as_tla(registry, names)`: the core's registry as the state of LoraRegistry.tla.  The whole map is in this file.

Fields of the core that the specification leaves out, and why no guard can tell:

* `Version.since`, `Session.since`, `Engine.since`, `Reclaim.since`, `tensors`, `nbytes`, `label`: shown to people.
* `failure`, `reason`, `detail`, `evidence`: words.
* `Version.lora_name`: a function of key and digest.
* `Registry.slots`: the versions whose state holds a slot, in the order of their reserve; only its length is read.
* `Registry.highest`: the highest of the versions that there are.
* `Registry.unresolved`: the attempt that is OPEN or ABORTED.
* `Owner.held` and `Session.position`: the live bindings, once more, in the order in which they were made; only
  their number is read (I4 says that it is `session_refs`), the order is shown to people.
* `Owner.next_sequence` and `Owner.gaps`: which sequences are closed, written as ranges.
* the sessions of an owner that is not LIVE: they read EXPIRED or CLOSED.
* `Attempt.plan.digest`, and `plan.buckets`, which is a constant of a box.
* the contents of receipts: they are answered and never asked; that one is there shows in `tokens`, `attempts`,
  `rollbacks` and `reclaims`.
* `Inventory.foreign`: becomes strays of number 0 at once.

That none of these matters is not taken on trust: the graph comparison asks every state of the core, not every
image, for the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from lorafsm.identity import DIGEST_PREFIX_LENGTH, SessionKey, VersionKey, parse_lora_name
from lorafsm.records import Attempt, Engine, Reclaim, Registry, Repair, Resident, Stray, Version
from lorafsm.registry.view import session_state
from lorafsm_tla.values import Plain, State, plain_set, state_of


@frozen(kw_only=True)
class Names:
    """What the constants of a model stand for: ids are the same on both sides, digests have short names."""

    versions: tuple[int, ...]
    engines: tuple[str, ...]
    owners: tuple[str, ...]
    sequences: tuple[int, ...]
    tokens: tuple[str, ...]
    reclaim_ids: tuple[str, ...]
    digests: Mapping[str, str]  # the short name of each digest

    def digest(self, digest: str) -> str:
        """The short name of a digest."""
        return self.digests[digest]

    def digest_of_prefix(self, prefix: str) -> str:
        """The short name of the digest that starts like this."""
        [name] = [short for full, short in self.digests.items() if full[:DIGEST_PREFIX_LENGTH] == prefix]
        return name


def as_tla(r: Registry, names: Names) -> dict[str, Plain]:
    """The values of the specification's variables."""
    return {
        "now": r.now,
        "versions": {str(v): _version(r, v, names) for v in names.versions},
        "default": 0 if r.default is None else r.default.version_id,
        "default_revision": r.default_revision,
        "owners": {o: _owner(r, o, names) for o in names.owners},
        "engines": {e: _engine(r.engines.get(e), names) for e in names.engines},
        "attempts": {str(n): _attempt(a) for n, a in r.attempts.items()},
        "reclaims": {c: _reclaim(r.reclaims.get(c)) for c in names.reclaim_ids},
        "repairs": {str(n): _repair(p) for n, p in r.repairs.items()},
        "tokens": {t: r.tokens.get(t, 0) for t in names.tokens},
        "rollbacks": plain_set([operation for kind, operation in r.receipts if kind == "rollback"]),
        "next_number": r.next_number,
    }


def tla_state(r: Registry, names: Names) -> State:
    """The same, as one hashable state."""
    return state_of(as_tla(r, names))


_UNKNOWN_VERSION: Mapping[str, Plain] = {
    "state": "NONE",
    "digest": "",
    "number": 0,
    "session_refs": 0,
    "published_revision": 0,
    "reclaim_id": "",
    "artifact": False,
    "revoked": False,
}


def _version(r: Registry, version_id: int, names: Names) -> Mapping[str, Plain]:
    v = r.versions.get(VersionKey(r.epoch, version_id))
    return _UNKNOWN_VERSION if v is None else _known_version(v, names)


def _known_version(v: Version, names: Names) -> dict[str, Plain]:
    return {
        "state": str(v.state),
        "digest": names.digest(v.digest),
        "number": v.number,
        "session_refs": v.session_refs,
        "published_revision": v.published_revision,
        "reclaim_id": v.reclaim_id,
        "artifact": v.artifact,
        "revoked": v.revoked,
    }


def _owner(r: Registry, name: str, names: Names) -> dict[str, Plain]:
    owner = r.owners.get(name)
    return {
        "state": "NONE" if owner is None else str(owner.state),
        "lease_until": 0 if owner is None else owner.lease_until,
        "sessions": {str(s): _session(r, name, s) for s in names.sequences},
    }


def _session(r: Registry, owner: str, sequence: int) -> dict[str, Plain]:
    state = session_state(r, SessionKey(r.epoch, owner, sequence))
    known = r.owners[owner].sessions.get(sequence) if state in ("OPEN", "BOUND", "FINALIZING") else None
    binding = known.binding if known is not None else None
    return {"state": "NONE" if state is None else str(state), "binding": 0 if binding is None else binding.version_id}


def _engine(e: Engine | None, names: Names) -> dict[str, Plain]:
    if e is None:
        e = Engine("none", 0, "NONE", 0)  # type: ignore[arg-type]
    proved = {
        key.version_id: {"digest": names.digest(resident.digest), "number": resident.number}
        for key, resident in e.residents.items()
    }
    repairs = {key.version_id: number for key, number in e.repairs.items()}
    return {
        "state": str(e.state),
        "incarnation": e.incarnation,
        "seq": e.seq,
        "inventory": {"seq": e.inventory.seq, "residents": _residents(e.inventory.residents, names)},
        "residents": {str(v): proved.get(v, {"digest": "", "number": 0}) for v in names.versions},
        "strays": plain_set([_stray(s, names) for s in e.strays]),
        "repairs": {str(v): repairs.get(v, 0) for v in names.versions},
        "repair_failures": e.repair_failures,
        "retry_at": e.retry_at,
    }


def _residents(residents: Iterable[Resident], names: Names) -> list[Plain]:
    return plain_set(
        [{"version": r.key.version_id, "digest": names.digest(r.digest), "number": r.number} for r in residents]
    )


def _stray(s: Stray, names: Names) -> dict[str, Plain]:
    parsed = parse_lora_name(s.lora_name)
    return {
        "version": parsed.key.version_id,
        "digest": names.digest_of_prefix(parsed.digest_prefix),
        "number": s.number,
    }


def _attempt(a: Attempt) -> dict[str, Plain]:
    return {
        "key": a.key.version_id,
        "token": a.token,
        "state": str(a.state),
        "revision": a.revision,
        "driver_until": a.driver_until,
        "targets": {
            t.engine: {
                "incarnation": t.incarnation,
                "state": str(t.state),
                "buckets_done": t.buckets_done,
                "seq": t.seq,
            }
            for t in a.targets.values()
        },
        "authorized": a.authorized,
        "taken_over": a.taken_over,
    }


def _reclaim(c: Reclaim | None) -> dict[str, Any]:
    if c is None:
        return {"state": "NONE", "key": 0, "unloads": {}}
    return {
        "state": str(c.state),
        "key": c.key.version_id,
        "unloads": {u.engine: {"incarnation": u.incarnation, "state": str(u.state)} for u in c.unloads.values()},
    }


def _repair(p: Repair) -> dict[str, Plain]:
    return {"key": p.key.version_id, "engine": p.engine, "incarnation": p.incarnation, "state": str(p.state)}
