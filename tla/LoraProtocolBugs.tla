-------------------------- MODULE LoraProtocolBugs --------------------------
(***************************************************************************)
(* Tempting mistakes of the whole protocol: the weak variants of           *)
(* lorafsm/system.  Each takes the place of one definition in the model of *)
(* the same name, and must break the property that the manifest names,     *)
(* while ProtocolTypeOK holds.                                             *)
(***************************************************************************)
EXTENDS MCLoraProtocol

-----------------------------------------------------------------------------
(* The registry *)

\* Keep the newest versions and reclaim the rest, held by sessions or not.
WindowRetention(v, c) ==
    /\ Arrives
    /\ reclaims[c].state = "NONE"
    /\ versions[v].state = "RETIRED"
    /\ reclaims' = DoneReclaims([reclaims EXCEPT ![c] =
           [state |-> "OPEN", key |-> v,
            unloads |-> [e \in Members |-> [incarnation |-> engines[e].incarnation, state |-> "ORDERED"]]]])
    /\ versions' = FreedSlots([versions EXCEPT ![v].state = "RECLAIMING", ![v].reclaim_id = c], attempts, reclaims')
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<default, default_revision, owners, attempts, repairs, tokens, rollbacks, next_number>>

\* Nothing that an engine says later takes it out of UNKNOWN.
UnknownIsFatal(n, e, i) ==      \* for OpenTarget
    /\ n \in DOMAIN attempts
    /\ attempts[n].state = "OPEN"
    /\ e \in DOMAIN attempts[n].targets
    /\ Target(n, e).incarnation = i
    /\ ~Doomed(n, e)
    /\ Target(n, e).state # "UNKNOWN"

UnknownIsNeverClean(n, e, i, q) ==      \* for Cleaned
    /\ Arrives
    /\ n \in DOMAIN attempts
    /\ attempts[n].state = "ABORTED"
    /\ e \in DOMAIN attempts[n].targets
    /\ Target(n, e).incarnation = i
    /\ Target(n, e).state \notin {"CLEANED", "UNKNOWN"}
    /\ q > Target(n, e).seq
    /\ attempts' = CleanAttempts([attempts EXCEPT ![n].targets[e].state = "CLEANED", ![n].targets[e].seq = q])
    /\ versions' = FreedSlots(versions, attempts', reclaims)
    /\ engines' = [engines EXCEPT ![e] = Without(Seen(@, q), n)]
    /\ UNCHANGED <<default, default_revision, owners, reclaims, repairs, tokens, rollbacks, next_number>>

\* An engine's receipt confirms every reclaim that waits for that engine.
ReclaimWithoutId(c, e, i, q, absent) ==
    LET waiting == {x \in ReclaimId : e \in DOMAIN reclaims[x].unloads /\ reclaims[x].unloads[e].state # "UNLOADED"}
        keys    == {reclaims[x].key : x \in waiting}
    IN
    /\ Arrives
    /\ c \in waiting
    /\ reclaims' = DoneReclaims([x \in ReclaimId |->
           IF x \in waiting THEN [reclaims[x] EXCEPT !.unloads[e].state = "UNLOADED"] ELSE reclaims[x]])
    /\ versions' = FreedSlots(versions, attempts, reclaims')
    /\ engines' = [engines EXCEPT ![e] = [Seen(@, q) EXCEPT
           !.residents = [v \in Version |-> IF v \in keys THEN NoResident ELSE @[v]]]]
    /\ UNCHANGED <<default, default_revision, owners, attempts, repairs, tokens, rollbacks, next_number>>

\* One READY is enough.
OneReadyCounts(n, e) == \E x \in DOMAIN attempts[n].targets : Target(n, x).state = "READY"

\* A closed session is forgotten, and a late copy of its first bind opens it again.
TombstoneEvicted(o, s) ==
    /\ Arrives
    /\ owners[o].state = "LIVE"
    /\ owners[o].sessions[s].state \in {"NONE", "OPEN", "CLOSED"}
    /\ default # NoVersion
    /\ owners' = [owners EXCEPT ![o].sessions[s] = [state |-> "BOUND", binding |-> default]]
    /\ versions' = [versions EXCEPT ![default].session_refs = @ + 1]
    /\ UNCHANGED <<default, default_revision, engines, attempts, reclaims, repairs, tokens, rollbacks, next_number>>

\* A late copy of a reserve opens a new attempt of a failed version.
ReservedAgain(v, d, t) ==
    /\ Arrives
    /\ versions[v].state \in {"NONE", "FAILED_CLEAN"}
    /\ Unresolved = {}
    /\ next_number \in Number
    /\ attempts' = With(attempts, next_number,
           [key |-> v, token |-> t, state |-> "OPEN", revision |-> default_revision, driver_until |-> DriverLease,
            targets |-> [e \in {x \in Engine : engines[x].state \in Alive} |->
                [incarnation |-> engines[e].incarnation, state |-> "RESERVED", buckets_done |-> 0, seq |-> -1]],
            authorized |-> 0, taken_over |-> FALSE])
    /\ versions' = [versions EXCEPT ![v] = [@ EXCEPT !.state = "LOADING", !.digest = d, !.number = next_number]]
    /\ tokens' = [tokens EXCEPT ![t] = next_number]
    /\ next_number' = next_number + 1
    /\ UNCHANGED <<default, default_revision, owners, engines, reclaims, repairs, rollbacks>>

\* An inventory counts, however old it is.
OldInventory(e, i, q, base, listed) ==
    /\ Arrives
    /\ e \in Members
    /\ i = engines[e].incarnation
    /\ engines[e].state # "DEAD"
    /\ LET back == [engines[e] EXCEPT !.state = IF @ = "LOST" THEN "UP" ELSE @]
       IN Settle(e, Reconciled(e, back, q, listed, attempts, reclaims, repairs), attempts, reclaims)
    /\ UNCHANGED repairs

-----------------------------------------------------------------------------
(* The engine *)

\* All versions are loaded under one name; a new one replaces what is there.
SameNameSwap(p, n, ok, content) ==
    LET v == p.works[n].key
        t == [Fact(p) EXCEPT !.todo = @ \ {StartLoad(n)}]
        q == IF ok THEN [t EXCEPT !.adapters = With(@, v, [number |-> n, state |-> "PRESENT", refs |-> 0]),
                                  !.loaded = [w \in DOMAIN @ \cup {v} |->
                                      [number |-> IF w = v THEN n ELSE @[w].number, content |-> content]]] ELSE t
    IN IF p.works[n].doomed
       THEN LET r == [q EXCEPT !.works = Less(@, {n})] IN IF v \in DOMAIN r.adapters THEN Going(r, v) ELSE r
       ELSE IF ok THEN Todo([q EXCEPT !.works[n].state = "PROBING"], {Probe(n)})
       ELSE [q EXCEPT !.works[n].state = "FAILED"]

\* READY says that the name is served; what was loaded is not compared with the digest.
ContentIsTrusted == FALSE

\* The agent accepts a begin whose number is over.
BeginAfterCleanup(e, p, n, v) ==
    IF v \in p.closed THEN Refuses(e, p, n)
    ELSE IF n \in DOMAIN p.works THEN
        IF p.works[n].doomed THEN Refuses(e, p, n) ELSE Saying(p, FactOf(e, p, n))
    ELSE IF ~HasRoom(p, v) THEN Refuses(e, p, n)
    ELSE LET q == [Working(Replacing(Fact(p), v), n, v, FALSE, "PREPARED") EXCEPT !.fence = n]
         IN Saying(q, {About("Prepared", e, q, n)})

\* A late copy of begin is answered as the first was, under the seq of now.
OldFactNewSeq(e, p, n, v) ==
    IF n \in DOMAIN p.works /\ ~p.works[n].doomed /\ p.works[n].state # "FAILED"
    THEN Saying(p, {About("Prepared", e, p, n)})
    ELSE IF n \in DOMAIN p.works \/ v \in p.closed \/ IsOver(p, n) \/ ~HasRoom(p, v) THEN Refuses(e, p, n)
    ELSE LET q == [Working(Replacing(Fact(p), v), n, v, FALSE, "PREPARED") EXCEPT !.fence = n]
         IN Saying(q, {About("Prepared", e, q, n)})

\* A cleanup removes what has the name, whichever number loaded it.
CleanupByName(e, p, n, v) ==
    LET fenced == IF n > p.fence THEN [Fact(p) EXCEPT !.fence = n] ELSE p
        N == {n} \cup {p.adapters[x].number : x \in {v} \cap DOMAIN p.adapters}
        q == AllGoing(fenced, N)
    IN IF NothingOf(q, N) THEN Saying(q, {About("Cleaned", e, q, n)})
       ELSE IF IsStuck(p, q, N) THEN Saying(q, {SaysUnknown(e, q, n)}) ELSE Silent(q)

\* The agent loads a key that was closed on this incarnation.
LoadOvertakesUnload(e, p, n, v) ==
    LET refused == Saying(p, {About("RepairFailed", e, p, n)}) IN
    IF n \in DOMAIN p.works THEN IF p.works[n].doomed THEN refused ELSE Saying(p, FactOf(e, p, n))
    ELSE IF n \in p.tombstones \/ ~HasRoom(p, v) THEN refused
    ELSE Silent(Loading(Working(Replacing(Fact(p), v), n, v, TRUE, "LOADING"), n))

-----------------------------------------------------------------------------
(* The driver *)

\* It broadcasts without waiting until every target has armed the bucket.
WaitsForNobody(n) == {}

-----------------------------------------------------------------------------
(* Fairness without one word: the talk with somebody is not delivered. *)

Heard(who) == \A e \in Engine : WF_world(DeliverTalk(who, e))

PublisherUnheard(who) == who # "publisher" => Heard(who)
ReclaimerUnheard(who) == who # "reclaimer" => Heard(who)
RepairerUnheard(who)  == who # "repairer"  => Heard(who)
KeeperUnheard(who)    == who # "keeper"    => Heard(who)
OwnerUnheard(who)     == who # "owner"     => Heard(who)

NeverAuthorized    == WF_world(Broadcast)       \* for FairDriver
NeverBroadcast     == WF_world(Authorize)
NeverBegunToClose  == \A s \in Sequence : WF_world(Close(s))       \* for FairClosers
NeverClosed        == \A s \in Sequence : WF_world(BeginToClose(s))

-----------------------------------------------------------------------------
(* Witnesses: the opposite of each must be reachable. *)

NothingIsReclaimed    == \A v \in Version : versions[v].state # "RECLAIMED"
NoRepairServes        == \A p \in DOMAIN repairs : repairs[p].state # "READY"
NoStrayIsRemoved      == \A e \in Engine : agents[e].strays = {}
NothingIsHandedOver   == \A n \in DOMAIN attempts : ~(attempts[n].taken_over /\ attempts[n].state = "COMMITTED")
NoRequestIsSealed     == \A e \in Engine : agents[e].sealed = Empty
NoLoadIsDoomed        == \A e \in Engine : \A n \in DOMAIN agents[e].works : ~agents[e].works[n].doomed
NoUnloadWaits         == \A e \in Engine : \A v \in DOMAIN agents[e].adapters : agents[e].adapters[v].state # "DRAINING"
NobodyIsQuarantined   == \A e \in Engine : engines[e].state # "QUARANTINED"
NothingFailsAndReturns ==
    \A n \in OpenIn(attempts) : ~\E m \in DOMAIN attempts : m < n /\ attempts[m].key = attempts[n].key
=============================================================================
