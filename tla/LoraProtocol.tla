---------------------------- MODULE LoraProtocol ----------------------------
(***************************************************************************)
(* The whole protocol: registry, engines, the publisher's, the reclaimer's *)
(* and the repairer's policy, the owner of the sessions, and the network   *)
(* between them, which delivers in any order.                              *)
(*                                                                         *)
(* An answer is the reply to an order; a policy gives an order again only  *)
(* when neither it nor a reply to it is on its way.  Time stands still: a  *)
(* deadline and a silence are faults.  What may go wrong has a budget,     *)
(* which is spent inside the action, so that it goes wrong so often and    *)
(* then no more.                                                           *)
(***************************************************************************)
EXTENDS LoraProtocolEngine

CONSTANTS
    TheOwner,        \* the process that holds the sessions
    Requests,        \* requests that a session sends at most
    Once, Twice,     \* the faults that may happen once, and twice
    OpensFirst,      \* whether a session opens in an action of its own, before it binds
    ContentOf(_),    \* the digest of each version,
    ReclaimOf(_),    \* the id of its reclaim,
    RollbackOf(_, _) \* and the id of a rollback to it

VARIABLES
    agents,          \* the process that runs on each engine
    driver,          \* what the publisher's process knows
    guard,           \* what the owner's process knows of its sessions
    network,         \* what is on its way: orders, answers, requests
    left             \* how often each fault may still happen

registry == vars
world    == <<registry, agents, driver, guard, network, left>>

NoToken  == <<0, 0>>       \* a token is a number and how often it was handed over
Policies == {"publisher", "reclaimer", "repairer"}

-----------------------------------------------------------------------------
(* What the variables may hold *)

Orders   == {"Begin", "ArmBucket", "ReceiveBucket", "End", "AskStatus", "Cleanup", "Load", "Unload", "UnloadStray",
             "TakeInventory"}
Events   == {"Prepared", "BucketDone", "Ready", "TargetFailed", "TargetUnknown", "Cleaned", "RepairReady",
             "RepairFailed", "ConfirmReclaim", "ReclaimUnknown", "EngineUp", "Quarantine"}
Messages == Orders \cup Events \cup {"ArmedBy", "Request"}

GuardedSession ==
    [binding : Version \cup {NoVersion},
     finalizing : BOOLEAN,
     sent : Nat,                              \* how many requests were sent
     rid : Rid \cup {NoRid},                  \* of the one that may be running
     admission : {"NONE", "SENT", "RUNNING", "UNKNOWN"}]

ProtocolTypeOK ==
    /\ TypeOK
    /\ \A e \in Engine : IsProcess(agents[e])
    /\ driver.token \in Token \cup {NoToken}  \* its authority over the open attempt; none: or lost in a crash
    /\ driver.armed \subseteq Engine          \* who said so for the next bucket
    /\ driver.permitted \in BOOLEAN           \* the next bucket was authorised, and is not broadcast yet
    /\ driver.sent \subseteq (Number \X (0..Buckets))    \* what was broadcast, physically, by anybody
    /\ guard.lost \in BOOLEAN                 \* the owner has ended
    /\ guard.next \in Nat                     \* the next session
    /\ \A s \in DOMAIN guard.sessions : s \in Sequence /\ guard.sessions[s] \in GuardedSession
    /\ \A m \in network : m.type \in Messages /\ m.engine \in Engine
    /\ \A fault \in DOMAIN left : left[fault] \in Nat

ProtocolInit ==       \* the fleet has joined, the owner is there; nothing is published
    /\ now = 0
    /\ versions = [v \in Version |->
           [state |-> "NONE", digest |-> NoDigest, number |-> NoNumber, session_refs |-> 0,
            published_revision |-> 0, reclaim_id |-> NoReclaim, artifact |-> FALSE, revoked |-> FALSE]]
    /\ default = NoVersion
    /\ default_revision = 0
    /\ owners = [o \in Owner |->
           [state |-> "LIVE", lease_until |-> OwnerLease,
            sessions |-> [s \in Sequence |-> [state |-> "NONE", binding |-> NoVersion]]]]
    /\ engines = [e \in Engine |-> FreshEngine("UP", 1)]
    /\ attempts = Empty
    /\ reclaims = [c \in ReclaimId |-> [state |-> "NONE", key |-> NoVersion, unloads |-> Empty]]
    /\ repairs = Empty
    /\ tokens = [t \in Token |-> NoNumber]
    /\ rollbacks = {}
    /\ next_number = 1
    /\ agents = [e \in Engine |-> NewProcess(1)]
    /\ driver = [token |-> NoToken, armed |-> {}, permitted |-> FALSE, sent |-> {}]
    /\ guard = [lost |-> FALSE, next |-> 0, sessions |-> Empty]
    /\ network = {}
    /\ left = [fault \in Once \cup Twice |-> IF fault \in Twice THEN 2 ELSE 1]

-----------------------------------------------------------------------------
(* Budgets *)

May(fault)   == fault \in DOMAIN left /\ left[fault] > 0
Spend(fault) == left' = [left EXCEPT ![fault] = @ - 1]
SpendUnless(free, fault) == IF free THEN UNCHANGED left ELSE May(fault) /\ Spend(fault)

-----------------------------------------------------------------------------
(* The registry hears something: it does it, or refuses and changes nothing.  What the driver remembers of an attempt *)
(* is worth nothing after its end.                                                                                    *)

OpenIn(as) == {n \in DOMAIN as : as[n].state = "OPEN"}

Hears(event, d) ==
    /\ event \/ (~ENABLED event /\ UNCHANGED registry)
    /\ driver' = IF OpenIn(attempts') # {} THEN d
                 ELSE [token |-> NoToken, armed |-> {}, permitted |-> FALSE, sent |-> d.sent]

ListedIn(m) == {[version |-> r[1], digest |-> ContentOf(r[1]), number |-> r[2]] : r \in m.residents}

ProofIn(m)  == [version |-> m.key, digest |-> ContentOf(m.key), base |-> OurBase, probe |-> TRUE]

Event(m) ==
    CASE m.type = "Prepared"       -> Prepared(m.number, m.engine, m.incarnation, m.seq)
      [] m.type = "BucketDone"     -> BucketDone(m.number, m.engine, m.incarnation, m.seq, m.bucket)
      [] m.type = "Ready"          -> Ready(m.number, m.engine, m.incarnation, m.seq, ProofIn(m))
      [] m.type = "TargetFailed"   -> TargetFailed(m.number, m.engine, m.incarnation, m.seq)
      [] m.type = "TargetUnknown"  -> TargetUnknown(m.number, m.engine, m.incarnation)
      [] m.type = "Cleaned"        -> Cleaned(m.number, m.engine, m.incarnation, m.seq)
      [] m.type = "RepairReady"    -> RepairReady(m.number, m.engine, m.incarnation, m.seq, ProofIn(m))
      [] m.type = "RepairFailed"   -> RepairFailed(m.number, m.engine, m.incarnation, m.seq)
      [] m.type = "ConfirmReclaim" -> ConfirmReclaim(ReclaimOf(m.key), m.engine, m.incarnation, m.seq, TRUE)
      [] m.type = "ReclaimUnknown" -> ReclaimUnknown(ReclaimOf(m.key), m.engine, m.incarnation)
      [] m.type = "EngineUp"       -> \/ EngineUp(m.engine, m.incarnation, m.seq, OurBase, ListedIn(m))
                                      \/ EngineRestarted(m.engine, m.incarnation, m.seq, OurBase, ListedIn(m))
      [] m.type = "Quarantine"     -> Quarantine(m.engine, m.incarnation)

-----------------------------------------------------------------------------
(* The publisher's policy: what it wants now, from what the registry shows *)

Unready(n) == {e \in DOMAIN attempts[n].targets : ~ReadyCounts(n, e)}

ShouldAbort(n) ==
    \/ attempts[n].revision # default_revision
    \/ \E e \in DOMAIN attempts[n].targets :
           Doomed(n, e) \/ Target(n, e).state = "FAILED" \/ engines[e].state = "QUARANTINED"
    \/ attempts[n].taken_over /\ Unready(n) # {}

Drives(n) == n \in OpenIn(attempts) /\ attempts[n].token = driver.token

GoesOn(n) == Drives(n) /\ ~ShouldAbort(n) /\ Unready(n) # {}

To(type, n, e) ==
    [type |-> type, engine |-> e, incarnation |-> Target(n, e).incarnation, number |-> n, key |-> attempts[n].key]

ToBucket(type, n, e, k) ==
    [type |-> type, engine |-> e, incarnation |-> Target(n, e).incarnation, number |-> n, bucket |-> k]

ToAsk(n, e) == [type |-> "AskStatus", engine |-> e, incarnation |-> Target(n, e).incarnation, number |-> n]

AtState(n, states) == {e \in DOMAIN attempts[n].targets : Target(n, e).state \in states}

HasAllBuckets(n) == \A e \in DOMAIN attempts[n].targets : Target(n, e).buckets_done = Buckets

Arms(n) ==            \* all are as far as was authorised: the next bucket is to be armed
    /\ GoesOn(n)
    /\ AtState(n, {"RESERVED", "UNKNOWN"}) = {}
    /\ ~HasAllBuckets(n)
    /\ \A e \in DOMAIN attempts[n].targets : Target(n, e).buckets_done >= attempts[n].authorized
    /\ \E e \in DOMAIN attempts[n].targets : Target(n, e).buckets_done = attempts[n].authorized

PublisherOrders ==
    UNION {
        IF attempts[n].state = "ABORTED"
        THEN {To("Cleanup", n, e) : e \in AtState(n, {"RESERVED", "PREPARED", "RECEIVING", "READY", "FAILED", "UNKNOWN"})}
        ELSE IF ~Drives(n) THEN {}
        ELSE (IF ~GoesOn(n) THEN {}
              ELSE IF AtState(n, {"RESERVED", "UNKNOWN"}) # {}
              THEN {To("Begin", n, e) : e \in AtState(n, {"RESERVED"})}
                   \cup {IF attempts[n].authorized = 0 THEN To("Begin", n, e) ELSE ToAsk(n, e)
                             : e \in AtState(n, {"UNKNOWN"})}    \* a bucket is never sent twice
              ELSE IF HasAllBuckets(n)
              THEN {To("End", n, e) : e \in DOMAIN attempts[n].targets \ AtState(n, {"READY"})}
              ELSE IF Arms(n)
              THEN {ToBucket("ArmBucket", n, e, attempts[n].authorized)
                        : e \in DOMAIN attempts[n].targets \ driver.armed}
              ELSE {})
             \cup {ToBucket("ReceiveBucket", n, e, Target(n, e).buckets_done)
                       : e \in {x \in AtState(n, {"PREPARED", "RECEIVING"})
                                    : Target(n, x).buckets_done < attempts[n].authorized}}
        : n \in Unresolved}

(* The reclaimer's *)

ReclaimerOrders ==
    UNION {
        LET unloads == reclaims[versions[v].reclaim_id].unloads IN
        {[type |-> "Unload", engine |-> e, incarnation |-> unloads[e].incarnation, key |-> v]
             : e \in {x \in DOMAIN unloads : unloads[x].state # "UNLOADED"}}
        : v \in {w \in Version : versions[w].state = "RECLAIMING"}}

(* The repairer's *)

Lacks(e) == {v \in Version : Needed(versions, v) /\ engines[e].residents[v] = NoResident}

RepairerOrders ==
    UNION {
        LET here(type) == [type |-> type, engine |-> e, incarnation |-> engines[e].incarnation]
        IN {[type |-> "UnloadStray", engine |-> e, incarnation |-> engines[e].incarnation,
             key |-> r.version, number |-> r.number] : r \in engines[e].strays}
           \cup (IF engines[e].strays = {} THEN {} ELSE {here("TakeInventory")})
           \cup {[type |-> "Load", engine |-> e, incarnation |-> engines[e].incarnation,
                  key |-> v, number |-> engines[e].repairs[v]]
                     : v \in {w \in Lacks(e) : engines[e].repairs[w] # NoNumber}}
        : e \in {x \in Engine : engines[x].state \in Alive}}

OrdersOf(policy) ==
    CASE policy = "publisher" -> PublisherOrders
      [] policy = "reclaimer" -> ReclaimerOrders
      [] policy = "repairer"  -> RepairerOrders

-----------------------------------------------------------------------------
(* An order is given again only when neither it nor a reply to it is on its way *)

RepliesTo(type) ==
    CASE type = "Begin"         -> {"Prepared", "BucketDone", "Ready", "TargetFailed"}
      [] type = "ArmBucket"     -> {"ArmedBy", "TargetFailed"}
      [] type = "ReceiveBucket" -> {"BucketDone", "TargetFailed"}
      [] type = "End"           -> {"Ready", "TargetFailed"}
      [] type = "AskStatus"     -> {"Prepared", "BucketDone", "Ready", "Cleaned", "TargetFailed"}
      [] type = "Cleanup"       -> {"Cleaned", "TargetUnknown"}
      [] type = "Load"          -> {"RepairReady", "RepairFailed"}
      [] type = "Unload"        -> {"ConfirmReclaim", "ReclaimUnknown"}
      [] type = "UnloadStray"   -> {}
      [] type = "TakeInventory" -> {"EngineUp"}

Answers(m, order) ==
    /\ m.type \in RepliesTo(order.type)
    /\ \A field \in {"engine", "incarnation", "number", "bucket", "key"} \cap DOMAIN m \cap DOMAIN order :
           m[field] = order[field]

ToGive(policy) == {order \in OrdersOf(policy) : order \notin network /\ ~\E m \in network : Answers(m, order)}

GiveOrders(policy) ==
    /\ ToGive(policy) # {}
    /\ network' = network \cup ToGive(policy)
    /\ UNCHANGED <<registry, agents, driver, guard, left>>

-----------------------------------------------------------------------------
(* The trainer *)

IsNext(v) == versions[v].state = "NONE" /\ \A w \in Version : w < v => versions[w].state # "NONE"

ReserveNext(v) ==     \* whose reserve is accepted drives the attempt; a version that failed may be tried again
    LET t == <<next_number, 0>> IN
    /\ IsNext(v) \/ versions[v].state = "FAILED_CLEAN"
    /\ Reserve(v, ContentOf(v), t)
    /\ driver' = [driver EXCEPT !.token = t]
    /\ SpendUnless(versions[v].state = "NONE", "retry")
    /\ UNCHANGED <<agents, guard, network>>

StoreArtifact(v) ==   \* the version's bytes are durable
    /\ ArtifactStored(v, ContentOf(v))
    /\ UNCHANGED <<agents, driver, guard, network, left>>

-----------------------------------------------------------------------------
(* What the policies decide, and the registry hears at once *)

Decide ==
    \E n \in Unresolved :
        /\ Drives(n)
        /\ \/ ShouldAbort(n) /\ Hears(Abort(attempts[n].key, driver.token), driver)
           \/ /\ ~ShouldAbort(n)
              /\ Unready(n) = {}
              /\ RequireArtifact => versions[attempts[n].key].artifact
              /\ Hears(Commit(attempts[n].key, driver.token, attempts[n].revision), driver)
        /\ UNCHANGED <<agents, guard, network, left>>

Claim(v) ==
    /\ ClaimReclaim(v, ReclaimOf(v))
    /\ UNCHANGED <<agents, driver, guard, network, left>>

AskRepair(e, v) ==
    /\ OrderRepair(v, e)
    /\ UNCHANGED <<agents, driver, guard, network, left>>

-----------------------------------------------------------------------------
(* The driver's transport of buckets *)

WaitsFor(n) == DOMAIN attempts[n].targets     \* who must have armed a bucket before it may be broadcast

Authorize ==
    /\ ~driver.permitted
    /\ \E n \in Unresolved :
        /\ Arms(n)
        /\ WaitsFor(n) \subseteq driver.armed
        /\ AuthorizeBucket(n, driver.token, attempts[n].authorized)
    /\ driver' = [driver EXCEPT !.permitted = TRUE]
    /\ UNCHANGED <<agents, guard, network, left>>

Broadcast ==
    /\ driver.permitted
    /\ \E n \in OpenIn(attempts) :
        driver' = [driver EXCEPT !.armed = {}, !.permitted = FALSE, !.sent = @ \cup {<<n, attempts[n].authorized - 1>>}]
    /\ UNCHANGED <<registry, agents, guard, network, left>>

TakeOver ==           \* a publisher without a token gets one by hand-over
    /\ driver.token = NoToken
    /\ \E n \in OpenIn(attempts) :
        LET old == attempts[n].token
            new == <<old[1], old[2] + 1>>
        IN Takeover(attempts[n].key, new, old) /\ driver' = [driver EXCEPT !.token = new]
    /\ UNCHANGED <<agents, guard, network, left>>

HearsArmed(m) ==      \* counts for the bucket that is next, under the frozen incarnation
    driver' = IF /\ driver.token # NoToken
                 /\ ~driver.permitted
                 /\ \E n \in OpenIn(attempts) :
                        /\ n = m.number
                        /\ m.engine \in DOMAIN attempts[n].targets
                        /\ Target(n, m.engine).incarnation = m.incarnation
                        /\ attempts[n].authorized = m.bucket
              THEN [driver EXCEPT !.armed = @ \cup {m.engine}] ELSE driver

-----------------------------------------------------------------------------
(* The network *)

Listens(s, r) ==
    /\ s \in DOMAIN guard.sessions
    /\ guard.sessions[s].rid = r
    /\ guard.sessions[s].admission # "UNKNOWN"

HeardEnds(R) ==       \* the owner hears that these requests are over, unless its connection broke before
    [guard EXCEPT !.sessions = [s \in DOMAIN @ |->
        IF @[s].rid \in R /\ Listens(s, @[s].rid) THEN [@[s] EXCEPT !.rid = NoRid, !.admission = "NONE"] ELSE @[s]]]

RequestArrives(m) ==  \* it runs on exactly its version, or is refused
    LET p == agents[m.engine] IN
    IF Admits(p, m.rid, m.key)
    THEN /\ agents' = [agents EXCEPT ![m.engine] = Admitted(p, m.rid, m.key)]
         /\ guard' = IF Listens(m.rid[1], m.rid) THEN [guard EXCEPT !.sessions[m.rid[1]].admission = "RUNNING"] ELSE guard
    ELSE /\ agents' = agents
         /\ guard' = HeardEnds({m.rid})

Arrival(m, rest) ==  \* m arrives; rest is on its way still
    CASE m.type \in Events ->
             Hears(Event(m), driver) /\ network' = rest /\ UNCHANGED <<agents, guard>>
      [] m.type \in Orders ->
             LET done == Takes(m.engine, agents[m.engine], m) IN
             /\ agents' = [agents EXCEPT ![m.engine] = done.process]
             /\ network' = rest \cup done.says
             /\ UNCHANGED <<registry, driver, guard>>
      [] m.type = "ArmedBy" ->
             HearsArmed(m) /\ network' = rest /\ UNCHANGED <<registry, agents, guard>>
      [] m.type = "Request" ->
             RequestArrives(m) /\ network' = rest /\ UNCHANGED <<registry, driver>>

Deliver == \E m \in network : Arrival(m, network \ {m}) /\ UNCHANGED left

TalkOf(who) ==       \* what somebody and an engine say to each other
    CASE who = "publisher" -> {"Begin", "ArmBucket", "ReceiveBucket", "End", "AskStatus", "Cleanup", "Prepared", "ArmedBy",
                               "BucketDone", "Ready", "TargetFailed", "TargetUnknown", "Cleaned"}
      [] who = "reclaimer" -> {"Unload", "ConfirmReclaim", "ReclaimUnknown"}
      [] who = "repairer"  -> {"Load", "RepairReady", "RepairFailed", "UnloadStray", "TakeInventory"}
      [] who = "keeper"    -> {"EngineUp", "Quarantine"}
      [] who = "owner"     -> {"Request"}

DeliverTalk(who, e) ==
    \E m \in network : m.type \in TalkOf(who) /\ m.engine = e /\ Arrival(m, network \ {m}) /\ UNCHANGED left

Lose ==
    /\ May("lose")
    /\ \E m \in network : m.type # "Request" /\ network' = network \ {m}
    /\ Spend("lose")
    /\ UNCHANGED <<registry, agents, driver, guard>>

Duplicate ==          \* it arrives, and a copy of it as late as it likes
    /\ May("duplicate")
    /\ \E m \in network : m.type # "Request" /\ Arrival(m, network)
    /\ Spend("duplicate")

-----------------------------------------------------------------------------
(* The engines *)

IsForsaken(e, n) ==   \* nobody will complete this receive: the group is broken
    \/ AbortCommunicator(n) \in agents[e].todo
    \/ n \notin OpenIn(attempts)
    \/ n \in OpenIn(attempts) /\
           \/ attempts[n].taken_over
           \/ \E x \in DOMAIN attempts[n].targets : agents[x].incarnation # Target(n, x).incarnation

Ends(e, a, ok) ==     \* the executor is done with a
    /\ agents' = [agents EXCEPT ![e] = Finished(@, a, ok)]
    /\ network' = network \cup SaysFinished(e, agents[e], a, ok)
    /\ UNCHANGED <<registry, driver, guard>>

FaultOf(a) ==
    CASE a[1] \in {"StartLoad", "Probe"} -> "load"
      [] a[1] = "PostReceive"    -> "bucket"
      [] a[1] = "PhysicalUnload" -> "slow"
      [] a[1] = "CountRequests"  -> "count"
      [] OTHER                   -> "none"

VerifiesContent == TRUE   \* the executor compares what it loads with the digest

FinishesWell(e) ==
    \E a \in agents[e].todo :
        /\ a[1] # "AbortCommunicator"
        /\ \/ a[1] = "PostReceive" /\ <<a[2], a[3]>> \in driver.sent /\ Ends(e, a, TRUE)
           \/ a[1] = "PostReceive" /\ IsForsaken(e, a[2]) /\ Ends(e, a, FALSE)
           \/ a[1] # "PostReceive" /\ Ends(e, a, TRUE)
        /\ UNCHANGED left

FinishesBadly(e) ==
    \E a \in agents[e].todo :
        \/ /\ ~(a[1] = "PostReceive" /\ IsForsaken(e, a[2]))
           /\ May(FaultOf(a))
           /\ Ends(e, a, FALSE)
           /\ Spend(FaultOf(a))
        \/ /\ a[1] = "StartLoad"
           /\ May("corrupt")
           /\ agents' = [agents EXCEPT ![e] = LoadDone(@, a[2], ~VerifiesContent, NoContent)]
           /\ Spend("corrupt")
           /\ UNCHANGED <<registry, driver, guard, network>>

EndRequest(e) ==
    \E r \in DOMAIN agents[e].served :
        /\ agents' = [agents EXCEPT ![e] = RequestEnded(@, r)]
        /\ guard' = HeardEnds({r})
        /\ UNCHANGED <<registry, driver, network, left>>

MustReport(e) ==      \* after a restart or a silence the engine's keeper sends its inventory
    engines[e].incarnation < agents[e].incarnation \/ engines[e].state = "LOST"

Report(e) ==
    /\ Inventory(e, agents[e]) \notin network
    /\ network' = network \cup {Inventory(e, agents[e])}
    /\ SpendUnless(MustReport(e), "inventory")
    /\ UNCHANGED <<registry, agents, driver, guard>>

-----------------------------------------------------------------------------
(* The owner of the sessions *)

NewSession(v) == [binding |-> v, finalizing |-> FALSE, sent |-> 0, rid |-> NoRid, admission |-> "NONE"]

OpenSession(s) ==
    /\ OpensFirst
    /\ ~guard.lost
    /\ s = guard.next
    /\ Hears(Open(TheOwner, s), driver)
    /\ guard' = [guard EXCEPT !.next = @ + 1, !.sessions = With(@, s, NewSession(NoVersion))]
    /\ UNCHANGED <<agents, network, left>>

BindNext(s) ==        \* the session's first generation: the default, once; a lost answer is told again
    /\ ~guard.lost
    /\ \/ ~OpensFirst /\ s = guard.next
       \/ s \in DOMAIN guard.sessions /\ guard.sessions[s].binding = NoVersion /\ ~guard.sessions[s].finalizing
    /\ \/ BindFirst(TheOwner, s)
       \/ owners[TheOwner].sessions[s].state = "BOUND" /\ UNCHANGED registry
    /\ LET v == owners'[TheOwner].sessions[s].binding IN
       guard' = [guard EXCEPT !.next = IF s = @ THEN @ + 1 ELSE @,
                              !.sessions = With(@, s, IF s \in DOMAIN @ THEN [@[s] EXCEPT !.binding = v] ELSE NewSession(v))]
    /\ UNCHANGED <<agents, driver, network, left>>

RoutableFor(e, v) ==
    versions[v].state \in Serves /\ engines[e].state \in Alive /\ engines[e].residents[v] # NoResident

Dispatch(s, e) ==     \* one request at a time, to an engine that proved the session's version
    /\ ~guard.lost
    /\ s \in DOMAIN guard.sessions
    /\ LET known == guard.sessions[s]
           r == <<s, known.sent + 1, e>>
       IN /\ known.binding # NoVersion
          /\ ~known.finalizing
          /\ known.rid = NoRid
          /\ known.sent < Requests
          /\ RoutableFor(e, known.binding)
          /\ guard' = [guard EXCEPT !.sessions[s] = [@ EXCEPT !.sent = @ + 1, !.rid = r, !.admission = "SENT"]]
          /\ network' = network \cup {[type |-> "Request", engine |-> e, rid |-> r, key |-> known.binding]}
    /\ UNCHANGED <<registry, agents, driver, left>>

SettleRequest(s) ==   \* running, or absent and from now on sealed
    /\ ~guard.lost
    /\ s \in DOMAIN guard.sessions
    /\ guard.sessions[s].admission = "UNKNOWN"
    /\ LET r == guard.sessions[s].rid
           p == agents[r[3]]
       IN /\ agents' = [agents EXCEPT ![r[3]] = Sealed(p, r, guard.sessions[s].binding)]
          /\ guard' = IF r \in DOMAIN p.requests THEN [guard EXCEPT !.sessions[s].admission = "RUNNING"]
                      ELSE [guard EXCEPT !.sessions[s].rid = NoRid, !.sessions[s].admission = "NONE"]
    /\ UNCHANGED <<registry, driver, network, left>>

BeginToClose(s) ==    \* no new request of this session
    /\ ~guard.lost
    /\ s \in DOMAIN guard.sessions
    /\ ~guard.sessions[s].finalizing
    /\ Hears(BeginClose(TheOwner, s), driver)
    /\ guard' = [guard EXCEPT !.sessions[s].finalizing = TRUE]
    /\ UNCHANGED <<agents, network, left>>

Close(s) ==           \* the end of a session, and of its ref
    /\ ~guard.lost
    /\ s \in DOMAIN guard.sessions
    /\ guard.sessions[s].finalizing
    /\ guard.sessions[s].rid = NoRid
    /\ Hears(CloseAndRelease(TheOwner, s), driver)
    /\ guard' = [guard EXCEPT !.sessions = Less(@, {s})]
    /\ UNCHANGED <<agents, network, left>>

-----------------------------------------------------------------------------
(* What goes wrong, or comes from outside *)

Ended(e) ==           \* the process is gone with all that it held; those who wait for its requests hear of it
    /\ agents' = [agents EXCEPT ![e] = NewProcess(@.incarnation + 1)]
    /\ guard' = HeardEnds(DOMAIN agents[e].served)

RunsQuarantined(e) == engines[e].state = "QUARANTINED" /\ engines[e].incarnation = agents[e].incarnation

CrashEngine(e) ==     \* an empty successor starts; a quarantined engine is restarted by its operator
    /\ Ended(e)
    /\ SpendUnless(RunsQuarantined(e), "crash")
    /\ UNCHANGED <<registry, driver, network>>

DeclareDead(e) ==     \* the registry hears of the end, with evidence, before it hears of the successor
    /\ May("dead")
    /\ Ended(e)
    /\ Hears(EngineDead(e, agents[e].incarnation), driver)
    /\ Spend("dead")
    /\ UNCHANGED network

CrashPublisher ==     \* token and transport are forgotten; what was broadcast was broadcast
    /\ May("publisher")
    /\ driver.token # NoToken
    /\ driver' = [token |-> NoToken, armed |-> {}, permitted |-> FALSE, sent |-> driver.sent]
    /\ Spend("publisher")
    /\ UNCHANGED <<registry, agents, guard, network>>

Hush ==               \* somebody waited in vain for an answer
    /\ May("silence")
    /\ \/ \E n \in Unresolved : \E e \in DOMAIN attempts[n].targets :
              TargetUnknown(n, e, Target(n, e).incarnation)
       \/ \E c \in ReclaimId : \E e \in DOMAIN reclaims[c].unloads :
              ReclaimUnknown(c, e, reclaims[c].unloads[e].incarnation)
    /\ Spend("silence")
    /\ UNCHANGED <<agents, driver, guard, network>>

LoseEngine(e) ==      \* it counts as silent
    /\ May("lost")
    /\ EngineLost(e, engines[e].incarnation)
    /\ Spend("lost")
    /\ UNCHANGED <<agents, driver, guard, network>>

GiveUp ==             \* the publisher's deadline
    /\ May("deadline")
    /\ \E n \in OpenIn(attempts) :
        /\ driver.token # NoToken
        /\ Hears(Abort(attempts[n].key, driver.token), driver)
    /\ Spend("deadline")
    /\ UNCHANGED <<agents, guard, network>>

LoseOwner ==          \* the owner's process ends; its requests run on
    /\ May("owner")
    /\ ~guard.lost
    /\ Hears(OwnerGone(TheOwner), driver)
    /\ guard' = [guard EXCEPT !.lost = TRUE]
    /\ Spend("owner")
    /\ UNCHANGED <<agents, network>>

Doubt(s) ==           \* the reply that admits a request is lost
    /\ May("doubt")
    /\ ~guard.lost
    /\ s \in DOMAIN guard.sessions
    /\ guard.sessions[s].admission \in {"SENT", "RUNNING"}
    /\ guard' = [guard EXCEPT !.sessions[s].admission = "UNKNOWN"]
    /\ Spend("doubt")
    /\ UNCHANGED <<registry, agents, driver, network>>

RollBack(v) ==        \* refused or not, the operator asked once
    /\ May("rollback")
    /\ versions[v].state = "RETIRED"
    /\ Hears(Rollback(v, default_revision, RollbackOf(v, default_revision)), driver)
    /\ Spend("rollback")
    /\ UNCHANGED <<agents, guard, network>>

RepeatReserve(n) ==   \* a late copy of a reserve
    /\ May("reserve")
    /\ n \in DOMAIN attempts
    /\ Hears(Reserve(attempts[n].key, versions[attempts[n].key].digest, <<n, 0>>), driver)
    /\ Spend("reserve")
    /\ UNCHANGED <<agents, guard, network>>

RepeatBind(s) ==      \* a late copy of a session's first bind
    /\ May("bind")
    /\ s < guard.next
    /\ Hears(BindFirst(TheOwner, s), driver)
    /\ Spend("bind")
    /\ UNCHANGED <<agents, guard, network>>

-----------------------------------------------------------------------------
OfTrainer  == \E v \in Version : ReserveNext(v) \/ StoreArtifact(v)
OfPolicies ==
    \/ \E policy \in Policies : GiveOrders(policy)
    \/ Decide
    \/ \E v \in Version : Claim(v)
    \/ \E e \in Engine, v \in Version : AskRepair(e, v)
    \/ Authorize
    \/ Broadcast
    \/ TakeOver
OfNetwork  == Deliver \/ Lose \/ Duplicate
OfEngines  == \E e \in Engine : FinishesWell(e) \/ FinishesBadly(e) \/ EndRequest(e) \/ Report(e)
OfSessions ==
    \E s \in Sequence :
        \/ OpenSession(s)
        \/ BindNext(s)
        \/ \E e \in Engine : Dispatch(s, e)
        \/ SettleRequest(s)
        \/ BeginToClose(s)
        \/ Close(s)
Faults     ==
    \/ \E e \in Engine : CrashEngine(e) \/ DeclareDead(e) \/ LoseEngine(e)
    \/ CrashPublisher
    \/ Hush
    \/ GiveUp
    \/ LoseOwner
    \/ \E s \in Sequence : Doubt(s) \/ RepeatBind(s)
    \/ \E v \in Version : RollBack(v)
    \/ \E n \in Number : RepeatReserve(n)

ProtocolNext == OfTrainer \/ OfPolicies \/ OfNetwork \/ OfEngines \/ OfSessions \/ Faults

ProtocolSpec == ProtocolInit /\ [][ProtocolNext]_world

-----------------------------------------------------------------------------
(* Fairness: what must go on happening, and why.  A loss, a crash, a silence never must.                              *)

\* The network loses messages only within its budget; what it keeps it delivers, whatever others say meanwhile.
FairDelivery(who) == \A e \in Engine : WF_world(DeliverTalk(who, e))

\* A policy runs for ever, or is restarted: it is stateless, so its next look finds what is still to be ordered.
FairPublisher == WF_world(GiveOrders("publisher"))
FairReclaimer == WF_world(GiveOrders("reclaimer"))
FairRepairer  == WF_world(GiveOrders("repairer"))

\* A publisher that sees that an attempt must end says so: its lease makes sure that there is one.
FairDecisions == WF_world(Decide)

\* A version that nobody holds is claimed: the reclaimer looks again and again.
FairClaims == \A v \in Version : WF_world(Claim(v))

\* A member that lacks what sessions may need has a repair numbered.
FairRepairs == \A e \in Engine, v \in Version : WF_world(AskRepair(e, v))

\* A driver whose bucket is armed everywhere sends it.
FairDriver == WF_world(Authorize) /\ WF_world(Broadcast)

\* A publisher that died is replaced.
FairTakeover == WF_world(TakeOver)

\* A trainer stores the bytes of what it reserved.
FairTrainer == \A v \in Version : WF_world(StoreArtifact(v))

\* An engine's executor ends what it began: loads, receives and unloads have deadlines of their own.
FairExecutors == \A e \in Engine : WF_world(FinishesWell(e))

\* A request ends, by its own end or by its abort: without that nothing can ever be unloaded.
FairRequests == \A e \in Engine : WF_world(EndRequest(e))

\* An engine that restarted, or was thought lost, is reported by its keeper as long as the registry does not know.
FairReports == \A e \in Engine : WF_world(MustReport(e) /\ Report(e))

\* A session ends: the agent's run has an end, and the lease ends it otherwise.
FairClosers == \A s \in Sequence : WF_world(BeginToClose(s)) /\ WF_world(Close(s))

\* An owner that does not know whether its request runs asks.
FairSettling == \A s \in Sequence : WF_world(SettleRequest(s))

\* An operator restarts what was quarantined.
FairOperator == \A e \in Engine : WF_world(RunsQuarantined(e) /\ CrashEngine(e))

Fairness ==
    /\ \A who \in Policies \cup {"keeper", "owner"} : FairDelivery(who)
    /\ FairPublisher /\ FairReclaimer /\ FairRepairer /\ FairDecisions /\ FairClaims /\ FairRepairs
    /\ FairDriver /\ FairTakeover /\ FairTrainer /\ FairExecutors /\ FairRequests /\ FairReports /\ FairClosers
    /\ FairSettling /\ FairOperator

-----------------------------------------------------------------------------
(* What is promised of every state, measured against what is physically there *)

Lives(e) == engines[e].incarnation = agents[e].incarnation /\ engines[e].state \notin {"DEAD", "REMOVED"}

Holds(e, v, n) == v \in DOMAIN agents[e].loaded /\ agents[e].loaded[v] = [number |-> n, content |-> v]

ProvedIsThere ==          \* I7, RFC 3.3: what is proved, and what counts as READY, is there with that content
    \A e \in Engine : Lives(e) =>
        /\ \A v \in Version :
               (engines[e].residents[v] # NoResident /\ versions[v].state \in {"LOADING"} \cup Serves) =>
                   Holds(e, v, engines[e].residents[v].number)
        /\ \A n \in OpenIn(attempts) :
               (e \in AtState(n, {"READY"}) /\ Target(n, e).incarnation = agents[e].incarnation) =>
                   Holds(e, attempts[n].key, n)

GoneIsAbsent ==           \* I11: nothing of it is loaded, kept or promised; a stray is known as one
    \A e \in Engine :
        /\ \A v \in DOMAIN agents[e].loaded :
               versions[v].state \in {"RECLAIMED", "FAILED_CLEAN"} => \E r \in engines[e].strays : r.version = v
        /\ \A n \in DOMAIN agents[e].works :
               /\ n \in DOMAIN attempts => attempts[n].state # "CLEAN"
               /\ versions[agents[e].works[n].key].state # "RECLAIMED"

RunsOnItsVersion ==       \* I13, I14: what a running request runs on is there, and is its session's version
    \A e \in Engine : \A r \in DOMAIN agents[e].served :
        LET v == agents[e].served[r] IN v \in DOMAIN agents[e].loaded /\ agents[e].loaded[v].content = v

UnloadsItsOwn ==          \* I6, I13: an unload removes what its number loaded, under no request
    \A e \in Engine : \A a \in agents[e].todo :
        a[1] = "PhysicalUnload" =>
            /\ a[2] \in DOMAIN agents[e].loaded => agents[e].loaded[a[2]].number = a[3]
            /\ \A r \in DOMAIN agents[e].served : agents[e].served[r] # a[2]

FitsItsSlots ==           \* rule 6
    \A e \in Engine :
        Cardinality(DOMAIN agents[e].loaded)
            + Cardinality({n \in DOMAIN agents[e].works : Promises(agents[e].works[n])}) <= EngineSlots

KnowsWhatIsThere ==       \* section 2: the agent's memory is what is physically there
    \A e \in Engine :
        /\ DOMAIN agents[e].adapters = DOMAIN agents[e].loaded
        /\ \A v \in DOMAIN agents[e].adapters : agents[e].adapters[v].number = agents[e].loaded[v].number
        /\ agents[e].requests = agents[e].served

OwnersCopyIsRight ==      \* I3, I7: a live session's binding is the registry's, and of a version that serves
    ~guard.lost => \A s \in DOMAIN guard.sessions :
        guard.sessions[s].binding # NoVersion =>
            /\ owners[TheOwner].sessions[s].binding \in {guard.sessions[s].binding, NoVersion}
            /\ versions[guard.sessions[s].binding].state \in Serves

AtMostOneAtATime ==       \* rule 10: a request that its owner does not know of any more does not run
    \A e \in Engine : \A r \in DOMAIN agents[e].served :
        ~guard.lost => r[1] \in DOMAIN guard.sessions /\ guard.sessions[r[1]].rid = r

(* And of every step *)

NothingBeginsTwice ==     \* I8: one load per number, one receive per bucket, one unload per load, under an incarnation
    [][\A e \in Engine : agents'[e].incarnation = agents[e].incarnation =>
        /\ agents[e].begun \subseteq agents'[e].begun
        /\ \A a \in agents'[e].todo \ agents[e].todo :
            /\ a[1] = "StartLoad" => <<"load", a[2], 0>> \notin agents[e].begun
            /\ a[1] = "PostReceive" => <<"receive", a[2], a[3]>> \notin agents[e].begun
            /\ a[1] = "PhysicalUnload" => <<"unload", a[3], 0>> \notin agents[e].begun]_world

BroadcastIsArmed ==       \* rule 6, I8: once, and every live target has posted its receive
    [][(driver.permitted /\ ~driver'.permitted /\ driver'.token # NoToken) =>
        \A n \in OpenIn(attempts) :
            LET k == attempts[n].authorized - 1 IN
            /\ <<n, k>> \notin driver.sent
            /\ \A e \in DOMAIN attempts[n].targets :
                   agents[e].incarnation = Target(n, e).incarnation => <<"receive", n, k>> \in agents[e].begun]_world

CommitIsPhysical ==       \* RFC 3.3: every target of a commit holds the version, unless its process ended unseen
    [][\A n \in OpenIn(attempts) : attempts'[n].state = "COMMITTED" =>
        \A e \in DOMAIN attempts[n].targets :
            agents[e].incarnation = Target(n, e).incarnation => Holds(e, attempts[n].key, n)]_world

DispatchIsRoutable ==     \* I7
    [][\A m \in network' \ network : m.type = "Request" => RoutableFor(m.engine, m.key)]_world

OldMessagesChangeNothing ==   \* I12: of a dead incarnation, an old seq, or an attempt that is over
    [][\A m \in network \ network' :
        (/\ m.type \in Events
         /\ \/ m.incarnation < engines[m.engine].incarnation
            \/ m.type = "EngineUp" /\ m.incarnation = engines[m.engine].incarnation /\ m.seq < engines[m.engine].seq
            \/ /\ m.type \in {"Prepared", "BucketDone", "Ready", "TargetFailed", "TargetUnknown", "Cleaned"}
               /\ m.number \in DOMAIN attempts
               /\ attempts[m.number].state \in {"COMMITTED", "CLEAN"}) => UNCHANGED registry]_world

-----------------------------------------------------------------------------
(* What will happen, under Fairness *)

AttemptsEnd ==            \* an open attempt is COMMITTED or CLEAN in the end
    \A n \in Number : n \in Unresolved ~> n \notin Unresolved

RetiredIsReclaimed ==     \* a retired version, once its sessions have ended, is reclaimed; unless it is rolled back to
    \A v \in Version : versions[v].state = "RETIRED" ~> versions[v].state \in {"RECLAIMED", "PUBLISHED"}

ReserveIsOpen ==          \* what a reserve of a new version must find
    /\ Unresolved = {}
    /\ Cardinality(Slots) < Capacity
    /\ \A e \in Engine : engines[e].state \notin {"LOST", "QUARANTINED"}
    /\ \E e \in Engine : engines[e].state \in Alive

RefusedIsAccepted == []<>ReserveIsOpen    \* so a reserve that was refused is accepted in the end

IsRoutable(e) == engines[e].state = "UP" /\ engines[e].incarnation = agents[e].incarnation

ReturnedIsRoutable ==     \* an engine that comes back serves all that sessions may need in the end
    \A e \in Engine : []<>IsRoutable(e)

SessionsEnd == \A s \in Sequence : s \in DOMAIN guard.sessions ~> s \notin DOMAIN guard.sessions \/ guard.lost
=============================================================================
