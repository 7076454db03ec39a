"""`as_tla(agent, asked, names)`: an engine's agent as the state of EngineAgent.tla.  The whole map is in this file.

Fields of the agent that the specification leaves out, and why no guard can tell:

* `engine`, `incarnation`, `epoch`: never change; an order for anybody else is refused (`Address` and `Us`).
* `base_fingerprint`: repeated in answers.  `slots`: a constant of a box.
* `Work.lora_name`: a function of key and digest, as `agent_step` checks.
* `Work.plan.digest`: a plan that differs from the one begun gets a refusal, and else the answer of a repeat; neither
  changes anything.
* `Work.detail`, and the reasons in `AskQuarantine`, `Pending`, `Failed`...: words.
* `Adapter.resident`: key and digest, which its name shows, and the number.

Not compared is in which order one step asks for several things: those are for different numbers or adapters, or
free a stash, which nothing waits for.  Answers are compared where the registry builds on them: the status of a
number, and Cleaned, Unloaded and StrayGone as the answers to orders that are done.

That no dropped field matters is not taken on trust: every agent, not every image, is asked for its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import field, frozen

from lorafsm.engine import Agent, actions, answers
from lorafsm.engine.actions import Action
from lorafsm.engine.answers import Answer
from lorafsm.engine.orders import Input
from lorafsm.engine.records import Adapter, Work
from lorafsm.identity import VersionKey, lora_name
from lorafsm.orders import AskStatus
from lorafsm_tla.values import Plain, plain_set, text_of

NO_NAME: Mapping[str, Plain] = {"version": 0, "digest": ""}
NO_PLAN = -1


@frozen
class AgentNames:
    """What the constants of a model stand for: ids are the same on both sides, digests have short names."""

    epoch: str
    versions: tuple[int, ...]
    digests: Mapping[str, str]  # each digest by its short name
    strangers: tuple[str, ...]
    reclaim_ids: tuple[str, ...]
    operation_keys: tuple[str, ...]
    rids: tuple[str, ...]
    called: Mapping[str, Mapping[str, Plain]] = field(init=False)
    """The specification's name for each name that an adapter may have."""

    @called.default
    def _called(self) -> Mapping[str, Mapping[str, Plain]]:
        managed = {
            lora_name(self.key(version), digest): {"version": version, "digest": short}
            for version in self.versions
            for short, digest in self.digests.items()
        }
        return {**managed, **{name: {"version": 0, "digest": name} for name in self.strangers}}

    def key(self, version: int) -> VersionKey:
        """The key of a version."""
        return VersionKey(self.epoch, version)

    def digest(self, digest: str) -> str:
        """The short name of a digest."""
        [short] = [short for short, full in self.digests.items() if full == digest]
        return short


def agent_as_tla(a: Agent, names: AgentNames) -> dict[str, Plain]:
    """The values of the specification's variables, but for `asked`."""
    called = names.called
    strays = {key: {"name": called[s.lora_name], "number": s.number} for key, s in a.strays.items()}
    return {
        "seq": a.seq,
        "fence": a.fence,
        "tombstones": plain_set(list(a.tombstones)),
        "works": {str(n): _work(w, names) for n, w in a.works.items()},
        "adapters": {text_of(called[name]): _adapter(x, called, names) for name, x in a.adapters.items()},
        "closed": {str(v): a.closed.get(names.key(v), "") for v in names.versions},
        "strays": {p: strays.get(p, {"name": NO_NAME, "number": 0}) for p in names.operation_keys},
        "requests": {r: called[a.requests[r]] if r in a.requests else NO_NAME for r in names.rids},
        "sealed": {r: a.sealed[r].version_id if r in a.sealed else 0 for r in names.rids},
    }


def _work(w: Work, names: AgentNames) -> dict[str, Plain]:
    return {
        "key": w.key.version_id,
        "digest": names.digest(w.digest),
        "plan": NO_PLAN if w.plan is None else w.plan.buckets,
        "state": str(w.state),
        "received": w.received,
        "doomed": w.doomed,
    }


def _adapter(x: Adapter, called: Mapping[str, Mapping[str, Plain]], names: AgentNames) -> dict[str, Plain]:
    if x.resident is not None:
        loaded = {"version": x.resident.key.version_id, "digest": names.digest(x.resident.digest)}
        assert loaded == called[x.lora_name], f"{x.lora_name} holds {loaded}"
    return {"number": x.number, "state": str(x.state), "refs": x.refs}


def asked_as_tla(asked: Iterable[Action], a: Agent, names: AgentNames) -> list[Plain]:
    """What a step asked for, as the value of `asked`; `a` is the agent after it."""
    called = names.called
    each = [_ask(action, a, called, names) for action in asked]
    assert len({text_of(ask) for ask in each}) == len(each), f"one step asks twice: {each}"
    return plain_set(each)


def _ask(action: Action, a: Agent, called: Mapping[str, Mapping[str, Plain]], names: AgentNames) -> Plain:
    words: tuple[Plain, ...]
    match action:
        case actions.PostReceive(number=number, bucket=bucket):
            words = (number, bucket)
        case actions.AbortCommunicator(number=number) | actions.DropStash(number=number):
            words = (number,)
        case actions.StartLoad(number=number, lora_name=name, key=key, digest=digest, source=source):
            assert called[name] == {"version": key.version_id, "digest": names.digest(digest)}, action
            words = (number, called[name], source)
        case actions.Probe(number=number, lora_name=name):
            words = (number, called[name])
        case actions.Unregister(lora_name=name) | actions.CountRequests(lora_name=name):
            words = (called[name],)
        case actions.PhysicalUnload(lora_name=name, number=number):
            words = (called[name], number)
        case actions.TakeListing():
            words = ()
        case actions.AskQuarantine(incarnation=incarnation):
            assert incarnation == a.incarnation, action
            words = ()
    return _tuple(type(action).__name__, *words)


def answer_as_tla(item: Input, answer: Answer) -> tuple[str, list[Plain]] | None:
    """The action and the value of `asked` for an answer that the registry builds on and that changed nothing."""
    kind = type(answer).__name__
    words: tuple[Plain, ...]
    match item, answer:
        case AskStatus(), answers.Refused():
            return None
        case AskStatus(number=number), _:
            return "AskStatus", [_tuple("Status", number, kind)]
        case _, answers.Cleaned(number=number):
            words = (number,)
        case _, answers.Unloaded(reclaim_id=reclaim_id):
            words = (reclaim_id,)
        case _, answers.StrayGone(operation_key=operation_key):
            words = (operation_key,)
        case _:
            return None
    return kind, [_tuple(kind, *words)]


def _tuple(*words: Plain) -> dict[str, Plain]:
    return {str(place): word for place, word in enumerate(words, 1)}
