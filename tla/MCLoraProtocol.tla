--------------------------- MODULE MCLoraProtocol ---------------------------
(***************************************************************************)
(* LoraProtocol in small worlds: each .cfg of models/protocol says how     *)
(* large the world is, what may go wrong in it, and what happened before.  *)
(***************************************************************************)
EXTENDS LoraProtocolRefines

CONSTANTS
    Published,    \* how many versions were published before, one after another, on all engines,
    BoundBefore   \* and whether session 0 was bound to the last

ASSUME Published > 0 => Buckets = 0
ASSUME BoundBefore => Published > 0

\* Names.
Tokens     == Number \X (0..2)
Contents   == <<"a", "b", "c">>
Content(v) == Contents[v]
Reclaims   == <<"c1", "c2", "c3">>
ReclaimIdOf(v) == Reclaims[v]
Rollbacks  == Version \X (1..4)
RollbackId(v, revision) == <<v, revision>>

Before  == 1..Published

StoryVersions ==
    [v \in Version |->
        [state |-> CASE v < Published -> "RETIRED" [] v = Published -> "PUBLISHED" [] OTHER -> "NONE",
         digest |-> IF v \in Before THEN ContentOf(v) ELSE NoDigest,
         number |-> IF v \in Before THEN v ELSE NoNumber,
         session_refs |-> IF BoundBefore /\ v = Published THEN 1 ELSE 0,
         published_revision |-> IF v \in Before THEN v ELSE 0,
         reclaim_id |-> NoReclaim,
         artifact |-> v \in Before,
         revoked |-> FALSE]]

StoryProcess ==
    [NewProcess(1) EXCEPT
        !.seq = 3 * Published,
        !.fence = Published,
        !.works = [n \in Before |->
            [key |-> n, repair |-> FALSE, state |-> "READY", received |-> 0, doomed |-> FALSE]],
        !.adapters = [v \in Before |-> [number |-> v, state |-> "PRESENT", refs |-> 0]],
        !.loaded = [v \in Before |-> [number |-> v, content |-> v]],
        !.begun = {<<"load", n, 0>> : n \in Before}]

MCInit ==
    /\ now = 0
    /\ versions = StoryVersions
    /\ default = Published
    /\ default_revision = Published
    /\ owners = [o \in Owner |->
           [state |-> "LIVE", lease_until |-> OwnerLease,
            sessions |-> [s \in Sequence |->
                IF BoundBefore /\ s = 0 THEN [state |-> "BOUND", binding |-> Published]
                ELSE [state |-> "NONE", binding |-> NoVersion]]]]
    /\ engines = [e \in Engine |-> [FreshEngine("UP", 1) EXCEPT
           !.seq = 3 * Published,
           !.residents = [v \in Version |->
               IF v \in Before THEN [digest |-> ContentOf(v), number |-> v] ELSE NoResident]]]
    /\ attempts = [n \in Before |->
           [key |-> n, token |-> <<n, 0>>, state |-> "COMMITTED", revision |-> n - 1, driver_until |-> DriverLease,
            targets |-> [e \in Engine |->
                [incarnation |-> 1, state |-> "READY", buckets_done |-> 0, seq |-> 3 * n]],
            authorized |-> 0, taken_over |-> FALSE]]
    /\ reclaims = [c \in ReclaimId |-> [state |-> "NONE", key |-> NoVersion, unloads |-> Empty]]
    /\ repairs = Empty
    /\ tokens = [t \in Token |-> IF \E n \in Before : t = <<n, 0>> THEN t[1] ELSE NoNumber]
    /\ rollbacks = {}
    /\ next_number = Published + 1
    /\ agents = [e \in Engine |-> StoryProcess]
    /\ driver = [token |-> NoToken, armed |-> {}, permitted |-> FALSE, sent |-> {}]
    /\ guard = [lost |-> FALSE, next |-> IF BoundBefore THEN 1 ELSE 0,
                sessions |-> IF BoundBefore THEN [s \in {0} |-> NewSession(Published)] ELSE Empty]
    /\ network = {}
    /\ left = [fault \in Once \cup Twice |-> IF fault \in Twice THEN 2 ELSE 1]

MCSpec     == MCInit /\ [][ProtocolNext]_world
MCFairSpec == MCSpec /\ Fairness

\* A condition of fairness that is left out.
Dropped == TRUE
=============================================================================
