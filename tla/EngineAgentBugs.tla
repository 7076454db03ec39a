--------------------------- MODULE EngineAgentBugs ---------------------------
(***************************************************************************)
(* Mistakes that are tempting.  Each takes the place of one action, or of  *)
(* one definition, in the model of the same name, and must break the       *)
(* property that the manifest names, while TypeOK holds.                   *)
(***************************************************************************)
EXTENDS MCEngineAgent

-----------------------------------------------------------------------------
(* What is over comes back *)

\* Only the latest tombstone is kept.
TombstonesEvicted(to, p, m, n) ==
    LET stray == [name |-> m, number |-> n] IN
    /\ to = Us
    /\ strays[p] \in {NoStray, stray}
    /\ n \in DOMAIN works => NameFor(works[n]) = m
    /\ strays' = [strays EXCEPT ![p] = stray]
    /\ tombstones' = IF strays[p] = NoStray THEN {n} \ {NoNumber} ELSE tombstones
    /\ IF n = NoNumber THEN Without({}, Strangers(m), strays[p] = NoStray)
       ELSE Without({n}, {}, strays[p] = NoStray)
    /\ UNCHANGED <<fence, closed, requests, sealed>>

\* A begin that was on its way during the cleanup is welcome.
BeginAfterCleanup(to, n, v, d, b) ==
    /\ to = Us
    /\ IsNew(n, v, d)
    /\ works' = With(Except(works, Replaced(v)), n,
           [key |-> v, digest |-> d, plan |-> b, state |-> "PREPARED", received |-> 0, doomed |-> FALSE])
    /\ tombstones' = tombstones \cup ReplacedRepairs(v)
    /\ fence' = Max(fence, n)
    /\ seq' = seq + 1
    /\ asked' = {}
    /\ UNCHANGED <<adapters, closed, strays, requests, sealed>>

\* A repair that failed may be tried again under its number.
ReplacedMayReturn(v) == {}

\* A load overtakes the unload that was ordered before it.
LoadOvertakesUnload(n, v, d) ==
    /\ n \notin DOMAIN works
    /\ n \notin tombstones
    /\ HasRoom(v, d)

\* What still loads will be seen when it is there.
UnloadForgetsLoads(v) == {adapters[m].number : m \in {x \in DOMAIN adapters : x.version = v}} \ {NoNumber}

\* Forget at once what still runs.
NothingRuns(N)      == {}
EverythingRests(N)  == N \cap DOMAIN works

-----------------------------------------------------------------------------
(* One removes what is another's *)

\* The name says what the attempt loaded.
CleanupByName(to, n, v) ==
    /\ to = Us
    /\ n \in DOMAIN works => IsAttempt(works[n]) /\ works[n].key = v
    /\ fence' = Max(fence, n)
    /\ Without({n}, {m \in DOMAIN adapters : m.version = v}, n > fence)
    /\ UNCHANGED <<tombstones, closed, strays, requests, sealed>>

-----------------------------------------------------------------------------
(* Something is done twice *)

\* The order to arm came again: post the receive again.
ArmedAgain(to, n, k) ==
    /\ to = Us
    /\ Goes(n)
    /\ works[n].state \in {"PREPARED", "ARMED"}
    /\ k = works[n].received
    /\ k < Buckets(works[n])
    /\ works' = [works EXCEPT ![n].state = "ARMED"]
    /\ asked' = {PostReceive(n, k)}
    /\ UNCHANGED <<seq, fence, tombstones, adapters, closed, strays, requests, sealed>>

\* A bucket that failed is received again.
BucketRetried(n, k, ok) ==
    /\ At(n, "ARMED")
    /\ k = works[n].received
    /\ works' = IF works[n].doomed THEN Except(works, {n})
                ELSE [works EXCEPT ![n].state = "PREPARED", ![n].received = IF ok THEN k + 1 ELSE k]
    /\ asked' = IF works[n].doomed THEN {DropStash(n)} ELSE {}
    /\ seq' = seq + 1
    /\ UNCHANGED <<fence, tombstones, adapters, closed, strays, requests, sealed>>

\* It is still there: unload it again.
UnloadedAgain(a) ==
    CASE a.state = "PRESENT"   -> [a EXCEPT !.state = "UNREGISTERING"]
      [] a.state = "LINGERING" -> [a EXCEPT !.state = "UNLOADING"]
      [] Recounts(a)           -> [a EXCEPT !.state = "COUNTING"]
      [] OTHER                 -> a

-----------------------------------------------------------------------------
(* Something is unloaded that is used, or used that is not proved *)

\* Once it is unregistered nobody uses it.
UnregisteredIsUnused(m) ==
    /\ m \in DOMAIN adapters
    /\ adapters[m].state = "UNREGISTERING"
    /\ adapters' = [adapters EXCEPT ![m].state = "COUNTING"]
    /\ asked' = {CountRequests(m)}
    /\ UNCHANGED <<seq, fence, tombstones, works, closed, strays, requests, sealed>>

\* A negative count is as good as none.
NegativeIsZero(m, count) ==
    /\ m \in DOMAIN adapters
    /\ adapters[m].state = "COUNTING"
    /\ adapters' = [adapters EXCEPT ![m].state = IF count <= 0 THEN "UNLOADING" ELSE "DRAINING"]
    /\ asked' = IF count <= 0 THEN {PhysicalUnload(m, adapters[m].number)} ELSE {}
    /\ UNCHANGED <<seq, fence, tombstones, works, closed, strays, requests, sealed>>

\* What the engine holds it can serve.
PresentServes(m) == m \in DOMAIN adapters /\ adapters[m].state = "PRESENT"

\* A request that was declared absent starts after all.
AcquireSealed(r, m) ==
    /\ requests[r] = NoName
    /\ Serves(m)
    /\ requests' = [requests EXCEPT ![r] = m]
    /\ adapters' = [adapters EXCEPT ![m].refs = @ + 1]
    /\ asked' = {}
    /\ UNCHANGED <<seq, fence, tombstones, works, closed, strays, sealed>>

-----------------------------------------------------------------------------
(* The registry is told what is not so *)

\* What is ordered away is as good as gone.
CleanedAtOnce(to, n) == to = Us /\ n <= fence /\ Answers(<<"Cleaned", n>>)

\* The load was successful: that is enough.
LoadedIsReady(n) ==
    IF n \in DOMAIN works /\ works[n].state \in {"PROBING", "READY"} THEN "Ready" ELSE "Unseen"

-----------------------------------------------------------------------------
(* And two more *)

\* Whatever the engine listed once is true.
ListedAtAnyTime(names, q) ==
    LET vanished == {m \in DOMAIN adapters \ names :
                        adapters[m].state \in {"PRESENT", "LINGERING"} /\ ~IsProbing(m)}
    IN
    /\ vanished # {}
    /\ adapters' = Except(adapters, vanished)
    /\ requests' = [r \in Rid |-> IF requests[r] \in vanished THEN NoName ELSE requests[r]]
    /\ works' = [n \in DOMAIN works |->
           IF \E m \in vanished : adapters[m].number = n THEN [works[n] EXCEPT !.state = "FAILED"] ELSE works[n]]
    /\ seq' = seq + 1
    /\ asked' = {}
    /\ UNCHANGED <<fence, tombstones, closed, strays, sealed>>

\* A slot is taken when something is in it.
UsedIsHeld == Cardinality(DOMAIN adapters)

-----------------------------------------------------------------------------
(* Witnesses: each says that something never happens, and must be found wrong. *)

NothingIsUnloaded      == \A m \in DOMAIN adapters : adapters[m].state # "UNLOADING"
NothingLingers         == \A m \in DOMAIN adapters : adapters[m].state # "LINGERING"
NoCountIsUnknown       == \A m \in DOMAIN adapters : adapters[m].state # "UNKNOWN"
NoRequestIsWaitedFor   == \A m \in DOMAIN adapters : ~(adapters[m].state = "DRAINING" /\ adapters[m].refs > 1)
NoCountLeaks           == \A m \in DOMAIN adapters : ~(adapters[m].state = "DRAINING" /\ adapters[m].refs = 0)
NoStrangerIsRemoved    == \A m \in DOMAIN adapters :
                              ~(adapters[m].number = NoNumber /\ adapters[m].state = "UNLOADING")
NoLoadIsDoomed         == \A n \in DOMAIN works : ~(works[n].state = "LOADING" /\ works[n].doomed)
NoBucketsMakeReady     == \A n \in DOMAIN works : ~(works[n].state = "READY" /\ works[n].received = MaxBuckets)
NobodyTriesAgain       == \A n \in DOMAIN works : ~(works[n].state = "READY" /\ n > 1)
NoFailureIsReplaced    == tombstones = {}
NothingIsSealed        == \A r \in Rid : sealed[r] = NoVersion
NothingIsClosedInVain  == \A v \in Version : closed[v] = NoReclaim \/ DOMAIN adapters # {} \/ DOMAIN works # {}
=============================================================================
