"""What sessions and the default must be, told by a few dicts: a model that sees events and answers only."""

from __future__ import annotations

from typing import Any

from lorafsm import events as ev
from lorafsm.identity import SessionKey, VersionKey
from lorafsm.outcomes import Binding, Closed, Committed, Done, Outcome, Refusal, RolledBack
from lorafsm.records import Registry
from lorafsm.registry.view import may_dispatch


class Naive:
    """Bindings written once, refs recounted, the default as the receipts tell it."""

    def __init__(self, max_version_lag: int = 0) -> None:
        self.lag = max_version_lag
        self.bindings: dict[SessionKey, VersionKey] = {}
        self.finalizing: set[SessionKey] = set()
        self.closed: set[SessionKey] = set()
        self.ended: set[str] = set()
        self.revoked: set[VersionKey] = set()
        self.published: dict[VersionKey, int] = {}
        self.default: VersionKey | None = None
        self.revision = 0

    def observe(self, event: Any, outcome: Outcome) -> None:
        """Learn from an event and its answer, and assert that the answer is one that may be given."""
        if isinstance(event, ev.BindFirst) and isinstance(outcome, Binding):
            assert event.session not in self.closed | self.finalizing
            assert event.session.owner not in self.ended
            assert self.bindings.setdefault(event.session, self.default) == outcome.key
        elif isinstance(event, ev.BeginClose) and outcome.ok and not isinstance(outcome, Closed):
            self.finalizing.add(event.session)
        elif isinstance(event, ev.CloseAndRelease) and isinstance(outcome, Closed):
            self._close(event.session, outcome)
        elif isinstance(event, ev.OwnerExpired | ev.OwnerGone) and isinstance(outcome, Done):
            self.ended.add(event.owner)
        elif isinstance(outcome, Committed | RolledBack) and outcome.revision > self.revision:
            assert outcome.revision == self.revision + 1
            assert outcome.replaced == self.default
            self.default, self.revision = outcome.key, outcome.revision
            self.published[outcome.key] = outcome.revision
            if isinstance(outcome, Committed) and self.lag:
                self.revoked |= {k for k, at in self.published.items() if self.revision - at >= self.lag}

    def _close(self, session: SessionKey, outcome: Closed) -> None:
        first = session not in self.closed and session.owner not in self.ended
        assert outcome.code == ("OK" if first else "ALREADY_CLOSED")
        bound = self.bindings.get(session)
        assert outcome.released == (bound if first and bound not in self.revoked else None)
        if first:
            self.closed.add(session)

    def holders(self) -> dict[VersionKey, int]:
        """Refs by version, counted from the sessions."""
        refs: dict[VersionKey, int] = {}
        for session, key in self.bindings.items():
            if session not in self.closed and session.owner not in self.ended and key not in self.revoked:
                refs[key] = refs.get(key, 0) + 1
        return refs

    def assert_like(self, r: Registry) -> None:
        """The registry says the same."""
        assert (r.default, r.default_revision) == (self.default, self.revision)
        assert {key: v.session_refs for key, v in r.versions.items() if v.session_refs} == self.holders()
        for session, key in self.bindings.items():
            answer = may_dispatch(r, session)
            live = session not in self.closed | self.finalizing and session.owner not in self.ended
            if live and key not in self.revoked:
                assert isinstance(answer, Binding)
                assert answer.key == key
            else:
                assert isinstance(answer, Refusal)
