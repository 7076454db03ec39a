"""From nothing to READY: an attempt's begin, buckets and end, and a repair's load (RFC 3.2, rules 2, 4, 6, 15)."""

from __future__ import annotations

from attrs import evolve

from lorafsm.engine.actions import Action, DropStash, PostReceive, Probe, StartLoad
from lorafsm.engine.answers import (
    AgentCode,
    AgentStep,
    Answer,
    Armed,
    BucketDone,
    Failed,
    Noted,
    Pending,
    Prepared,
    Ready,
    Refused,
    refuse,
    with_fact,
)
from lorafsm.engine.lifecycle import RUNNING, WorkState
from lorafsm.engine.orders import ArmBucket, BucketFinished, LoadFinished, ProbeFinished, ReceiveBucket
from lorafsm.engine.records import Adapter, Agent, Work, used_slots
from lorafsm.engine.unload import with_adapter_going
from lorafsm.orders import Begin, End, Load
from lorafsm.outcomes import Code
from lorafsm.records import Resident


def begin(a: Agent, o: Begin) -> AgentStep:
    """Accept an attempt once, under a number that is neither over nor taken by something else."""
    asked = Work(o.number, o.key, o.digest, o.lora_name, o.plan, WorkState.PREPARED)
    if answer := _known(a, asked):
        return AgentStep(a, answer)
    if o.number <= a.fence:
        return _over(a, o.number)
    if refusal := _no_room(a, asked):
        return AgentStep(a, refusal)
    after = evolve(_without_failed(a, asked), fence=o.number)
    return AgentStep(with_work(with_fact(after), asked), Prepared(number=o.number))


def load(a: Agent, o: Load) -> AgentStep:
    """Start a repair's one load (rule 15)."""
    asked = Work(o.number, o.key, o.digest, o.lora_name, None, WorkState.LOADING)
    if answer := _known(a, asked):
        return AgentStep(a, answer)
    if refusal := _no_room(a, asked):
        return AgentStep(a, refusal)
    after = with_work(with_fact(_without_failed(a, asked)), asked)
    return AgentStep(after, Pending(waits_for="its load"), (_start_load(asked),))


def arm_bucket(a: Agent, o: ArmBucket) -> AgentStep:
    """Post the one receive of the next bucket; a bucket that was armed is never armed again (rule 6, I8)."""
    work = _live(a, o.number)
    if not isinstance(work, Work):
        return work
    if work.state is WorkState.FAILED:
        return AgentStep(a, fact_of(a, work))
    if o.bucket < work.received + (work.state is WorkState.ARMED):
        return AgentStep(a, Armed(number=o.number, bucket=o.bucket))
    if o.bucket > work.received or o.bucket >= work.buckets:  # never while it is ARMED, or after its last bucket
        return _early(a, work)
    armed = with_work(a, evolve(work, state=WorkState.ARMED))
    return AgentStep(armed, Armed(number=o.number, bucket=o.bucket), (PostReceive(o.number, o.bucket),))


def receive_bucket(a: Agent, o: ReceiveBucket) -> AgentStep:
    """The stored result of a bucket, or its running receive; never a second collective (rule 6)."""
    work = _live(a, o.number)
    if not isinstance(work, Work):
        return work
    if work.state in (WorkState.READY, WorkState.FAILED):
        return AgentStep(a, fact_of(a, work))  # its seq is the current one: no older fact may go under it
    if o.bucket < work.received:
        return AgentStep(a, BucketDone(number=o.number, bucket=o.bucket))
    if work.state is WorkState.ARMED and o.bucket == work.received:
        return AgentStep(a, Pending(waits_for=f"bucket {o.bucket}"))
    return _early(a, work)


def end(a: Agent, o: End) -> AgentStep:
    """Start the attempt's one load, from its complete stash or, when no bucket is sent, from the artifact store."""
    if o.key in a.closed:
        return refuse(a, AgentCode.VERSION_CLOSED, f"{o.key} was unloaded here for ever")
    work = _live(a, o.number)
    if not isinstance(work, Work):
        return work
    if (work.key, work.digest) != (o.key, o.digest):
        return refuse(a, Code.OPERATION_CONFLICT, f"number {o.number} was begun for {work.key}", field="number")
    if work.state in (WorkState.READY, WorkState.FAILED):
        return AgentStep(a, fact_of(a, work))
    if work.state in (WorkState.LOADING, WorkState.PROBING):
        return AgentStep(a, Pending(waits_for="its load and probe"))
    if work.received < work.buckets:  # an ARMED one lacks at least the bucket whose receive is posted
        return _early(a, work)
    if work.lora_name in a.adapters:
        return refuse(a, Code.NOT_ABSENT, f"somebody put {work.lora_name} here; it must go first")
    loading = evolve(work, state=WorkState.LOADING)
    return AgentStep(with_work(a, loading), Pending(waits_for="its load"), (_start_load(loading),))


def bucket_finished(a: Agent, e: BucketFinished) -> AgentStep:
    """The posted receive ended: one bucket more, or the attempt failed here."""
    work = a.works.get(e.number)
    if work is None or work.state is not WorkState.ARMED or e.bucket != work.received:
        return refuse(a, AgentCode.UNEXPECTED_RESULT, f"no receive of bucket {e.bucket} of number {e.number} is posted")
    a = with_fact(a)
    if work.doomed:
        return AgentStep(_without_work(a, work), Noted(), (DropStash(e.number),))
    if e.ok:
        done = evolve(work, state=WorkState.PREPARED, received=e.bucket + 1)
        return AgentStep(with_work(a, done), BucketDone(number=e.number, bucket=e.bucket))
    failed = evolve(work, state=WorkState.FAILED, detail=e.detail or "the bucket was not received")
    return AgentStep(with_work(a, failed), fact_of(a, failed), (DropStash(e.number),))


def load_finished(a: Agent, e: LoadFinished) -> AgentStep:
    """The load ended: prove it, remove it, or say no.  The stash is not needed any more."""
    work = a.works.get(e.number)
    if work is None or work.state is not WorkState.LOADING:
        return refuse(a, AgentCode.UNEXPECTED_RESULT, f"no load of number {e.number} is running")
    a = with_fact(a)
    drop: tuple[Action, ...] = (DropStash(e.number),) if work.buckets else ()
    if e.ok:
        adapter = Adapter(work.lora_name, Resident(work.key, work.digest, work.number))
        a = evolve(a, adapters=a.adapters.set(adapter.lora_name, adapter))
    if work.doomed:
        return _gone(a, work, drop)
    if e.ok:
        probing = evolve(work, state=WorkState.PROBING)
        return AgentStep(with_work(a, probing), Noted(), (*drop, Probe(e.number, work.lora_name)))
    failed = evolve(work, state=WorkState.FAILED, detail=e.detail or "the load failed")
    return AgentStep(with_work(a, failed), fact_of(a, failed), drop)


def probe_finished(a: Agent, e: ProbeFinished) -> AgentStep:
    """The probe ended: READY, or FAILED with an adapter that has to be ordered away."""
    work = a.works.get(e.number)
    if work is None or work.state is not WorkState.PROBING:
        return refuse(a, AgentCode.UNEXPECTED_RESULT, f"no probe of number {e.number} is running")
    a = with_fact(a)
    if work.doomed:
        return _gone(a, work, ())
    proved = (
        evolve(work, state=WorkState.READY)
        if e.ok
        else evolve(work, state=WorkState.FAILED, detail=e.detail or "the probe failed")
    )
    return AgentStep(with_work(a, proved), fact_of(a, proved))


def fact_of(a: Agent, work: Work) -> Answer:
    """The latest fact about a work: what its last answer said, or would have said."""
    repair = work.plan is None
    if work.doomed:
        return Pending(waits_for=f"its {work.state.lower()} step to end")
    if work.state is WorkState.FAILED:
        return Failed(number=work.number, repair=repair, reason=work.detail)
    if work.state is WorkState.READY:
        return Ready(
            number=work.number, repair=repair, key=work.key, digest=work.digest, base_fingerprint=a.base_fingerprint
        )
    if repair:
        return Pending(waits_for="its load and probe")
    if work.received:
        return BucketDone(number=work.number, bucket=work.received - 1)
    return Prepared(number=work.number)


def with_work(a: Agent, work: Work) -> Agent:
    """The agent with this work as it is now."""
    return evolve(a, works=a.works.set(work.number, work))


def _without_work(a: Agent, work: Work) -> Agent:
    return evolve(a, works=a.works.delete(work.number))


def _gone(a: Agent, work: Work, actions: tuple[Action, ...]) -> AgentStep:
    """A doomed work whose running part has ended: forget it, and remove what it loaded."""
    after, more = with_adapter_going(_without_work(a, work), work.lora_name)
    return AgentStep(after, Noted(), (*actions, *more))


def _known(a: Agent, asked: Work) -> Answer | None:
    """The answer to an order that was given before, or that can never be accepted."""
    work = a.works.get(asked.number)
    if asked.key in a.closed:
        return Refused(code=AgentCode.VERSION_CLOSED, reason=f"{asked.key} was unloaded here for ever")
    if work is None:
        return _over(a, asked.number).answer if asked.number in a.tombstones else None
    if (work.key, work.digest, work.plan) != (asked.key, asked.digest, asked.plan):
        return Refused(
            code=Code.OPERATION_CONFLICT, reason=f"number {asked.number} was begun for something else", field="number"
        )
    if work.doomed:
        return _over(a, asked.number).answer
    # The answer carries the current seq: an older fact under it would make the latest one look like old news.
    return fact_of(a, work)


def _no_room(a: Agent, asked: Work) -> Refused | None:
    """Local resources (rule 6): a free name and a free slot."""
    same = any(w.key == asked.key and w.state is not WorkState.FAILED for w in a.works.values())
    if same or asked.lora_name in a.adapters:
        return Refused(code=Code.NOT_ABSENT, reason=f"{asked.lora_name} is here under another number; it must go first")
    if used_slots(a) >= a.slots:
        return Refused(code=AgentCode.NO_RESOURCES, reason=f"{used_slots(a)} of {a.slots} slots are taken")
    return None


def _without_failed(a: Agent, asked: Work) -> Agent:
    """A later number of a key replaces what failed before it, and that number is over."""
    failed = tuple(w for w in a.works.values() if w.key == asked.key)
    for work in failed:
        over = a.tombstones | {work.number} if work.plan is None else a.tombstones  # the fence covers attempts
        a = evolve(_without_work(a, work), tombstones=over)
    return a


def _live(a: Agent, number: int) -> Work | AgentStep:
    """The work that an order of an attempt continues."""
    work = a.works.get(number)
    if work is None and number > a.fence and number not in a.tombstones:
        return refuse(a, Code.OUT_OF_ORDER, f"number {number} was not begun here; begin first", field="number")
    if work is None or work.doomed:
        return _over(a, number)
    if work.plan is None:
        return refuse(a, Code.OPERATION_CONFLICT, f"number {number} is a repair's", field="number")
    return work


def _over(a: Agent, number: int) -> AgentStep:
    return refuse(a, Code.STALE_ATTEMPT, f"number {number} is over here; create nothing for it", field="number")


def _early(a: Agent, work: Work) -> AgentStep:
    running = "running" if work.state in RUNNING else "idle"
    return refuse(
        a,
        Code.OUT_OF_ORDER,
        f"number {work.number} is {work.state} ({running}) with {work.received} of {work.buckets} buckets",
    )


def _start_load(work: Work) -> StartLoad:
    return StartLoad(work.number, work.lora_name, work.key, work.digest, "stash" if work.buckets else "store")
