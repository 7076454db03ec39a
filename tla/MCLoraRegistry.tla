--------------------------- MODULE MCLoraRegistry ---------------------------
(***************************************************************************)
(* LoraRegistry in small boxes: each .cfg of models/ says which actions    *)
(* may happen in its box, from which story on, and how answers are         *)
(* numbered.                                                               *)
(***************************************************************************)
EXTENDS LoraRegistryRefines

CONSTANTS
    Happens,     \* names of the actions of this box
    AnySeq,      \* answers carry any AnswerSeq; otherwise the next one, or a repeat
    Took,        \* the story: the engines that joined before anything was published,
    Published,   \* how many versions were published, one after another, on all of these,
    ReadyNext,   \* whether the next version is READY on them,
    HeldVersion, \* which version session 0 of owner o1 was bound to (0: none),
    Late         \* and the engines that joined last, with nothing on them

In(name, S) == IF name \in Happens THEN S ELSE {}

-----------------------------------------------------------------------------
(* The state at the end of the story *)

TokenOf == <<"t1", "t2", "t3">>
Loaded  == 1..(Published + IF ReadyNext THEN 1 ELSE 0)
ASSUME Loaded # {} => Took # {} /\ Buckets = 0

JoinedEngine(seq) == [FreshEngine("UP", 1) EXCEPT !.seq = seq, !.inventory.seq = 1]

StoryVersions ==
    [v \in Version |->
        [state |-> CASE v < Published -> "RETIRED"
                     [] v = Published -> "PUBLISHED"
                     [] v \in Loaded -> "LOADING"
                     [] OTHER -> "NONE",
         digest |-> IF v \in Loaded THEN "a" ELSE NoDigest,
         number |-> IF v \in Loaded THEN v ELSE NoNumber,
         session_refs |-> IF v = HeldVersion THEN 1 ELSE 0,
         published_revision |-> IF v <= Published THEN v ELSE 0,
         reclaim_id |-> NoReclaim,
         artifact |-> v \in Loaded,
         revoked |-> FALSE]]

StoryEngines ==
    [e \in Engine |->
        CASE e \in Took -> [JoinedEngine(IF Loaded = {} THEN 1 ELSE 2) EXCEPT
                !.residents = [v \in Version |->
                    IF v \in Loaded THEN [digest |-> "a", number |-> v] ELSE NoResident]]
          [] e \in Late -> JoinedEngine(1)
          [] OTHER -> FreshEngine("NONE", 0)]

MCInit ==
    /\ now = 0
    /\ versions = StoryVersions
    /\ default = Published
    /\ default_revision = Published
    /\ owners = [o \in Owner |->
           IF o = "o1" /\ HeldVersion # 0
           THEN [state |-> "LIVE", lease_until |-> OwnerLease,
                 sessions |-> [s \in Sequence |->
                     IF s = 0 THEN [state |-> "BOUND", binding |-> HeldVersion]
                     ELSE [state |-> "NONE", binding |-> NoVersion]]]
           ELSE [state |-> "NONE", lease_until |-> 0,
                 sessions |-> [s \in Sequence |-> [state |-> "NONE", binding |-> NoVersion]]]]
    /\ engines = Serving(StoryEngines, StoryVersions)
    /\ attempts = [n \in Loaded |->
           [key |-> n, token |-> TokenOf[n], state |-> IF n <= Published THEN "COMMITTED" ELSE "OPEN",
            revision |-> n - 1, driver_until |-> DriverLease,
            targets |-> [e \in Took |-> [incarnation |-> 1, state |-> "READY", buckets_done |-> 0, seq |-> 2]],
            authorized |-> 0, taken_over |-> FALSE]]
    /\ reclaims = [c \in ReclaimId |-> [state |-> "NONE", key |-> NoVersion, unloads |-> Empty]]
    /\ repairs = Empty
    /\ tokens = [t \in Token |-> IF \E n \in Loaded : TokenOf[n] = t THEN CHOOSE n \in Loaded : TokenOf[n] = t
                                 ELSE NoNumber]
    /\ rollbacks = {}
    /\ next_number = Cardinality(Loaded) + 1

-----------------------------------------------------------------------------
(* How answers are numbered *)

TargetSeqs(n, e) ==
    IF AnySeq THEN AnswerSeq
    ELSE IF n \in DOMAIN attempts /\ e \in DOMAIN attempts[n].targets
    THEN {Max(Target(n, e).seq, 0) + 1} \cap AnswerSeq ELSE {}

EngineSeqs(e) == IF AnySeq THEN AnswerSeq ELSE {Max(engines[e].seq, 1)}

MCPrepared(n, e, i)       == \E q \in TargetSeqs(n, e) : Prepared(n, e, i, q)
MCBucketDone(n, e, i, k)  == \E q \in TargetSeqs(n, e) : BucketDone(n, e, i, q, k)
MCReady(n, e, i, proof)   == \E q \in TargetSeqs(n, e) : Ready(n, e, i, q, proof)
MCTargetFailed(n, e, i)   == \E q \in TargetSeqs(n, e) : TargetFailed(n, e, i, q)
MCCleaned(n, e, i)        == \E q \in TargetSeqs(n, e) : Cleaned(n, e, i, q)
MCConfirmReclaim(c, e, i, absent)   == \E q \in EngineSeqs(e) : ConfirmReclaim(c, e, i, q, absent)
MCEngineUp(e, i, base, listed)      == \E q \in EngineSeqs(e) : EngineUp(e, i, q, base, listed)
MCEngineRestarted(e, i, base, listed) ==
    \E q \in (IF AnySeq THEN AnswerSeq ELSE {1}) : EngineRestarted(e, i, q, base, listed)
MCEngineJoin(e, i, base, listed) ==
    \E q \in (IF AnySeq THEN AnswerSeq ELSE {1}) : EngineJoin(e, i, q, base, listed)
MCRepairReady(p, e, i, proof)       == \E q \in EngineSeqs(e) : RepairReady(p, e, i, q, proof)
MCRepairFailed(p, e, i)             == \E q \in EngineSeqs(e) : RepairFailed(p, e, i, q)

\* Inventories that list nothing, or one resident.
AtMostOne == {{}} \cup {{r} : r \in Resident}
\* Inventories that list what numbers loaded: any of them, in any combination.
OfNumbers == SUBSET [version : Version, digest : {"a"}, number : Number]
\* Inventories of engines that say nothing but the truth about emptiness.
OnlyEmpty == {{}}

-----------------------------------------------------------------------------
(* Many an argument is only judged, and is in no state afterwards: a token, an incarnation, a proof.  That wrong   *)
(* ones are refused shows in no graph of states.  So a step with a wrong argument has a name of its own,           *)
(* Mistaken..., and none of these may ever happen.                                                                 *)

OfTargetAt(n, e, i) ==
    n \in DOMAIN attempts => (e \in DOMAIN attempts[n].targets => Target(n, e).incarnation = i)
OfUnloadAt(c, e, i) == e \in DOMAIN reclaims[c].unloads => reclaims[c].unloads[e].incarnation = i
OfRepairAt(p, e, i) == p \in DOMAIN repairs => repairs[p].engine = e /\ repairs[p].incarnation = i
DrivenBy(n, t)      == n \in DOMAIN attempts => attempts[n].token = t
RightBucket(n, k)   == n \in DOMAIN attempts => attempts[n].authorized = k
NextBucket(n, e, k) ==      \* the next one, or once more the last one that is known
    n \in DOMAIN attempts => (e \in DOMAIN attempts[n].targets =>
        \/ k = Target(n, e).buckets_done
        \/ k + 1 = Target(n, e).buckets_done /\ Target(n, e).state = "UNKNOWN")
KeyOf(n) == IF n \in DOMAIN attempts THEN attempts[n].key ELSE IF n \in DOMAIN repairs THEN repairs[n].key ELSE 1

MistakenArtifactStored(v, d) == versions[v].digest # d /\ ArtifactStored(v, d)
MistakenAuthorizeBucket(n, t, k) == ~(DrivenBy(n, t) /\ RightBucket(n, k)) /\ AuthorizeBucket(n, t, k)
MistakenCommit(v, t, revision) ==
    ~(DrivenBy(tokens[t], t) /\ KeyOf(tokens[t]) = v /\ revision = default_revision) /\ Commit(v, t, revision)
MistakenAbort(v, t) == ~(DrivenBy(tokens[t], t) /\ KeyOf(tokens[t]) = v) /\ Abort(v, t)
MistakenRollback(v, revision, op) == revision # default_revision /\ Rollback(v, revision, op)
MistakenPrepared(n, e, i) == ~OfTargetAt(n, e, i) /\ MCPrepared(n, e, i)
MistakenBucketDone(n, e, i, k) == ~(OfTargetAt(n, e, i) /\ NextBucket(n, e, k)) /\ MCBucketDone(n, e, i, k)
MistakenReady(n, e, i, proof) == ~(OfTargetAt(n, e, i) /\ proof = RightProof(KeyOf(n))) /\ MCReady(n, e, i, proof)
MistakenTargetFailed(n, e, i) == ~OfTargetAt(n, e, i) /\ MCTargetFailed(n, e, i)
MistakenTargetUnknown(n, e, i) == ~OfTargetAt(n, e, i) /\ TargetUnknown(n, e, i)
MistakenCleaned(n, e, i) == ~OfTargetAt(n, e, i) /\ MCCleaned(n, e, i)
MistakenConfirmReclaim(c, e, i, absent) ==
    ~(OfUnloadAt(c, e, i) /\ absent) /\ MCConfirmReclaim(c, e, i, absent)
MistakenReclaimUnknown(c, e, i) == ~OfUnloadAt(c, e, i) /\ ReclaimUnknown(c, e, i)
MistakenEngineJoin(e, i, base, listed) == base # OurBase /\ MCEngineJoin(e, i, base, listed)
MistakenEngineUp(e, i, base, listed) ==
    ~(base = OurBase /\ engines[e].incarnation = i) /\ MCEngineUp(e, i, base, listed)
MistakenEngineRestarted(e, i, base, listed) == base # OurBase /\ MCEngineRestarted(e, i, base, listed)
MistakenEngineLost(e, i) == engines[e].incarnation # i /\ EngineLost(e, i)
MistakenEngineDead(e, i) == engines[e].incarnation # i /\ EngineDead(e, i)
MistakenQuarantine(e, i) == engines[e].incarnation # i /\ Quarantine(e, i)
MistakenRepairReady(p, e, i, proof) ==
    ~(OfRepairAt(p, e, i) /\ proof = RightProof(KeyOf(p))) /\ MCRepairReady(p, e, i, proof)
MistakenRepairFailed(p, e, i) == ~OfRepairAt(p, e, i) /\ MCRepairFailed(p, e, i)

\* A takeover without the old token is no mistake once the lease is over; it has a name of its own all the same.
MCTakeoverOfSilent(v, t, handover) == ~DrivenBy(versions[v].number, handover) /\ Takeover(v, t, handover)

-----------------------------------------------------------------------------
MCNext ==
    \/ \E v \in In("Reserve", Version), d \in Digest, t \in Token : Reserve(v, d, t)
    \/ \E v \in In("ArtifactStored", Version), d \in Digest :
           ArtifactStored(v, d) \/ MistakenArtifactStored(v, d)
    \/ \E n \in In("AuthorizeBucket", Number), t \in Token, k \in 0..Buckets :
           AuthorizeBucket(n, t, k) \/ MistakenAuthorizeBucket(n, t, k)
    \/ \E v \in In("Commit", Version), t \in Token, revision \in 0..4 :
           Commit(v, t, revision) \/ MistakenCommit(v, t, revision)
    \/ \E v \in In("Abort", Version), t \in Token :
           Abort(v, t) \/ MistakenAbort(v, t)
    \/ \E v \in In("Takeover", Version), t, handover \in Token :
           Takeover(v, t, handover) \/ MCTakeoverOfSilent(v, t, handover)
    \/ \E v \in In("Rollback", Version), op \in Operation, revision \in 0..4 :
           Rollback(v, revision, op) \/ MistakenRollback(v, revision, op)
    \/ \E n \in In("Prepared", Number), e \in Engine, i \in Incarnation :
           MCPrepared(n, e, i) \/ MistakenPrepared(n, e, i)
    \/ \E n \in In("BucketDone", Number), e \in Engine, i \in Incarnation, k \in 0..Buckets :
           MCBucketDone(n, e, i, k) \/ MistakenBucketDone(n, e, i, k)
    \/ \E n \in In("Ready", Number), e \in Engine, i \in Incarnation, proof \in Proof :
           MCReady(n, e, i, proof) \/ MistakenReady(n, e, i, proof)
    \/ \E n \in In("TargetFailed", Number), e \in Engine, i \in Incarnation :
           MCTargetFailed(n, e, i) \/ MistakenTargetFailed(n, e, i)
    \/ \E n \in In("TargetUnknown", Number), e \in Engine, i \in Incarnation :
           TargetUnknown(n, e, i) \/ MistakenTargetUnknown(n, e, i)
    \/ \E n \in In("Cleaned", Number), e \in Engine, i \in Incarnation :
           MCCleaned(n, e, i) \/ MistakenCleaned(n, e, i)
    \/ \E o \in In("OwnerUp", Owner) : OwnerUp(o)
    \/ \E o \in In("Heartbeat", Owner) : Heartbeat(o)
    \/ \E o \in In("OwnerExpired", Owner) : OwnerExpired(o)
    \/ \E o \in In("OwnerGone", Owner) : OwnerGone(o)
    \/ \E once \in In("Recovered", {1}) : Recovered
    \/ \E o \in In("Open", Owner), s \in Sequence : Open(o, s)
    \/ \E o \in In("BindFirst", Owner), s \in Sequence : BindFirst(o, s)
    \/ \E o \in In("BeginClose", Owner), s \in Sequence : BeginClose(o, s)
    \/ \E o \in In("CloseAndRelease", Owner), s \in Sequence : CloseAndRelease(o, s)
    \/ \E v \in In("ClaimReclaim", Version), c \in ReclaimId : ClaimReclaim(v, c)
    \/ \E c \in In("ConfirmReclaim", ReclaimId), e \in Engine, i \in Incarnation, absent \in BOOLEAN :
           MCConfirmReclaim(c, e, i, absent) \/ MistakenConfirmReclaim(c, e, i, absent)
    \/ \E c \in In("ReclaimUnknown", ReclaimId), e \in Engine, i \in Incarnation :
           ReclaimUnknown(c, e, i) \/ MistakenReclaimUnknown(c, e, i)
    \/ \E e \in In("EngineJoin", Engine), i \in Incarnation, base \in Base, listed \in Listings :
           MCEngineJoin(e, i, base, listed) \/ MistakenEngineJoin(e, i, base, listed)
    \/ \E e \in In("EngineUp", Engine), i \in Incarnation, base \in Base, listed \in Listings :
           MCEngineUp(e, i, base, listed) \/ MistakenEngineUp(e, i, base, listed)
    \/ \E e \in In("EngineRestarted", Engine), i \in Incarnation, base \in Base, listed \in Listings :
           MCEngineRestarted(e, i, base, listed) \/ MistakenEngineRestarted(e, i, base, listed)
    \/ \E e \in In("EngineLost", Engine), i \in Incarnation :
           EngineLost(e, i) \/ MistakenEngineLost(e, i)
    \/ \E e \in In("EngineDead", Engine), i \in Incarnation :
           EngineDead(e, i) \/ MistakenEngineDead(e, i)
    \/ \E e \in In("EngineRemove", Engine) : EngineRemove(e)
    \/ \E e \in In("Quarantine", Engine), i \in Incarnation :
           Quarantine(e, i) \/ MistakenQuarantine(e, i)
    \/ \E v \in In("OrderRepair", Version), e \in Engine : OrderRepair(v, e)
    \/ \E p \in In("RepairReady", Number), e \in Engine, i \in Incarnation, proof \in Proof :
           MCRepairReady(p, e, i, proof) \/ MistakenRepairReady(p, e, i, proof)
    \/ \E p \in In("RepairFailed", Number), e \in Engine, i \in Incarnation :
           MCRepairFailed(p, e, i) \/ MistakenRepairFailed(p, e, i)

MCSpec == MCInit /\ [][MCNext]_vars
=============================================================================
