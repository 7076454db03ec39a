"""A small vocabulary for stories about the registry: one event a line, the state asserted after each.

`World` holds a registry and puts every event through `step`.  After each step it asserts the invariants, and that
a refusal returned the very registry that went in, without effects.  A verb answers the outcome's code (`bind_first`
and `may_dispatch` answer the name of the version when there is one); the outcome itself is in `said`.

Versions are named by a letter (A is version id 1) or by `v` and a number.  Sessions are named freely; their
sequences are given in the order in which the names are first used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from attrs import evolve

from lorafsm import events as ev
from lorafsm.effects import Alarm, Effect, Wake
from lorafsm.identity import LARGEST_INT, SessionKey, VersionKey
from lorafsm.invariants import check, check_change
from lorafsm.manifest import Plan, store_plan
from lorafsm.outcomes import Binding, Code, Outcome, Refusal, Reserved, TakenOver
from lorafsm.records import Attempt, Config, Registry, Resident, new_registry
from lorafsm.registry import step
from lorafsm.registry import view as ask

EPOCH = "e1"
OWNER = "o1"


def digest_of(text: str) -> str:
    """The digest of a version's bytes; `digest_of("A*")` stands for other bytes under A's name."""
    return hashlib.sha256(text.encode()).hexdigest()


class World:
    """A registry with a fleet, an owner of sessions, a clock in milliseconds, and what a publisher remembers."""

    def __init__(
        self,
        *,
        engines: Iterable[str] = ("E0", "E1"),
        owners: Iterable[str] = (OWNER,),
        epoch: str = EPOCH,
        **config: Any,
    ) -> None:
        self.r: Registry = new_registry(epoch, Config(**config))
        self.said: Outcome | None = None
        self.effects: tuple[Effect, ...] = ()
        self.log: list[tuple[Any, Outcome]] = []
        self.checked = True  # a very long story may look at the invariants now and then only
        self.now = 0
        self.seq = 0
        self.incarnations: dict[str, int] = {}
        self.tokens: dict[str, str] = {}
        self.revisions: dict[str, int] = {}
        self.sequences: dict[tuple[str, str], int] = {}
        self.names: dict[VersionKey, str] = {}
        for engine in engines:
            assert self.join(engine) == Code.OK
        for owner in owners:
            assert self.owner_up(owner) == Code.OK

    # The one place where the world changes

    def do(self, event: Any) -> Code:
        before = self.r
        done = step(before, event)
        self.r, self.said, self.effects = done.registry, done.outcome, done.effects
        self.log.append((event, done.outcome))
        if isinstance(done.outcome, Refusal):
            assert done.registry is before, f"{event} was refused and changed the registry"
            assert done.effects == (), f"{event} was refused and has effects"
            assert done.outcome.reason
        if self.checked:
            assert check(self.r) == ()
            assert check_change(before, event, self.r) == ()
        return done.outcome.code

    def wait(self, ms: int) -> None:
        """Time passes; the registry learns of it with the next event."""
        self.now += ms

    # Names

    def key(self, name: str) -> VersionKey:
        number = int(name[1:]) if name[0] == "v" else ord(name[0]) - ord("A") + 1
        key = VersionKey(self.r.epoch, number)
        self.names[key] = name
        return key

    def session_key(self, name: str, owner: str = OWNER) -> SessionKey:
        known = [sequence for (who, _), sequence in self.sequences.items() if who == owner]
        sequence = self.sequences.setdefault((owner, name), len(known))
        return SessionKey(self.r.epoch, owner, sequence)

    def _answer(self, code: Code) -> str:
        return self.names[self.said.key] if isinstance(self.said, Binding) else code

    def _about(self, engine: str, inc: int | None, seq: int | None = None) -> dict[str, Any]:
        if seq is None:
            self.seq = seq = self.seq + 1
        if inc is None:
            inc = self.incarnations.get(engine, 1)
        return {"engine": engine, "incarnation": inc, "seq": seq, "now": self.now}

    # Publication

    def reserve(
        self, v: str, *, bytes_of: str | None = None, token: str | None = None, buckets: int | None = None
    ) -> Code:
        token = token or f"token-{v}-{len(self.log)}"
        plan = store_plan() if buckets is None else Plan(buckets, digest_of(f"plan {buckets}"))
        key, digest = self.key(v), digest_of(bytes_of or v)
        code = self.do(ev.Reserve(key=key, digest=digest, plan=plan, token=token, now=self.now))
        if isinstance(self.said, Reserved):
            self.tokens[v], self.revisions[v] = token, self.said.revision
        return code

    def store(self, v: str, *, bytes_of: str | None = None) -> Code:
        return self.do(ev.ArtifactStored(key=self.key(v), digest=digest_of(bytes_of or v), now=self.now))

    def prepared(self, e: str, *, n: int | None = None, inc: int | None = None, seq: int | None = None) -> Code:
        return self.do(ev.Prepared(number=self._number(n), **self._about(e, inc, seq)))

    def authorize(self, k: int, *, n: int | None = None, token: str | None = None) -> Code:
        n = self._number(n)
        token = token or self.r.attempts[n].token
        return self.do(ev.AuthorizeBucket(number=n, token=token, bucket=k, now=self.now))

    def bucket_done(
        self, e: str, k: int, *, n: int | None = None, inc: int | None = None, seq: int | None = None
    ) -> Code:
        return self.do(ev.BucketDone(number=self._number(n), bucket=k, **self._about(e, inc, seq)))

    def ready(
        self, e: str, *, n: int | None = None, inc: int | None = None, seq: int | None = None, **claims: Any
    ) -> Code:
        n = self._number(n)
        return self.do(ev.Ready(number=n, **self._about(e, inc, seq), **(self._proof(n) | claims)))

    def failed(
        self, e: str, *, n: int | None = None, inc: int | None = None, seq: int | None = None, reason: str = "no"
    ) -> Code:
        return self.do(ev.TargetFailed(number=self._number(n), reason=reason, **self._about(e, inc, seq)))

    def unknown(self, e: str, *, n: int | None = None, inc: int | None = None) -> Code:
        about = self._about(e, inc)
        del about["seq"]
        return self.do(ev.TargetUnknown(number=self._number(n), **about))

    def commit(self, v: str, *, token: str | None = None, rev: int | None = None) -> Code:
        token = token or self.tokens[v]
        rev = self.revisions[v] if rev is None else rev
        return self.do(ev.Commit(key=self.key(v), token=token, expected_revision=rev, now=self.now))

    def abort(self, v: str, *, token: str | None = None, reason: str = "the load failed") -> Code:
        return self.do(ev.Abort(key=self.key(v), token=token or self.tokens[v], reason=reason, now=self.now))

    def cleaned(self, e: str, *, n: int | None = None, inc: int | None = None, seq: int | None = None) -> Code:
        return self.do(ev.Cleaned(number=self._number(n), **self._about(e, inc, seq)))

    def takeover(self, v: str, *, token: str, handover: str = "") -> Code:
        code = self.do(ev.Takeover(key=self.key(v), token=token, handover=handover, now=self.now))
        if isinstance(self.said, TakenOver):
            self.tokens[v] = token
        return code

    def rollback(self, v: str, *, rev: int | None = None, op: str = "op1") -> Code:
        rev = self.revision if rev is None else rev
        return self.do(ev.Rollback(key=self.key(v), expected_revision=rev, operation_id=op, now=self.now))

    def begin(self, v: str, *, buckets: int | None = None) -> None:
        """Reserve, store the artifact, and PREPARED on every target."""
        assert self.reserve(v, buckets=buckets) == Code.OK
        assert self.store(v) == Code.OK
        for e in self.targets(v):
            assert self.prepared(e) == Code.OK

    def make_ready(self, v: str) -> None:
        """Begin, and READY on every target: only the commit is missing."""
        self.begin(v)
        for e in self.targets(v):
            assert self.ready(e) == Code.OK

    def publish(self, v: str) -> None:
        """The whole of a publication: `v` is the default."""
        self.make_ready(v)
        assert self.commit(v) == Code.OK
        assert self.default == v

    def boot(self, v: str = "A") -> World:
        """The first publication."""
        self.publish(v)
        assert self.revision == 1
        return self

    def fail(self, v: str) -> None:
        """An attempt that is aborted and clean on every target."""
        self.begin(v)
        number = self.r.unresolved
        assert self.abort(v) == Code.OK
        for e in self.targets(v):
            assert self.cleaned(e, n=number) == Code.OK
        assert self.version(v) == "FAILED_CLEAN"

    # Sessions

    def owner_up(self, owner: str = OWNER) -> Code:
        return self.do(ev.OwnerUp(owner=owner, now=self.now))

    def heartbeat(self, owner: str = OWNER) -> Code:
        return self.do(ev.Heartbeat(owner=owner, now=self.now))

    def owner_expired(self, owner: str = OWNER) -> Code:
        return self.do(ev.OwnerExpired(owner=owner, now=self.now))

    def owner_gone(self, owner: str = OWNER) -> Code:
        return self.do(ev.OwnerGone(owner=owner, now=self.now))

    def recovered(self) -> Code:
        return self.do(ev.Recovered(now=self.now))

    def open(self, s: str, owner: str = OWNER) -> Code:
        return self.do(ev.Open(session=self.session_key(s, owner), label=s, now=self.now))

    def bind_first(self, s: str, owner: str = OWNER) -> str:
        """The name of the version that the session is bound to, or the code of a refusal."""
        return self._answer(self.do(ev.BindFirst(session=self.session_key(s, owner), now=self.now)))

    def begin_close(self, s: str, owner: str = OWNER) -> Code:
        return self.do(ev.BeginClose(session=self.session_key(s, owner), now=self.now))

    def close_and_release(self, s: str, owner: str = OWNER) -> Code:
        return self.do(ev.CloseAndRelease(session=self.session_key(s, owner), now=self.now))

    def may_dispatch(self, s: str, owner: str = OWNER) -> str:
        """The name of the version that a turn of the session runs on, or the code of a refusal."""
        answer = ask.may_dispatch(self.r, self.session_key(s, owner))
        return self.names[answer.key] if isinstance(answer, Binding) else answer.code

    # Reclaim

    def claim_reclaim(self, v: str, rid: str | None = None) -> Code:
        rid = rid or f"reclaim-{v}"
        return self.do(ev.ClaimReclaim(key=self.key(v), reclaim_id=rid, now=self.now))

    def unloaded(
        self, e: str, rid: str, *, inc: int | None = None, seq: int | None = None, absent: bool = True
    ) -> Code:
        return self.do(ev.ConfirmReclaim(reclaim_id=rid, observed_absent=absent, **self._about(e, inc, seq)))

    def reclaim_unknown(self, e: str, rid: str, *, inc: int | None = None) -> Code:
        about = self._about(e, inc)
        del about["seq"]
        return self.do(ev.ReclaimUnknown(reclaim_id=rid, **about))

    def reclaim(self, v: str) -> None:
        """Claim, and every target confirms: the slot is free."""
        assert self.claim_reclaim(v) == Code.OK
        reclaim = self.r.reclaims[self.r.versions[self.key(v)].reclaim_id]
        for e in sorted(reclaim.unloads):
            assert self.unloaded(e, reclaim.reclaim_id) == Code.OK
        assert self.version(v) == "RECLAIMED"

    # Fleet

    def join(
        self, e: str, *, inc: int = 1, holds: Iterable[Resident] = (), foreign: Iterable[str] = (), fp: str = ""
    ) -> Code:
        listed = {"base_fingerprint": fp, "residents": frozenset(holds), "foreign": frozenset(foreign)}
        code = self.do(ev.EngineJoin(**self._about(e, inc), **listed))
        if code == Code.OK:
            self.incarnations[e] = inc
        return code

    def engine_up(
        self,
        e: str,
        *,
        inc: int | None = None,
        seq: int | None = None,
        holds: Iterable[Resident] = (),
        foreign: Iterable[str] = (),
        fp: str = "",
    ) -> Code:
        listed = {"base_fingerprint": fp, "residents": frozenset(holds), "foreign": frozenset(foreign)}
        event = ev.EngineUp(**self._about(e, inc, seq), **listed)
        code = self.do(event)
        if code == Code.OK:
            self.incarnations[e] = event.incarnation
        return code

    def restart(self, e: str, *, holds: Iterable[Resident] = (), foreign: Iterable[str] = ()) -> Code:
        """A new process behind the engine's id, with proof that the old one ended; it holds nothing unless said."""
        return self.engine_up(e, inc=self.incarnations[e] + 1, holds=holds, foreign=foreign)

    def engine_lost(self, e: str, *, inc: int | None = None) -> Code:
        return self.do(
            ev.EngineLost(engine=e, incarnation=self.incarnations.get(e, 1) if inc is None else inc, now=self.now)
        )

    def engine_dead(self, e: str, *, inc: int | None = None) -> Code:
        inc = self.incarnations.get(e, 1) if inc is None else inc
        return self.do(ev.EngineDead(engine=e, incarnation=inc, evidence="exit status 137", now=self.now))

    def engine_remove(self, e: str) -> Code:
        return self.do(ev.EngineRemove(engine=e, now=self.now))

    def quarantine(self, e: str, *, inc: int | None = None) -> Code:
        inc = self.incarnations.get(e, 1) if inc is None else inc
        return self.do(ev.Quarantine(engine=e, incarnation=inc, reason="a negative count", now=self.now))

    def order_repair(self, v: str, e: str) -> Code:
        return self.do(ev.OrderRepair(key=self.key(v), engine=e, now=self.now))

    def repair_ready(self, e: str, n: int, *, inc: int | None = None, seq: int | None = None, **claims: Any) -> Code:
        repair = self.r.repairs.get(n)
        proof = self._proof_of(self.key("A") if repair is None else repair.key) | claims
        return self.do(ev.RepairReady(number=n, **self._about(e, inc, seq), **proof))

    def repair_failed(self, e: str, n: int, *, inc: int | None = None, reason: str = "no memory") -> Code:
        return self.do(ev.RepairFailed(number=n, reason=reason, **self._about(e, inc)))

    def repair(self, v: str, e: str) -> None:
        """Order a repair and prove it."""
        assert self.order_repair(v, e) == Code.OK
        number = self.r.engines[e].repairs[self.key(v)]
        assert self.repair_ready(e, number) == Code.OK
        assert e in self.routable(v)

    # Questions

    @property
    def default(self) -> str | None:
        return None if self.r.default is None else self.names[self.r.default]

    @property
    def revision(self) -> int:
        return self.r.default_revision

    @property
    def used(self) -> int:
        return len(self.r.slots)

    def version(self, v: str) -> str | None:
        version = self.r.versions.get(self.key(v))
        return None if version is None else version.state

    def refs(self, v: str) -> int:
        return self.r.versions[self.key(v)].session_refs

    def number(self, v: str) -> int:
        return self.r.versions[self.key(v)].number

    def attempt(self, v: str) -> Attempt:
        return self.r.attempts[self.number(v)]

    def targets(self, v: str) -> list[str]:
        return sorted(self.attempt(v).targets)

    def target(self, v: str, e: str) -> str:
        return self.attempt(v).targets[e].state

    def session(self, s: str, owner: str = OWNER) -> str | None:
        return ask.session_state(self.r, self.session_key(s, owner))

    def owner(self, owner: str = OWNER) -> str:
        return self.r.owners[owner].state

    def engine(self, e: str) -> str:
        return self.r.engines[e].state

    def unload(self, v: str, e: str) -> str:
        return self.r.reclaims[self.r.versions[self.key(v)].reclaim_id].unloads[e].state

    def repair_state(self, n: int) -> str:
        return self.r.repairs[n].state

    def routable(self, v: str) -> set[str]:
        return set(ask.routable(self.r, self.key(v)))

    def resident(self, v: str, *, n: int | None = None) -> Resident:
        """What an engine lists when it holds `v`, loaded by number `n` (the version's attempt unless said)."""
        return Resident(self.key(v), digest_of(v), self.number(v) if n is None else n)

    def strays(self, e: str) -> set[str]:
        return {stray.lora_name for stray in self.r.engines[e].strays}

    def wakes(self) -> set[str]:
        return {effect.policy for effect in self.effects if isinstance(effect, Wake)}

    def alarms(self) -> set[str]:
        return {effect.code for effect in self.effects if isinstance(effect, Alarm)}

    def _number(self, n: int | None) -> int:
        return (self.r.unresolved or self.r.next_number - 1) if n is None else n

    def _proof(self, number: int) -> dict[str, Any]:
        attempt = self.r.attempts.get(number)
        return self._proof_of(self.key("A") if attempt is None else attempt.key)

    def _proof_of(self, key: VersionKey) -> dict[str, Any]:
        version = self.r.versions.get(key)
        digest = digest_of("A") if version is None else version.digest
        fp = self.r.config.base_fingerprint
        return {"key": key, "digest": digest, "base_fingerprint": fp, "probe_ok": True}


def with_field(event: Any, **changes: Any) -> Any:
    """The same event with other fields; nothing is checked."""
    return evolve(event, **changes)


TOO_LARGE = LARGEST_INT + 1
