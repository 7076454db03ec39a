"""An action in words, and a path of actions as a program to paste."""

from __future__ import annotations

from lorafsm.engine.actions import Action as ExecutorAction
from lorafsm.explore import Path, imports_of
from lorafsm.system import actions as do
from lorafsm.system.actions import message_name
from lorafsm.system.records import Message, Request, System

_POLICIES = {
    "publisher": "The publisher gives its orders",
    "reclaimer": "The reclaimer gives its orders",
    "repairer": "The repairer gives its orders",
}
_RESULTS = {"ok": "is done with", "failed": "fails with", "corrupt": "finds other bytes in"}


def in_words(action: do.Action) -> str:
    """One sentence."""
    match action:
        case do.Reserve(key):
            return f"The trainer reserves {key}."
        case do.StoreArtifact(key):
            return f"The bytes of {key} are stored."
        case do.GiveOrders(policy):
            return f"{_POLICIES[policy]}."
        case do.Decide():
            return "The publisher submits its decision."
        case do.Claim(key):
            return f"The reclaimer claims {key}."
        case do.AskRepair(engine, key):
            return f"The repairer has a repair of {key} on {engine} numbered."
        case do.Authorize():
            return "The driver asks to broadcast the next bucket."
        case do.Broadcast():
            return "The driver broadcasts the bucket."
        case do.Takeover():
            return "A new publisher takes the attempt over."
        case do.Deliver(message):
            return f"{_sentence(message)} arrives."
        case do.Lose(message):
            return f"{_sentence(message)} is lost."
        case do.Duplicate(message):
            return f"{_sentence(message)} arrives, and a copy of it is still on its way."
        case do.Finish(engine, executor, result):
            return f"{engine} {_RESULTS[result]} {_executor(executor)}."
        case _:
            return _of_others(action)


def _of_others(action: do.Action) -> str:
    match action:
        case do.EndRequest(engine, rid):
            return f"Request {rid} ends on {engine}."
        case do.Report(engine):
            return f"The inventory of {engine} is sent."
        case do.Open(sequence):
            return f"Session {sequence} opens."
        case do.Bind(sequence):
            return f"Session {sequence} opens and binds."
        case do.Dispatch(sequence, engine):
            return f"Session {sequence} sends a request to {engine}."
        case do.Settle(sequence):
            return f"The owner asks where the request of session {sequence} stands."
        case do.BeginClose(sequence):
            return f"Session {sequence} begins to close."
        case do.Close(sequence):
            return f"Session {sequence} closes and releases its ref."
        case do.CrashEngine(engine):
            return f"The process of {engine} ends; an empty successor starts."
        case do.CrashPublisher():
            return "The publisher crashes and forgets its token."
        case do.Hush(engine, number, reclaim_id):
            return f"Nothing is heard of {reclaim_id or f'number {number}'} from {engine}: UNKNOWN."
        case do.LoseEngine(engine):
            return f"{engine} counts as silent."
        case do.GiveUp():
            return "The publisher gives the attempt up at its deadline."
        case do.EndOwner():
            return "The owner's process ends."
        case do.Doubt(sequence):
            return f"The owner does not learn whether the request of session {sequence} was admitted."
        case do.RollBack(key):
            return f"An operator rolls back to {key}."
        case do.RepeatReserve(number):
            return f"A late copy of the reserve of number {number} arrives."
        case do.RepeatBind(sequence):
            return f"A late copy of the first bind of session {sequence} arrives."
        case do.DeclareDead(engine):
            return f"The process of {engine} is declared dead; an empty successor starts."
        case _:
            raise AssertionError(action)


def _sentence(message: Message) -> str:
    if isinstance(message, Request):
        return f"Request {message.rid} for {message.key} at {message.engine}"
    about = [
        f"{word} {getattr(message, name)}"
        for name, word in (("number", "number"), ("bucket", "bucket"), ("reclaim_id", ""), ("seq", "seq"))
        if hasattr(message, name)
    ]
    what = message_name(message)
    engine = f", {message.engine}" if hasattr(message, "engine") else ""
    return f"{what[0].upper()}{what[1:]} ({', '.join(word.strip() for word in about)}{engine})"


def _executor(action: ExecutorAction) -> str:
    number = getattr(action, "number", None)
    name = getattr(action, "lora_name", "")
    return f"{type(action).__name__}({f'number {number}' if number is not None else name})"


def as_program(path: Path[System, do.Action], box: str) -> str:
    """A program that takes the path from the start of a box and says what is broken at its end.

    `box` is "box NAME" or "weak NAME": which box, with which rules.
    """
    kind, name = box.split(" ", 1)
    lines = ["from lorafsm.system import Model"]
    if kind == "weak":
        lines += ["from lorafsm.system.weak import WEAK"]
        made = f"Model(WEAK[{name!r}].box, WEAK[{name!r}].rules)"
    else:
        lines += ["from lorafsm.system.boxes import BOXES"]
        made = f"Model(BOXES[{name!r}])"
    lines += [*imports_of(path.events), "", f"model = {made}", "state = model.start()", "for action in ("]
    lines += [f"    {event!r}," for event in path.events]
    lines += ["):", "    done = model.step(state, action)", "    state = done.state"]
    lines += ["    print(type(action).__name__, done.outcome)", 'print(*model.check(state), sep="\\n")']
    lines += ['print("rest can be reached" if model.can_rest(state) else "rest is out of reach")', ""]
    return "\n".join(lines)
