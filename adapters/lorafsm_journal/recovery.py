"""From rows back to the state: the latest good snapshot and the rows after it, or everything from the first row."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from attrs import frozen

from lorafsm import registry as rules
from lorafsm.events import Event
from lorafsm.outcomes import Refusal
from lorafsm.records import Registry, new_registry
from lorafsm_journal.codec import (
    decode_event,
    decode_events,
    decode_outcome,
    decode_registry,
    encode_outcome,
    encode_registry,
)
from lorafsm_journal.errors import JournalCode as Code
from lorafsm_journal.errors import JournalError, Undecodable
from lorafsm_journal.rows import REFUSED, Row, read_texts
from lorafsm_journal.snapshots import Snapshot
from lorafsm_journal.view import Texts, View

_AT_ONCE = 128


@frozen
class Recovered:
    """The state after the last row, and how it was found."""

    registry: Registry
    snapshot: int | None  # the row after which the snapshot was taken; None: replayed from the first row
    accepted: int  # events replayed after it


@frozen
class Verified:
    """What `verify` saw when everything was in order."""

    registry: Registry
    base: int  # rows compacted away
    rows: int  # the number of the last row
    accepted: int
    refused: int
    snapshots: tuple[int, ...]  # each equal to the replay


def recover(view: View) -> Recovered:
    """The registry after all rows, by the shortest way that can be trusted."""
    with _uncollected():
        return _recover(view)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing that a replay leaves behind is a cycle: the collector would visit every record, often, for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _recover(view: View) -> Recovered:
    for snapshot in view.snapshots():
        try:
            registry = decode_registry(snapshot.state)
        except Undecodable:
            continue  # of another lorafsm, perhaps; the rows speak for themselves
        if (registry.epoch, registry.config) != (view.about.epoch, view.about.config):
            continue
        registry, accepted = _replay(view, registry, view.texts(snapshot.number, snapshot.chain))
        return Recovered(registry, snapshot.number, accepted)
    if view.about.base:
        raise JournalError(
            Code.JOURNAL_CORRUPT,
            f"{view.path}: the rows up to {view.about.base} were compacted away and the snapshot that stands for them "
            "is not what was written; restore the file",
            view.about.base,
        )
    registry, accepted = _replay(view, new_registry(view.about.epoch, view.about.config), view.texts())
    return Recovered(registry, None, accepted)


def verify(view: View) -> Verified:
    """Read every row strictly, replay it, hold every snapshot against the replay, and SQLite's pages against
    themselves; raises JournalError for the first thing that is not as it should be."""
    snapshots = {snapshot.number: snapshot for snapshot in view.snapshots()}
    registry, accepted, refused = beginning(view), 0, 0
    _compare(view, registry, snapshots.get(view.about.base))
    for row, after in walk(view, registry):
        was_refused = isinstance(row.outcome, Refusal)
        registry, accepted, refused = after, accepted + (not was_refused), refused + was_refused
        _compare(view, registry, snapshots.get(row.number))
    if (lost := view.count_snapshots() - len(snapshots)) > 0:
        raise JournalError(
            Code.JOURNAL_CORRUPT, f"{view.path}: {lost} snapshots are not what was written; recovery passes them over"
        )
    view.check_pages()
    return Verified(registry, view.about.base, view.head.number, accepted, refused, tuple(sorted(snapshots)))


def beginning(view: View) -> Registry:
    """The state before the first row that is there: empty, or what the rows before it were compacted to."""
    if not view.about.base:
        return new_registry(view.about.epoch, view.about.config)
    for snapshot in view.snapshots():
        if snapshot.number == view.about.base:
            return decode_registry(snapshot.state)
    raise JournalError(
        Code.JOURNAL_CORRUPT, f"{view.path}: the snapshot that stands for its first rows is gone", view.about.base
    )


def walk(view: View, registry: Registry) -> Iterator[tuple[Row, Registry]]:
    """Each row, read strictly, and the registry after it."""
    for texts in view.texts():
        row = read_row(view, texts)
        registry, _ = _replay(view, registry, (texts,))
        yield row, registry


def _compare(view: View, registry: Registry, snapshot: Snapshot | None) -> None:
    if snapshot is not None and encode_registry(registry) != snapshot.state:
        raise JournalError(
            Code.JOURNAL_DIVERGED,
            f"{view.path}: the snapshot is not the state that the rows lead to; restore the file",
            snapshot.number,
        )


def read_row(view: View, texts: Texts) -> Row:
    """The row that the texts say; JOURNAL_CORRUPT if they say none."""
    try:
        return read_texts(*texts[:3])
    except Undecodable as error:
        raise JournalError(Code.JOURNAL_CORRUPT, f"{view.path}: {error}", texts[0]) from error


def _replay(view: View, registry: Registry, rows: Iterable[Texts]) -> tuple[Registry, int]:
    """Step through the accepted events; each must be answered with the text that was journaled."""
    step, accepted = rules.step, 0
    for number, outcome_text, event in _accepted(view, rows):
        done = step(registry, event)
        if encode_outcome(done.outcome) != outcome_text:
            raise _diverged(view, number, type(event).__name__, outcome_text, done)
        registry = done.registry
        accepted += 1
    return registry, accepted


def _accepted(view: View, rows: Iterable[Texts]) -> Iterator[tuple[int, str, Event]]:
    """Number, text of the outcome, and event of each accepted row; many are decoded at once."""
    rows = iter(rows)
    while True:
        chunk, fault = _next(rows)
        events = decode_events([texts[1] for texts in chunk])
        for at, (number, event_text, outcome_text, _) in enumerate(chunk):
            try:
                event = events[at] if events is not None else decode_event(event_text)
            except Undecodable as error:
                raise JournalError(Code.JOURNAL_CORRUPT, f"{view.path}: {error}", number) from error
            yield number, outcome_text, event
        if fault is not None:
            raise fault
        if not chunk:
            return


def _next(rows: Iterator[Texts]) -> tuple[list[Texts], JournalError | None]:
    """The next accepted rows, and the fault that ended them: it is told after them, so that the first is named."""
    chunk: list[Texts] = []
    try:
        for texts in rows:
            if not texts[2].startswith(REFUSED):
                chunk.append(texts)
                if len(chunk) == _AT_ONCE:
                    break
    except JournalError as error:
        return chunk, error
    return chunk, None


def _diverged(view: View, number: int, event: str, outcome_text: str, done: rules.Step) -> JournalError:
    try:
        was = repr(decode_outcome(outcome_text))
    except Undecodable as error:
        return JournalError(Code.JOURNAL_CORRUPT, f"{view.path}: {error}", number)
    return JournalError(
        Code.JOURNAL_DIVERGED,
        f"{view.path}: {event} was answered {was:.200} and is now answered {done.outcome!r:.200}; recover with the "
        "lorafsm that wrote it",
        number,
    )
