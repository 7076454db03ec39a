--------------------------- MODULE MCLoraRegistry ---------------------------
(***************************************************************************)
(* LoraRegistry in small boxes: each .cfg of models/ says which actions    *)
(* may happen in its box, from which story on, and how answers are         *)
(* numbered.                                                               *)
(***************************************************************************)
EXTENDS LoraRegistry

CONSTANTS
    Happens,     \* names of the actions of this box
    AnySeq,      \* answers carry any Seq; otherwise the next one, or a repeat
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
                !.residents = [v \in Version |-> IF v \in Loaded THEN v ELSE NoNumber]]
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
    IF AnySeq THEN Seq
    ELSE IF n \in DOMAIN attempts /\ e \in DOMAIN attempts[n].targets
    THEN {Max(Target(n, e).seq, 0) + 1} \cap Seq ELSE {}

EngineSeqs(e) == IF AnySeq THEN Seq ELSE {Max(engines[e].seq, 1)}

MCPrepared(n, e, i)       == \E q \in TargetSeqs(n, e) : Prepared(n, e, i, q)
MCBucketDone(n, e, i, k)  == \E q \in TargetSeqs(n, e) : BucketDone(n, e, i, q, k)
MCReady(n, e, i, proof)   == \E q \in TargetSeqs(n, e) : Ready(n, e, i, q, proof)
MCTargetFailed(n, e, i)   == \E q \in TargetSeqs(n, e) : TargetFailed(n, e, i, q)
MCCleaned(n, e, i)        == \E q \in TargetSeqs(n, e) : Cleaned(n, e, i, q)
MCConfirmReclaim(c, e, i, absent)   == \E q \in EngineSeqs(e) : ConfirmReclaim(c, e, i, q, absent)
MCEngineUp(e, i, base, listed)      == \E q \in EngineSeqs(e) : EngineUp(e, i, q, base, listed)
MCEngineRestarted(e, i, base, listed) ==
    \E q \in (IF AnySeq THEN Seq ELSE {1}) : EngineRestarted(e, i, q, base, listed)
MCEngineJoin(e, i, base, listed) ==
    \E q \in (IF AnySeq THEN Seq ELSE {1}) : EngineJoin(e, i, q, base, listed)
MCRepairReady(p, e, i, proof)       == \E q \in EngineSeqs(e) : RepairReady(p, e, i, q, proof)
MCRepairFailed(p, e, i)             == \E q \in EngineSeqs(e) : RepairFailed(p, e, i, q)

\* Inventories that list nothing, or one resident.
AtMostOne == {{}} \cup {{r} : r \in Resident}
\* Inventories that list what numbers loaded: any of them, in any combination.
OfNumbers == SUBSET [version : Version, digest : {"a"}, number : Number]
\* Inventories of engines that say nothing but the truth about emptiness.
OnlyEmpty == {{}}

-----------------------------------------------------------------------------
MCNext ==
    \/ \E v \in In("Reserve", Version), d \in Digest, t \in Token : Reserve(v, d, t)
    \/ \E v \in In("ArtifactStored", Version), d \in Digest : ArtifactStored(v, d)
    \/ \E n \in In("AuthorizeBucket", Number), t \in Token, k \in 0..Buckets : AuthorizeBucket(n, t, k)
    \/ \E v \in In("Commit", Version), t \in Token, revision \in 0..4 : Commit(v, t, revision)
    \/ \E v \in In("Abort", Version), t \in Token : Abort(v, t)
    \/ \E v \in In("Takeover", Version), t, handover \in Token : Takeover(v, t, handover)
    \/ \E v \in In("Rollback", Version), op \in Operation, revision \in 0..4 : Rollback(v, revision, op)
    \/ \E n \in In("Prepared", Number), e \in Engine, i \in Incarnation : MCPrepared(n, e, i)
    \/ \E n \in In("BucketDone", Number), e \in Engine, i \in Incarnation, k \in 0..Buckets : MCBucketDone(n, e, i, k)
    \/ \E n \in In("Ready", Number), e \in Engine, i \in Incarnation, proof \in Proof : MCReady(n, e, i, proof)
    \/ \E n \in In("TargetFailed", Number), e \in Engine, i \in Incarnation : MCTargetFailed(n, e, i)
    \/ \E n \in In("TargetUnknown", Number), e \in Engine, i \in Incarnation : TargetUnknown(n, e, i)
    \/ \E n \in In("Cleaned", Number), e \in Engine, i \in Incarnation : MCCleaned(n, e, i)
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
           MCConfirmReclaim(c, e, i, absent)
    \/ \E c \in In("ReclaimUnknown", ReclaimId), e \in Engine, i \in Incarnation : ReclaimUnknown(c, e, i)
    \/ \E e \in In("EngineJoin", Engine), i \in Incarnation, base \in Base, listed \in Listings :
           MCEngineJoin(e, i, base, listed)
    \/ \E e \in In("EngineUp", Engine), i \in Incarnation, base \in Base, listed \in Listings :
           MCEngineUp(e, i, base, listed)
    \/ \E e \in In("EngineRestarted", Engine), i \in Incarnation, base \in Base, listed \in Listings :
           MCEngineRestarted(e, i, base, listed)
    \/ \E e \in In("EngineLost", Engine), i \in Incarnation : EngineLost(e, i)
    \/ \E e \in In("EngineDead", Engine), i \in Incarnation : EngineDead(e, i)
    \/ \E e \in In("EngineRemove", Engine) : EngineRemove(e)
    \/ \E e \in In("Quarantine", Engine), i \in Incarnation : Quarantine(e, i)
    \/ \E v \in In("OrderRepair", Version), e \in Engine : OrderRepair(v, e)
    \/ \E p \in In("RepairReady", Number), e \in Engine, i \in Incarnation, proof \in Proof :
           MCRepairReady(p, e, i, proof)
    \/ \E p \in In("RepairFailed", Number), e \in Engine, i \in Incarnation : MCRepairFailed(p, e, i)

MCSpec == MCInit /\ [][MCNext]_vars
=============================================================================
