"""`system_as_tla(system, names)`: the composed system as the state of LoraProtocol.tla.  The whole map is in this file.

The registry's part is `as_tla`.  Fields that the specification leaves out besides, and why no guard can tell:

* `Agent.engine`, `epoch`, `base_fingerprint`, `slots`: never change.
* `Work.lora_name`, `Work.digest`, `Work.plan`, `Adapter.resident`, `Loaded.lora_name`, every `lora_name`, `digest` and
  `plan` of an order: a version has one content here, and a box one plan; its key says all of it.
* `Work.detail`, reasons, evidence: words.
* `DropStash` is on no list of things to do: nothing waits for it.
* a token is `tN`, and one `u` more for each takeover; the specification writes the number and the count.
* `Guard.lease_until`, `margin`, `revoked`: time stands still, and no box revokes.
* `System.wrong`: what must never be done; the specification says it in its properties.

That none of these matters is not taken on trust: every system, not every image, is asked for its steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from lorafsm import events as ev
from lorafsm import orders
from lorafsm.dispatch.records import Guard, GuardedSession
from lorafsm.engine import actions as act
from lorafsm.engine.actions import Action
from lorafsm.identity import VersionKey, parse_lora_name
from lorafsm.reclaimer import reclaim_id_of
from lorafsm.system.records import Driver, Loaded, Message, Process, Request, System
from lorafsm.system.world import OWNER, World
from lorafsm_tla.as_tla import Names, as_tla
from lorafsm_tla.values import Plain, plain_set, text_of

NO_CONTENT = 0


@frozen
class SystemNames:
    """What the constants of a model stand for."""

    world: World
    numbers: int
    takeovers: int = 2
    registry: Names = field(init=False)
    tokens: Mapping[str, Plain] = field(init=False)
    """The specification's token for each of ours."""

    @registry.default
    def _registry(self) -> Names:
        box = self.world.box
        versions = tuple(range(1, box.versions + 1))
        return Names(
            versions=versions,
            engines=self.world.ids,
            owners=(OWNER,),
            sequences=tuple(range(box.sessions)),
            tokens=tuple(self._tokens()),
            reclaim_ids=tuple(reclaim_id_of(self.world.key(v)) for v in versions),
            digests={self.world.digest(self.world.key(v)): short for v, short in zip(versions, "abc", strict=False)},
        )

    @tokens.default
    def _tokens(self) -> Mapping[str, Plain]:
        return {
            f"t{n}{'u' * times}": _tuple(n, times)
            for n in range(1, self.numbers + 1)
            for times in range(self.takeovers + 1)
        }

    def reclaim_id(self, ours: str) -> str:
        """The specification's id of a reclaim."""
        return f"c{self.registry.reclaim_ids.index(ours) + 1}" if ours else ""


def system_as_tla(state: System, names: SystemNames) -> dict[str, Plain]:
    """The values of the specification's variables."""
    processes = (cell.value for cell in state.engines)
    return {
        **_registry(state, names),
        "agents": {p.agent.engine: _process(p) for p in processes},
        "driver": _driver(state.driver.value, names),
        "guard": _guard(state.owner.value),
        "network": plain_set([_message(cell.value) for cell in state.network]),
        "left": dict(zip(names.world.kinds, state.left, strict=True)),
    }


def _registry(state: System, names: SystemNames) -> dict[str, Plain]:
    """The registry's own map, with the names of ids that this specification uses."""
    r = state.registry.value
    values = as_tla(r, names.registry)
    values["tokens"] = {text_of(names.tokens[token]): number for token, number in values["tokens"].items()}
    for attempt in values["attempts"].values():
        attempt["token"] = names.tokens[attempt["token"]]
    values["versions"] = {
        v: {**version, "reclaim_id": names.reclaim_id(version["reclaim_id"])}
        for v, version in values["versions"].items()
    }
    values["reclaims"] = {names.reclaim_id(ours): reclaim for ours, reclaim in values["reclaims"].items()}
    done = (operation for kind, operation in r.receipts if kind == "rollback")
    values["rollbacks"] = plain_set([_tuple(*map(int, op.removeprefix("op").split("-"))) for op in done])
    return values


def _process(p: Process) -> dict[str, Plain]:
    a = p.agent
    return {
        "incarnation": a.incarnation,
        "seq": a.seq,
        "fence": a.fence,
        "tombstones": plain_set(list(a.tombstones)),
        "works": {
            str(n): {
                "key": w.key.version_id,
                "repair": w.plan is None,
                "state": str(w.state),
                "received": w.received,
                "doomed": w.doomed,
            }
            for n, w in a.works.items()
        },
        "adapters": {
            _version_of(x.lora_name): {"number": x.number, "state": str(x.state), "refs": x.refs}
            for x in a.adapters.values()
        },
        "closed": plain_set([key.version_id for key in _closed(a.closed)]),
        "strays": plain_set([_tuple(int(_version_of(s.lora_name)), s.number) for s in a.strays.values()]),
        "requests": {_rid_key(rid): int(_version_of(name)) for rid, name in a.requests.items()},
        "sealed": {_rid_key(rid): key.version_id for rid, key in a.sealed.items()},
        "todo": plain_set([_action(action) for action in p.todo]),
        "loaded": {_version_of(x.lora_name): {"number": x.number, "content": _content(x)} for x in p.loaded},
        "served": {_rid_key(s.rid): s.key.version_id for s in p.served},
        "begun": plain_set([_tuple(*entry) for entry in p.history]),
    }


def _closed(closed: Mapping[VersionKey, str]) -> list[VersionKey]:
    assert all(reclaim_id == reclaim_id_of(key) for key, reclaim_id in closed.items()), closed
    return list(closed)


def _version_of(name: str) -> str:
    """The version's number, as a key."""
    return str(parse_lora_name(name).key.version_id)


def _content(x: Loaded) -> int:
    version = int(_version_of(x.lora_name))
    return version if x.digest == f"{version + 9:x}" * 64 else NO_CONTENT


def _action(action: Action) -> Plain:
    words: tuple[Plain, ...]
    match action:
        case act.PostReceive(number=number, bucket=bucket):
            words = (number, bucket)
        case act.AbortCommunicator(number=number) | act.StartLoad(number=number) | act.Probe(number=number):
            words = (number,)
        case act.Unregister(lora_name=name) | act.CountRequests(lora_name=name):
            words = (int(_version_of(name)),)
        case act.PhysicalUnload(lora_name=name, number=number):
            words = (int(_version_of(name)), number)
        case act.TakeListing():
            words = ()
        case _:
            raise TypeError(f"{type(action).__name__} is never waited for")
    return _tuple(type(action).__name__, *words)


def _driver(d: Driver, names: SystemNames) -> dict[str, Plain]:
    return {
        "token": names.tokens[d.token] if d.token else _tuple(0, 0),
        "armed": plain_set(list(d.armed)),
        "permitted": d.permitted,
        "sent": plain_set([_tuple(*sent) for sent in d.sent]),
    }


def _guard(g: Guard) -> dict[str, Plain]:
    return {
        "lost": g.lost,
        "next": g.next_sequence,
        "sessions": {str(sequence): _guarded(known) for sequence, known in g.sessions.items()},
    }


def _guarded(known: GuardedSession) -> dict[str, Plain]:
    return {
        "binding": 0 if known.binding is None else known.binding.key.version_id,
        "finalizing": known.finalizing,
        "sent": known.attempts,
        "rid": {} if known.attempt is None else _rid(known.attempt.rid),
        "admission": "NONE" if known.attempt is None else str(known.attempt.admission),
    }


_OF_A_RECLAIM = (orders.Unload, ev.ConfirmReclaim, ev.ReclaimUnknown)


def _message(m: Message) -> dict[str, Plain]:
    """A message: its class's name, its addressee or sender, and what it is about."""
    said: dict[str, Plain] = {"type": type(m).__name__, "engine": getattr(m, "engine")}  # noqa: B009
    if isinstance(m, Request):
        return {**said, "rid": _rid(m.rid), "key": m.key.version_id}
    said["incarnation"] = getattr(m, "incarnation")  # noqa: B009
    for name in ("seq", "number", "bucket"):
        if hasattr(m, name):
            said[name] = getattr(m, name)
    key: Any = getattr(m, "key", None)
    if isinstance(m, _OF_A_RECLAIM):
        said["key"] = int(m.reclaim_id.rsplit("-", 1)[1])
        assert key is None or key.version_id == said["key"], m
    elif isinstance(m, orders.UnloadStray):
        said["key"] = int(_version_of(m.lora_name))
    elif isinstance(m, ev.EngineUp):
        assert not m.foreign, m
        said["residents"] = plain_set([_tuple(x.key.version_id, x.number) for x in m.residents])
    elif key is not None:
        said["key"] = key.version_id
    return said


def _rid(rid: str) -> Plain:
    sequence, sent, engine = rid.split("-")
    return _tuple(int(sequence), int(sent), engine)


def _rid_key(rid: str) -> str:
    return text_of(_rid(rid))


def _tuple(*words: Plain) -> dict[str, Plain]:
    return {str(place): word for place, word in enumerate(words, 1)}
