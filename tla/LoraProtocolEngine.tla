------------------------- MODULE LoraProtocolEngine -------------------------
(***************************************************************************)
(* One engine's process as the protocol sees it: its agent's memory, what  *)
(* its executor has to do, and what is physically true of it.  Each order, *)
(* request and result is a function from the process to the process after  *)
(* it and what it says.  A refusal says no, and changes nothing.           *)
(*                                                                         *)
(* Each version has one content here, so its key is also its name.         *)
(***************************************************************************)
EXTENDS LoraRegistry

CONSTANTS
    EngineSlots      \* adapters that an engine can hold

NoContent == 0       \* contents are named by the version that they belong to; this one belongs to none
NoRid     == <<>>

Rid == Sequence \X (Nat \ {0}) \X Engine    \* session, how many requests it has sent, engine

\* What the executor may have to do.
PostReceive(n, k)    == <<"PostReceive", n, k>>       \* join the collective of this bucket
AbortCommunicator(n) == <<"AbortCommunicator", n>>    \* end the posted receive
StartLoad(n)         == <<"StartLoad", n>>
Probe(n)             == <<"Probe", n>>
Unregister(v)        == <<"Unregister", v>>
CountRequests(v)     == <<"CountRequests", v>>
PhysicalUnload(v, n) == <<"PhysicalUnload", v, n>>
TakeListing          == <<"TakeListing">>

WorkRecord ==
    [key : Version,
     repair : BOOLEAN,                     \* it loads from the artifact store, and belongs to no attempt
     state : {"PREPARED", "ARMED", "LOADING", "PROBING", "READY", "FAILED"},
     received : 0..Buckets,
     doomed : BOOLEAN]                     \* nothing of it may stay; what runs is waited for

AdapterRecord ==
    [number : Number,
     state : {"PRESENT", "UNREGISTERING", "DRAINING", "COUNTING", "UNKNOWN", "UNLOADING", "LINGERING"},
     refs : Nat]

IsProcess(p) ==
    /\ p.incarnation \in Nat \ {0}
    /\ p.seq \in Nat                       \* of the latest fact; each answer carries it
    /\ p.fence \in Number \cup {NoNumber}  \* the highest attempt seen: what does not work here up to it is over
    /\ p.tombstones \subseteq Number       \* further numbers that are over
    /\ \A n \in DOMAIN p.works : n \in Number /\ p.works[n] \in WorkRecord
    /\ \A v \in DOMAIN p.adapters : v \in Version /\ p.adapters[v] \in AdapterRecord
    /\ p.closed \subseteq Version          \* what is unloaded here for ever
    /\ p.strays \subseteq (Version \X Number)    \* what was ordered away as a stray
    /\ \A r \in DOMAIN p.requests : r \in Rid /\ p.requests[r] \in Version
    /\ \A r \in DOMAIN p.sealed : r \in Rid /\ p.sealed[r] \in Version   \* declared absent: these never start
    /\ \A r \in DOMAIN p.served : r \in Rid /\ p.served[r] \in Version   \* requests that physically run
    /\ \A v \in DOMAIN p.loaded : v \in Version  \* what is physically there under each name
    /\ \A x \in p.begun : x[1] \in {"load", "receive", "unload"}         \* what was ever begun here (I8)

NewProcess(i) ==     \* nothing is loaded, nothing is remembered
    [incarnation |-> i, seq |-> 0, fence |-> NoNumber, tombstones |-> {}, works |-> Empty, adapters |-> Empty,
     closed |-> {}, strays |-> {}, requests |-> Empty, sealed |-> Empty, todo |-> {}, loaded |-> Empty,
     served |-> Empty, begun |-> {}]

-----------------------------------------------------------------------------
(* What it says *)

About(type, e, p, n) == [type |-> type, engine |-> e, incarnation |-> p.incarnation, seq |-> p.seq, number |-> n]

SaysDone(e, p, n, k) ==
    [type |-> "BucketDone", engine |-> e, incarnation |-> p.incarnation, seq |-> p.seq, number |-> n, bucket |-> k]

SaysArmed(e, p, n, k) ==
    [type |-> "ArmedBy", engine |-> e, incarnation |-> p.incarnation, number |-> n, bucket |-> k]

SaysReady(type, e, p, n) ==
    [type |-> type, engine |-> e, incarnation |-> p.incarnation, seq |-> p.seq, number |-> n, key |-> p.works[n].key]

SaysUnloaded(e, p, v) ==
    [type |-> "ConfirmReclaim", engine |-> e, incarnation |-> p.incarnation, seq |-> p.seq, key |-> v]

SaysUnknown(e, p, n) == [type |-> "TargetUnknown", engine |-> e, incarnation |-> p.incarnation, number |-> n]

SaysReclaimUnknown(e, p, v) == [type |-> "ReclaimUnknown", engine |-> e, incarnation |-> p.incarnation, key |-> v]

SaysQuarantine(e, p) == [type |-> "Quarantine", engine |-> e, incarnation |-> p.incarnation]

Inventory(e, p) ==   \* all that it holds, by the number that loaded it
    [type |-> "EngineUp", engine |-> e, incarnation |-> p.incarnation, seq |-> p.seq,
     residents |-> {<<v, p.adapters[v].number>> : v \in DOMAIN p.adapters}]

Silent(p)     == [process |-> p, says |-> {}]
Saying(p, ms) == [process |-> p, says |-> ms]

-----------------------------------------------------------------------------
(* Questions *)

Fact(p)      == [p EXCEPT !.seq = @ + 1]
Less(f, S)   == [x \in DOMAIN f \ S |-> f[x]]
Todo(p, S)   == [p EXCEPT !.todo = @ \cup S]
Begun(p, x)  == [p EXCEPT !.begun = @ \cup {x}]

Runs(w)      == w.state \in {"ARMED", "LOADING", "PROBING"}       \* its result must come first
Promises(w)  == w.state \in {"PREPARED", "ARMED", "LOADING"}      \* no adapter yet, but one is to come
Used(p)      == Cardinality(DOMAIN p.adapters) + Cardinality({n \in DOMAIN p.works : Promises(p.works[n])})
LoadedBy(p, n) == {v \in DOMAIN p.adapters : p.adapters[v].number = n}
IsOver(p, n) == n <= p.fence \/ n \in p.tombstones

NumbersOf(p, v) ==
    {n \in DOMAIN p.works : p.works[n].key = v}
    \cup {p.adapters[x].number : x \in {v} \cap DOMAIN p.adapters}

HasRoom(p, v) ==
    /\ \A n \in DOMAIN p.works : p.works[n].key = v => p.works[n].state = "FAILED"
    /\ v \notin DOMAIN p.adapters
    /\ Used(p) < EngineSlots

AgentServes(p, v) == v \in DOMAIN p.adapters /\
    LET n == p.adapters[v].number IN n \in DOMAIN p.works /\ p.works[n].state = "READY"

FactOf(e, p, n) ==   \* the latest fact about a number that works here
    LET w == p.works[n] IN
    CASE w.doomed           -> {}
      [] ~w.doomed /\ w.state = "FAILED" -> {About(IF w.repair THEN "RepairFailed" ELSE "TargetFailed", e, p, n)}
      [] ~w.doomed /\ w.state = "READY"  -> {SaysReady(IF w.repair THEN "RepairReady" ELSE "Ready", e, p, n)}
      [] OTHER -> IF w.repair THEN {}
                  ELSE IF w.received > 0 THEN {SaysDone(e, p, n, w.received - 1)}
                  ELSE {About("Prepared", e, p, n)}

Refuses(e, p, n) == Saying(p, {About("TargetFailed", e, p, n)})    \* this number will not be READY here

-----------------------------------------------------------------------------
(* From nothing to READY *)

Replacing(p, v) ==   \* a later number of a key replaces what failed before it
    LET failed == {n \in DOMAIN p.works : p.works[n].key = v} IN
    [p EXCEPT !.works = Less(@, failed), !.tombstones = @ \cup {n \in failed : p.works[n].repair}]

Working(p, n, v, repair, state) ==
    [p EXCEPT !.works = With(@, n, [key |-> v, repair |-> repair, state |-> state, received |-> 0, doomed |-> FALSE])]

Loading(p, n) ==     \* the one load of a number
    Begun(Todo([p EXCEPT !.works[n].state = "LOADING"], {StartLoad(n)}), <<"load", n, 0>>)

TakesBegin(e, p, n, v) ==
    IF v \in p.closed THEN Refuses(e, p, n)
    ELSE IF n \in DOMAIN p.works THEN
        IF p.works[n].doomed THEN Refuses(e, p, n)
        ELSE Saying(p, FactOf(e, p, n))    \* the latest: an older one under this seq would hide it
    ELSE IF IsOver(p, n) \/ ~HasRoom(p, v) THEN Refuses(e, p, n)
    ELSE LET q == [Working(Replacing(Fact(p), v), n, v, FALSE, "PREPARED") EXCEPT !.fence = n]
         IN Saying(q, {About("Prepared", e, q, n)})

TakesArmBucket(e, p, n, k) ==
    IF n \notin DOMAIN p.works THEN IF IsOver(p, n) THEN Refuses(e, p, n) ELSE Silent(p)
    ELSE LET w == p.works[n] IN
        IF w.doomed \/ w.state = "FAILED" THEN Refuses(e, p, n)
        ELSE IF k < w.received \/ (k = w.received /\ w.state = "ARMED") THEN Saying(p, {SaysArmed(e, p, n, k)})
        ELSE IF w.state # "PREPARED" \/ k > w.received \/ k >= Buckets THEN Silent(p)
        ELSE LET q == Begun(Todo([p EXCEPT !.works[n].state = "ARMED"], {PostReceive(n, k)}), <<"receive", n, k>>)
             IN Saying(q, {SaysArmed(e, q, n, k)})

TakesReceiveBucket(e, p, n, k) ==
    IF n \notin DOMAIN p.works THEN IF IsOver(p, n) THEN Refuses(e, p, n) ELSE Silent(p)
    ELSE LET w == p.works[n] IN
        IF w.doomed THEN Refuses(e, p, n)
        ELSE IF w.state \in {"READY", "FAILED"} THEN Saying(p, FactOf(e, p, n))
        ELSE IF k < w.received THEN Saying(p, {SaysDone(e, p, n, k)}) ELSE Silent(p)

TakesEnd(e, p, n, v) ==
    IF v \in p.closed THEN Refuses(e, p, n)
    ELSE IF n \notin DOMAIN p.works THEN IF IsOver(p, n) THEN Refuses(e, p, n) ELSE Silent(p)
    ELSE LET w == p.works[n] IN
        CASE w.doomed -> Refuses(e, p, n)
          [] ~w.doomed /\ w.state \in {"READY", "FAILED"} -> Saying(p, FactOf(e, p, n))
          [] ~w.doomed /\ w.state = "PREPARED" /\ w.received = Buckets ->
                 IF v \in DOMAIN p.adapters THEN Refuses(e, p, n) ELSE Silent(Loading(p, n))
          [] OTHER -> Silent(p)

TakesLoad(e, p, n, v) ==
    LET refused == Saying(p, {About("RepairFailed", e, p, n)}) IN
    IF v \in p.closed THEN refused
    ELSE IF n \in DOMAIN p.works THEN IF p.works[n].doomed THEN refused ELSE Saying(p, FactOf(e, p, n))
    ELSE IF n \in p.tombstones \/ ~HasRoom(p, v) THEN refused
    ELSE Silent(Loading(Working(Replacing(Fact(p), v), n, v, TRUE, "LOADING"), n))

TakesAskStatus(e, p, n) ==
    IF n \in DOMAIN p.works THEN Saying(p, FactOf(e, p, n))
    ELSE IF LoadedBy(p, n) = {} /\ IsOver(p, n) THEN Saying(p, {About("Cleaned", e, p, n)})
    ELSE Silent(p)

-----------------------------------------------------------------------------
(* From something to nothing.  Whoever wants an adapter gone starts its one removal, or joins it. *)

Going(p, v) ==
    LET a == p.adapters[v] IN
    CASE a.state = "PRESENT" -> Todo([p EXCEPT !.adapters[v].state = "UNREGISTERING"], {Unregister(v)})
      [] a.state = "UNKNOWN" \/ (a.state = "DRAINING" /\ a.refs = 0) ->
             Todo([p EXCEPT !.adapters[v].state = "COUNTING"], {CountRequests(v)})
      [] a.state = "LINGERING" -> Todo(p, {TakeListing})
      [] OTHER -> p

NumberGoing(p, n) ==     \* doom what a number runs; else forget it, and remove what it loaded
    IF n \in DOMAIN p.works /\ Runs(p.works[n]) THEN
        IF p.works[n].doomed THEN p
        ELSE Todo([p EXCEPT !.works[n].doomed = TRUE],
                  IF p.works[n].state = "ARMED" THEN {AbortCommunicator(n)} ELSE {})
    ELSE LET q == IF n \in DOMAIN p.works THEN [Fact(p) EXCEPT !.works = Less(@, {n})] ELSE p IN
         IF LoadedBy(q, n) = {} THEN q ELSE Going(q, CHOOSE v \in LoadedBy(q, n) : TRUE)

RECURSIVE AllGoing(_, _)
AllGoing(p, N) ==
    IF N = {} THEN p
    ELSE LET n == CHOOSE x \in N : \A y \in N : x <= y IN AllGoing(NumberGoing(p, n), N \ {n})

NothingOf(p, N) == \A n \in N : n \notin DOMAIN p.works /\ LoadedBy(p, n) = {}

IsStuck(p, q, N) ==      \* whether it is gone cannot be said: nothing runs, and it was looked for in vain before
    /\ N \cap DOMAIN q.works = {}
    /\ \E n \in N : \E v \in LoadedBy(q, n) : v \in DOMAIN p.adapters /\ p.adapters[v].state \in {"UNKNOWN", "LINGERING"}

TakesCleanup(e, p, n, v) ==
    LET fenced == IF n > p.fence THEN [Fact(p) EXCEPT !.fence = n] ELSE p
        q == NumberGoing(fenced, n)
    IN IF NothingOf(q, {n}) THEN Saying(q, {About("Cleaned", e, q, n)})
       ELSE IF IsStuck(p, q, {n}) THEN Saying(q, {SaysUnknown(e, q, n)}) ELSE Silent(q)

TakesUnload(e, p, v) ==
    LET shut == IF v \in p.closed THEN p
                ELSE [Fact(p) EXCEPT !.closed = @ \cup {v},
                                     !.sealed = Less(@, {r \in DOMAIN @ : @[r] = v})]
        q == AllGoing(shut, NumbersOf(shut, v))
    IN IF NumbersOf(q, v) = {} THEN Saying(q, {SaysUnloaded(e, q, v)})
       ELSE IF IsStuck(p, q, NumbersOf(q, v)) THEN Saying(q, {SaysReclaimUnknown(e, q, v)}) ELSE Silent(q)

TakesUnloadStray(p, v, n) ==
    LET marked == IF <<v, n>> \in p.strays THEN p
                  ELSE [Fact(p) EXCEPT !.strays = @ \cup {<<v, n>>}, !.tombstones = @ \cup {n}]
    IN Silent(NumberGoing(marked, n))

-----------------------------------------------------------------------------
(* Any order: one for another incarnation is refused, and nobody needs to hear of that *)

Takes(e, p, m) ==
    IF m.incarnation # p.incarnation THEN Silent(p)
    ELSE CASE m.type = "Begin"         -> TakesBegin(e, p, m.number, m.key)
           [] m.type = "ArmBucket"     -> TakesArmBucket(e, p, m.number, m.bucket)
           [] m.type = "ReceiveBucket" -> TakesReceiveBucket(e, p, m.number, m.bucket)
           [] m.type = "End"           -> TakesEnd(e, p, m.number, m.key)
           [] m.type = "AskStatus"     -> TakesAskStatus(e, p, m.number)
           [] m.type = "Cleanup"       -> TakesCleanup(e, p, m.number, m.key)
           [] m.type = "Load"          -> TakesLoad(e, p, m.number, m.key)
           [] m.type = "Unload"        -> TakesUnload(e, p, m.key)
           [] m.type = "UnloadStray"   -> TakesUnloadStray(p, m.key, m.number)
           [] m.type = "TakeInventory" -> Saying(p, {Inventory(e, p)})

-----------------------------------------------------------------------------
(* Requests *)

Admits(p, r, v) == r \notin DOMAIN p.requests /\ r \notin DOMAIN p.sealed /\ AgentServes(p, v)

Admitted(p, r, v) ==
    [p EXCEPT !.requests = With(@, r, v), !.served = With(@, r, v), !.adapters[v].refs = @ + 1]

RequestEnded(p, r) ==    \* the first terminal of a request; the last one lets a removal go on
    LET v == p.requests[r]
        q == [p EXCEPT !.requests = Less(@, {r}), !.served = Less(@, {r}), !.adapters[v].refs = @ - 1]
    IN IF q.adapters[v].state = "DRAINING" /\ q.adapters[v].refs = 0
       THEN Todo([q EXCEPT !.adapters[v].state = "COUNTING"], {CountRequests(v)}) ELSE q

Sealed(p, r, v) ==       \* it does not run; from now on it never will
    IF r \in DOMAIN p.requests \/ r \in DOMAIN p.sealed \/ v \in p.closed THEN p
    ELSE [p EXCEPT !.sealed = With(@, r, v)]

-----------------------------------------------------------------------------
(* Results: the executor did what it was asked for, well or not *)

Received(p, n, k, ok) ==
    LET w == p.works[n]
        q == [Fact(p) EXCEPT !.todo = @ \ {PostReceive(n, k), AbortCommunicator(n)}]
    IN CASE w.doomed -> [q EXCEPT !.works = Less(@, {n})]
         [] ~w.doomed /\ ok -> [q EXCEPT !.works[n].state = "PREPARED", !.works[n].received = k + 1]
         [] OTHER -> [q EXCEPT !.works[n].state = "FAILED"]

LoadDone(p, n, ok, content) ==
    LET v == p.works[n].key
        t == [Fact(p) EXCEPT !.todo = @ \ {StartLoad(n)}]
        q == IF ok THEN [t EXCEPT !.adapters = With(@, v, [number |-> n, state |-> "PRESENT", refs |-> 0]),
                                  !.loaded = With(@, v, [number |-> n, content |-> content])] ELSE t
    IN IF p.works[n].doomed
       THEN LET r == [q EXCEPT !.works = Less(@, {n})] IN IF v \in DOMAIN r.adapters THEN Going(r, v) ELSE r
       ELSE IF ok THEN Todo([q EXCEPT !.works[n].state = "PROBING"], {Probe(n)})
       ELSE [q EXCEPT !.works[n].state = "FAILED"]

Probed(p, n, ok) ==
    LET v == p.works[n].key
        q == [Fact(p) EXCEPT !.todo = @ \ {Probe(n)}]
    IN IF p.works[n].doomed THEN Going([q EXCEPT !.works = Less(@, {n})], v)
       ELSE [q EXCEPT !.works[n].state = IF ok THEN "READY" ELSE "FAILED"]

UnregisterDone(p, v) ==
    LET q == [p EXCEPT !.todo = @ \ {Unregister(v)}] IN
    IF p.adapters[v].refs > 0 THEN [q EXCEPT !.adapters[v].state = "DRAINING"]
    ELSE Todo([q EXCEPT !.adapters[v].state = "COUNTING"], {CountRequests(v)})

CountDone(p, v, ok) ==   \* zero, more, or a count that nobody can believe
    LET q == [p EXCEPT !.todo = @ \ {CountRequests(v)}]
        n == p.adapters[v].number
    IN CASE ~ok -> [q EXCEPT !.adapters[v].state = "UNKNOWN"]
         [] ok /\ \E r \in DOMAIN p.served : p.served[r] = v -> [q EXCEPT !.adapters[v].state = "DRAINING"]
         [] OTHER -> Begun(Todo([q EXCEPT !.adapters[v].state = "UNLOADING"], {PhysicalUnload(v, n)}), <<"unload", n, 0>>)

UnloadDone(p, v, n, absent) ==
    LET q == [p EXCEPT !.todo = @ \ {PhysicalUnload(v, n)}] IN
    IF absent THEN [Fact(q) EXCEPT !.adapters = Less(@, {v}), !.loaded = Less(@, {v})]
    ELSE [q EXCEPT !.adapters[v].state = "LINGERING"]

ListingDone(p) ==        \* a slow unload has ended by the time of the listing
    LET gone == {v \in DOMAIN p.adapters : p.adapters[v].state = "LINGERING"}
        q == [p EXCEPT !.todo = @ \ {TakeListing}]
    IN IF gone = {} THEN q ELSE [Fact(q) EXCEPT !.adapters = Less(@, gone), !.loaded = Less(@, gone)]

Finished(p, a, ok) ==
    CASE a[1] = "PostReceive"    -> Received(p, a[2], a[3], ok)
      [] a[1] = "StartLoad"      -> LoadDone(p, a[2], ok, p.works[a[2]].key)
      [] a[1] = "Probe"          -> Probed(p, a[2], ok)
      [] a[1] = "Unregister"     -> UnregisterDone(p, a[2])
      [] a[1] = "CountRequests"  -> CountDone(p, a[2], ok)
      [] a[1] = "PhysicalUnload" -> UnloadDone(p, a[2], a[3], ok)
      [] a[1] = "TakeListing"    -> ListingDone(p)

SaysFinished(e, p, a, ok) ==     \* only a broken promise is told by itself; all else is the answer to an order
    IF a[1] = "CountRequests" /\ ~ok THEN {SaysQuarantine(e, p)} ELSE {}
=============================================================================
