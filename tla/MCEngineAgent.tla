---------------------------- MODULE MCEngineAgent ----------------------------
(***************************************************************************)
(* EngineAgent in small boxes: each .cfg of models/agent says which inputs *)
(* may come in its box.  An executor's result may come at any time, be it  *)
(* good or bad; whether it is waited for is the agent's to judge.          *)
(***************************************************************************)
EXTENDS EngineAgent

CONSTANTS
    Happens,      \* names of the inputs of this box
    Attempts,     \* the numbers that the registry gave to attempts,
    Repairs,      \* and to repairs;
    KeyOf(_),     \* the version that each is for
    Plans,        \* buckets that an attempt may send
    Counts,       \* what the engine may count
    MaxSeq,       \* listings come up to here: each may be news
    Listings,     \* what they may list
    StrayNames    \* what a stray order may name

In(name, S) == IF name \in Happens THEN S ELSE {}

\* Whose number it is.
AllOfOne(n) == 1
OneEach(n)  == n
OneTwoOne(n) == IF n = 2 THEN 2 ELSE 1

\* What the engine may count.
AnyCount == {-1, 0, 1}
OnlyZero == {0}

\* What an engine may list, and what may be a stray.
AnyNames     == SUBSET Name
OnlyManaged  == SUBSET Managed
NothingOrAll == {{}, Name}

\* Whatever an order does not say rightly is refused.  Much of that shows in no graph of states: whom the order is
\* for, a bucket, the seq of a listing.  So a step with a mistake has this name, and it may never happen.
Mistaken ==
    /\ TRUE
    /\ \/ \E to \in Address \ {Us}, v \in Version, d \in Digest :
              \/ \E n \in In("Begin", Attempts), b \in Plans : Begin(to, n, v, d, b)
              \/ \E n \in In("End", Attempts) : End(to, n, v, d)
              \/ \E n \in In("Cleanup", Attempts) : Cleanup(to, n, v)
              \/ \E n \in In("Load", Repairs) : Load(to, n, v, d)
              \/ \E c \in In("Unload", ReclaimId) : Unload(to, v, d, c)
              \/ \E n \in In("AskStatus", Number) : AskStatus(to, n)
              \/ \E n \in In("Cleaned", Number) : Cleaned(to, n)
              \/ \E c \in In("Unloaded", ReclaimId) : Unloaded(to, v, d, c)
       \/ \E to \in Address \ {Us}, n \in In("ArmBucket", Number), k \in 0..MaxBuckets : ArmBucket(to, n, k)
       \/ \E to \in Address \ {Us}, p \in In("UnloadStray", OperationKey), m \in StrayNames,
             n \in Number \cup {NoNumber} : UnloadStray(to, p, m, n)
       \/ \E to \in Address \ {Us}, p \in In("StrayGone", OperationKey), m \in StrayNames,
             n \in Number \cup {NoNumber} : StrayGone(to, p, m, n)
       \/ \E n \in In("End", Number), v \in Version, d \in Digest :
              End(Us, n, v, d) /\ (v # works[n].key \/ d # works[n].digest)
       \/ \E n \in In("Cleanup", Number), v \in Version :
              n \in DOMAIN works /\ v # works[n].key /\ Cleanup(Us, n, v)
       \/ \E v \in In("Unload", Version), d \in Digest, c \in ReclaimId :
              closed[v] \notin {NoReclaim, c} /\ Unload(Us, v, d, c)
       \/ \E p \in In("UnloadStray", OperationKey), m \in StrayNames, n \in Number \cup {NoNumber} :
              strays[p] \notin {NoStray, [name |-> m, number |-> n]} /\ UnloadStray(Us, p, m, n)
       \/ \E n \in In("BucketFinished", Number), k \in 0..MaxBuckets, ok \in BOOLEAN :
              BucketFinished(n, k, ok) /\ k # works[n].received
       \/ \E names \in In("Listed", Listings), q \in {seq - 1, seq + 1} : Listed(names, q)

MCEnd(n, v, d) == n \in DOMAIN works /\ v = works[n].key /\ d = works[n].digest /\ End(Us, n, v, d)
MCCleanup(n, v) == (n \in DOMAIN works => v = works[n].key) /\ Cleanup(Us, n, v)
MCBucketFinished(n, k, ok) == n \in DOMAIN works /\ k = works[n].received /\ BucketFinished(n, k, ok)
MCUnload(v, d, c) == closed[v] \in {NoReclaim, c} /\ Unload(Us, v, d, c)
MCUnloadStray(p, m, n) == strays[p] \in {NoStray, [name |-> m, number |-> n]} /\ UnloadStray(Us, p, m, n)
MCListed(names) == seq < MaxSeq /\ Listed(names, seq)

MCNext ==
    \/ \E n \in In("Begin", Attempts), d \in Digest, b \in Plans : Begin(Us, n, KeyOf(n), d, b)
    \/ \E n \in In("ArmBucket", Number), k \in 0..MaxBuckets : ArmBucket(Us, n, k)
    \/ \E n \in In("End", Number), v \in Version, d \in Digest : MCEnd(n, v, d)
    \/ \E n \in In("Cleanup", Number), v \in Version : MCCleanup(n, v)
    \/ \E n \in In("Load", Repairs), d \in Digest : Load(Us, n, KeyOf(n), d)
    \/ \E p \in In("UnloadStray", OperationKey), m \in StrayNames, n \in Number \cup {NoNumber} :
           MCUnloadStray(p, m, n)
    \/ \E v \in In("Unload", Version), d \in Digest, c \in ReclaimId : MCUnload(v, d, c)
    \/ \E n \in In("AskStatus", Number) : AskStatus(Us, n)
    \/ \E n \in In("Cleaned", Number) : Cleaned(Us, n)
    \/ \E v \in In("Unloaded", Version), d \in Digest, c \in ReclaimId : Unloaded(Us, v, d, c)
    \/ \E p \in In("StrayGone", OperationKey), m \in StrayNames, n \in Number \cup {NoNumber} :
           StrayGone(Us, p, m, n)
    \/ \E r \in In("Acquire", Rid), m \in Name : Acquire(r, m)
    \/ \E r \in In("Release", Rid) : Release(r)
    \/ \E r \in In("Settle", Rid), v \in Version : Settle(r, v)
    \/ \E n \in In("BucketFinished", Number), k \in 0..MaxBuckets, ok \in BOOLEAN : MCBucketFinished(n, k, ok)
    \/ \E n \in In("LoadFinished", Number), ok \in BOOLEAN : LoadFinished(n, ok)
    \/ \E n \in In("ProbeFinished", Number), ok \in BOOLEAN : ProbeFinished(n, ok)
    \/ \E m \in In("Unregistered", Name) : Unregistered(m)
    \/ \E m \in In("Counted", Name), count \in Counts : Counted(m, count)
    \/ \E m \in In("UnloadFinished", Name), absent \in BOOLEAN : UnloadFinished(m, absent)
    \/ \E names \in In("Listed", Listings) : MCListed(names)
    \/ Mistaken

MCSpec == Init /\ [][MCNext]_vars

-----------------------------------------------------------------------------
(* The registry gives each number to one version, once.  Then what is over is over for ever.                        *)

Over(n) ==
    /\ n \notin DOMAIN works
    /\ n \in tombstones \/ closed[KeyOf(n)] # NoReclaim \/ (n \in Attempts /\ n <= fence)

OverIsForEver ==              \* I8, I12: no load, no collective, no READY of it any more
    [][\A n \in Attempts \cup Repairs :
           /\ Over(n) => Over(n)'
           /\ n \in DOMAIN works => (n \in DOMAIN works' \/ Over(n)')]_vars

OnlyTheOverIsRemoved ==       \* I6: nothing else is
    \A m \in DOMAIN adapters :
        (adapters[m].number # NoNumber /\ adapters[m].state # "PRESENT") => Over(adapters[m].number)
=============================================================================
