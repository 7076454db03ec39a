----------------------------- MODULE EngineAgent -----------------------------
(***************************************************************************)
(* The agent of one engine process: which numbers work here, which         *)
(* adapters the engine holds, which requests use them, and what is over    *)
(* for ever.  A restarted engine is a new agent that remembers nothing.    *)
(*                                                                         *)
(* Only what changes something, or asks for something to be done, is an    *)
(* action, and so are the answers that the registry builds on: a status,   *)
(* Cleaned, Unloaded, StrayGone.  An order, a request or a result that is  *)
(* refused is an action that is not enabled.                               *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
    Version,       \* version keys: positive integers
    Digest,        \* contents that a version may have
    Number,        \* numbers of attempts and repairs: positive integers
    ReclaimId,     \* ids of reclaims
    OperationKey,  \* ids of stray orders
    Rid,           \* ids of requests
    Stranger,      \* names that others may load adapters under
    Address,       \* whom an order may be for: engine, incarnation and epoch
    Us,            \* this agent's own
    MaxBuckets,    \* buckets that a plan may have
    Slots          \* adapters that the engine can hold

VARIABLES
    seq,           \* of the latest fact; each answer carries it
    fence,         \* the highest attempt seen: one at or below it that does not work here is over
    tombstones,    \* further numbers that are over: repairs and strays
    works,         \* how far each number is that works here
    adapters,      \* what the engine holds, by name
    closed,        \* the reclaim that closed each version here, for ever
    strays,        \* what each stray order was for
    requests,      \* the adapter that each request in flight uses
    sealed,        \* the version of each request that was declared absent and must never start
    asked          \* what the latest step asked the executor to do, each to be done once; or all that it answered

vars == <<seq, fence, tombstones, works, adapters, closed, strays, requests, sealed, asked>>

NoVersion == 0
NoNumber  == 0     \* of an adapter: somebody else put it there
NoPlan    == -1    \* of a work: it is a repair, and loads from the artifact store
NoReclaim == ""

Managed   == [version : Version, digest : Digest]               \* a name follows from key and digest
Foreign   == [version : {NoVersion}, digest : Stranger]
Name      == Managed \cup Foreign
NoName    == [version |-> NoVersion, digest |-> ""]
NameOf(v, d) == [version |-> v, digest |-> d]

Stray     == [name : Name, number : Number \cup {NoNumber}]
NoStray   == [name |-> NoName, number |-> NoNumber]

Running   == {"ARMED", "LOADING", "PROBING"}      \* something runs whose result must come first
Promised  == {"PREPARED", "ARMED", "LOADING"}     \* no adapter yet, but one is to come

\* What the executor may be asked for.  Each but the last comes back as a result.
PostReceive(n, k)       == <<"PostReceive", n, k>>              \* join the collective of this bucket
AbortCommunicator(n)    == <<"AbortCommunicator", n>>           \* nobody will complete the receive: end it
DropStash(n)            == <<"DropStash", n>>                   \* free the number's buckets
StartLoad(n, m, source) == <<"StartLoad", n, m, source>>        \* verify, then load under this name
Probe(n, m)             == <<"Probe", n, m>>                    \* prove that exactly this version answers
Unregister(m)           == <<"Unregister", m>>                  \* admit no request of it any more
CountRequests(m)        == <<"CountRequests", m>>               \* read the engine's own count
PhysicalUnload(m, n)    == <<"PhysicalUnload", m, n>>           \* unload what number n loaded, then look
TakeListing             == <<"TakeListing">>                    \* list what the engine holds
AskQuarantine           == <<"AskQuarantine">>                  \* tell the registry that a promise was broken

-----------------------------------------------------------------------------
(* What the variables may hold *)

WorkRecord ==
    [key : Version,
     digest : Digest,
     plan : 0..MaxBuckets \cup {NoPlan},   \* buckets that are sent; none: from the artifact store
     state : {"PREPARED", "ARMED", "LOADING", "PROBING", "READY", "FAILED"},
     received : 0..MaxBuckets,             \* buckets complete; the next one to arm
     doomed : BOOLEAN]                     \* nothing of it may stay; what runs is waited for

AdapterRecord ==
    [number : Number \cup {NoNumber},      \* that loaded it
     state : {"PRESENT", "UNREGISTERING", "DRAINING", "COUNTING", "UNKNOWN", "UNLOADING", "LINGERING"},
     refs : Nat]                           \* requests of it in flight

Asks ==
    {PostReceive(n, k) : n \in Number, k \in 0..MaxBuckets}
    \cup {AbortCommunicator(n) : n \in Number} \cup {DropStash(n) : n \in Number}
    \cup {StartLoad(n, m, source) : n \in Number, m \in Managed, source \in {"stash", "store"}}
    \cup {Probe(n, m) : n \in Number, m \in Managed}
    \cup {Unregister(m) : m \in Name} \cup {CountRequests(m) : m \in Name}
    \cup {PhysicalUnload(m, n) : m \in Name, n \in Number \cup {NoNumber}}
    \cup {TakeListing, AskQuarantine}

Told ==
    {<<"Status", n, status>> : n \in Number,
                               status \in {"Unseen", "Prepared", "BucketDone", "Ready", "Failed", "Pending", "Cleaned"}}
    \cup {<<"Cleaned", n>> : n \in Number}
    \cup {<<"Unloaded", c>> : c \in ReclaimId}
    \cup {<<"StrayGone", p>> : p \in OperationKey}

TypeOK ==
    /\ seq \in Nat
    /\ fence \in Number \cup {NoNumber}
    /\ tombstones \subseteq Number
    /\ DOMAIN works \subseteq Number
    /\ \A n \in DOMAIN works : works[n] \in WorkRecord
    /\ DOMAIN adapters \subseteq Name
    /\ \A m \in DOMAIN adapters : adapters[m] \in AdapterRecord
    /\ closed \in [Version -> ReclaimId \cup {NoReclaim}]
    /\ strays \in [OperationKey -> Stray \cup {NoStray}]
    /\ requests \in [Rid -> Name \cup {NoName}]
    /\ sealed \in [Rid -> Version \cup {NoVersion}]
    /\ asked \subseteq Asks \cup Told

-----------------------------------------------------------------------------
(* A process that just started *)

Empty == [x \in {} |-> NoNumber]

With(f, x, y) == [z \in DOMAIN f \cup {x} |-> IF z = x THEN y ELSE f[z]]

Except(f, S)  == [z \in DOMAIN f \ S |-> f[z]]

Max(a, b) == IF a > b THEN a ELSE b

Init ==
    /\ seq = 0
    /\ fence = NoNumber
    /\ tombstones = {}
    /\ works = Empty
    /\ adapters = Empty
    /\ closed = [v \in Version |-> NoReclaim]
    /\ strays = [p \in OperationKey |-> NoStray]
    /\ requests = [r \in Rid |-> NoName]
    /\ sealed = [r \in Rid |-> NoVersion]
    /\ asked = {}

-----------------------------------------------------------------------------
(* Questions *)

IsAttempt(w) == w.plan # NoPlan
Buckets(w)   == IF IsAttempt(w) THEN w.plan ELSE 0
NameFor(w)   == NameOf(w.key, w.digest)

Goes(n) ==           \* n is an attempt that may go on here
    n \in DOMAIN works /\ IsAttempt(works[n]) /\ ~works[n].doomed

At(n, state) == n \in DOMAIN works /\ works[n].state = state

Used == Cardinality(DOMAIN adapters) + Cardinality({n \in DOMAIN works : works[n].state \in Promised})

HasRoom(v, d) ==     \* a free name and a free slot, strays and strangers counted
    /\ \A n \in DOMAIN works : works[n].key = v => works[n].state = "FAILED"
    /\ NameOf(v, d) \notin DOMAIN adapters
    /\ Used < Slots

IsNew(n, v, d) ==    \* an order that was not given before and that nothing forbids
    /\ closed[v] = NoReclaim
    /\ n \notin DOMAIN works
    /\ n \notin tombstones
    /\ HasRoom(v, d)

Ready == {n \in DOMAIN works : works[n].state = "READY"}

IsProbing(m) == At(adapters[m].number, "PROBING")

Serves(m) ==         \* proved; a removal ends the work first
    m \in DOMAIN adapters /\ At(adapters[m].number, "READY")

-----------------------------------------------------------------------------
(* The one removal that an adapter can have: unregister, wait for requests, read the engine's own count, unload once, *)
(* observe.  Whoever wants it gone starts it, or joins it.                                                            *)

Recounts(a) == a.state = "UNKNOWN" \/ (a.state = "DRAINING" /\ a.refs = 0)    \* a second look may help

SentAway(a) ==
    CASE a.state = "PRESENT" -> [a EXCEPT !.state = "UNREGISTERING"]
      [] Recounts(a)         -> [a EXCEPT !.state = "COUNTING"]
      [] OTHER               -> a

AsksToSend(m, a) ==
    CASE a.state = "PRESENT"   -> {Unregister(m)}
      [] Recounts(a)           -> {CountRequests(m)}
      [] a.state = "LINGERING" -> {TakeListing}
      [] OTHER                 -> {}

NumbersOf(v) ==               \* whose work or adapter is of v
    {n \in DOMAIN works : works[n].key = v}
    \cup ({adapters[m].number : m \in {x \in DOMAIN adapters : x.version = v}} \ {NoNumber})

LoadedBy(N)  == {m \in DOMAIN adapters : adapters[m].number \in N}
Strangers(m) == {x \in {m} \cap DOMAIN adapters : adapters[x].number = NoNumber}

StillRuns(N) == {n \in N \cap DOMAIN works : works[n].state \in Running}
Rests(N)     == {n \in N \cap DOMAIN works : works[n].state \notin Running}

Without(N, names, told) ==    \* numbers N are not to be here, nor these adapters; told: that is news
    LET sent == LoadedBy(N \ StillRuns(N)) \cup names IN
    /\ works' = [n \in DOMAIN works \ Rests(N) |->
           IF n \in StillRuns(N) THEN [works[n] EXCEPT !.doomed = TRUE] ELSE works[n]]
    /\ adapters' = [m \in DOMAIN adapters |-> IF m \in sent THEN SentAway(adapters[m]) ELSE adapters[m]]
    /\ asked' = {AbortCommunicator(n) : n \in {i \in StillRuns(N) : works[i].state = "ARMED" /\ ~works[i].doomed}}
                \cup {DropStash(n) : n \in {i \in Rests(N) : works[i].state = "PREPARED" /\ Buckets(works[i]) > 0}}
                \cup UNION {AsksToSend(m, adapters[m]) : m \in sent}
    /\ seq' = seq + Cardinality(Rests(N)) + IF told THEN 1 ELSE 0
    /\ told \/ works' # works \/ asked' # {}

-----------------------------------------------------------------------------
(* What the agent answers.  To a question, and to an order that is done, the answer is all there is. *)

StatusOf(n) ==
    IF n \in DOMAIN works THEN
        CASE works[n].doomed             -> "Pending"
          [] works[n].state = "FAILED"   -> "Failed"
          [] works[n].state = "READY"    -> "Ready"
          [] OTHER -> IF ~IsAttempt(works[n]) THEN "Pending"
                      ELSE IF works[n].received > 0 THEN "BucketDone" ELSE "Prepared"
    ELSE IF LoadedBy({n}) # {} THEN "Pending"
    ELSE IF n <= fence \/ n \in tombstones THEN "Cleaned" ELSE "Unseen"

Answers(answer) ==
    /\ asked' = {answer}
    /\ UNCHANGED <<seq, fence, tombstones, works, adapters, closed, strays, requests, sealed>>

NothingOf(n) == n \notin DOMAIN works /\ LoadedBy({n}) = {}

AskStatus(to, n) == to = Us /\ Answers(<<"Status", n, StatusOf(n)>>)

Cleaned(to, n) == to = Us /\ n <= fence /\ NothingOf(n) /\ Answers(<<"Cleaned", n>>)

Unloaded(to, v, d, c) ==
    /\ to = Us
    /\ closed[v] = c
    /\ NumbersOf(v) = {}
    /\ Strangers(NameOf(v, d)) = {}
    /\ Answers(<<"Unloaded", c>>)

StrayGone(to, p, m, n) ==
    /\ to = Us
    /\ strays[p] = [name |-> m, number |-> n]
    /\ IF n = NoNumber THEN Strangers(m) = {} ELSE NothingOf(n)
    /\ Answers(<<"StrayGone", p>>)

-----------------------------------------------------------------------------
(* Orders of the publisher and its transport *)

Replaced(v) ==       \* works of v; by now they all have failed
    {n \in DOMAIN works : works[n].key = v}

ReplacedRepairs(v) ==  \* the fence covers attempts
    {n \in Replaced(v) : ~IsAttempt(works[n])}

Begin(to, n, v, d, b) ==      \* accept an attempt once, with a plan of b buckets
    /\ to = Us
    /\ IsNew(n, v, d)
    /\ n > fence
    /\ works' = With(Except(works, Replaced(v)), n,
           [key |-> v, digest |-> d, plan |-> b, state |-> "PREPARED", received |-> 0, doomed |-> FALSE])
    /\ tombstones' = tombstones \cup ReplacedRepairs(v)
    /\ fence' = n
    /\ seq' = seq + 1
    /\ asked' = {}
    /\ UNCHANGED <<adapters, closed, strays, requests, sealed>>

ArmBucket(to, n, k) ==        \* post the one receive of the next bucket
    /\ to = Us
    /\ Goes(n)
    /\ works[n].state = "PREPARED"
    /\ k = works[n].received
    /\ k < Buckets(works[n])
    /\ works' = [works EXCEPT ![n].state = "ARMED"]
    /\ asked' = {PostReceive(n, k)}
    /\ UNCHANGED <<seq, fence, tombstones, adapters, closed, strays, requests, sealed>>

Source(w) == IF Buckets(w) > 0 THEN "stash" ELSE "store"

End(to, n, v, d) ==           \* start the attempt's one load
    /\ to = Us
    /\ closed[v] = NoReclaim
    /\ Goes(n)
    /\ works[n].key = v
    /\ works[n].digest = d
    /\ works[n].state = "PREPARED"
    /\ works[n].received = Buckets(works[n])
    /\ NameFor(works[n]) \notin DOMAIN adapters
    /\ works' = [works EXCEPT ![n].state = "LOADING"]
    /\ asked' = {StartLoad(n, NameFor(works[n]), Source(works[n]))}
    /\ UNCHANGED <<seq, fence, tombstones, adapters, closed, strays, requests, sealed>>

Cleanup(to, n, v) ==          \* the attempt is over; remove what it loaded, and nothing else
    /\ to = Us
    /\ n \in DOMAIN works => IsAttempt(works[n]) /\ works[n].key = v
    /\ fence' = Max(fence, n)
    /\ Without({n}, {}, n > fence)
    /\ UNCHANGED <<tombstones, closed, strays, requests, sealed>>

-----------------------------------------------------------------------------
(* Orders of the repairer *)

Load(to, n, v, d) ==          \* start a repair's one load
    /\ to = Us
    /\ IsNew(n, v, d)
    /\ works' = With(Except(works, Replaced(v)), n,
           [key |-> v, digest |-> d, plan |-> NoPlan, state |-> "LOADING", received |-> 0, doomed |-> FALSE])
    /\ tombstones' = tombstones \cup ReplacedRepairs(v)
    /\ seq' = seq + 1
    /\ asked' = {StartLoad(n, NameOf(v, d), "store")}
    /\ UNCHANGED <<fence, adapters, closed, strays, requests, sealed>>

UnloadStray(to, p, m, n) ==   \* remove what should not be there; its number, when it is known, is over
    LET stray == [name |-> m, number |-> n] IN
    /\ to = Us
    /\ strays[p] \in {NoStray, stray}
    /\ n \in DOMAIN works => NameFor(works[n]) = m
    /\ strays' = [strays EXCEPT ![p] = stray]
    /\ tombstones' = IF strays[p] = NoStray THEN tombstones \cup ({n} \ {NoNumber}) ELSE tombstones
    /\ IF n = NoNumber THEN Without({}, Strangers(m), strays[p] = NoStray)
       ELSE Without({n}, {}, strays[p] = NoStray)
    /\ UNCHANGED <<fence, closed, requests, sealed>>

-----------------------------------------------------------------------------
(* Orders of the reclaimer *)

Unload(to, v, d, c) ==        \* close the version here for ever, and remove it, whichever number loaded it
    /\ to = Us
    /\ closed[v] \in {NoReclaim, c}
    /\ closed[v] = NoReclaim => \A w \in Version : closed[w] # c
    /\ closed' = [closed EXCEPT ![v] = c]
    \* A late request of a closed version is refused by its version; its seal is not needed any more.
    /\ sealed' = [r \in Rid |-> IF sealed[r] = v /\ closed[v] = NoReclaim THEN NoVersion ELSE sealed[r]]
    /\ Without(NumbersOf(v), Strangers(NameOf(v, d)), closed[v] = NoReclaim)
    /\ UNCHANGED <<fence, tombstones, strays, requests>>

-----------------------------------------------------------------------------
(* Requests *)

Acquire(r, m) ==              \* admit a request of exactly this name
    /\ requests[r] = NoName
    /\ sealed[r] = NoVersion
    /\ Serves(m)
    /\ requests' = [requests EXCEPT ![r] = m]
    /\ adapters' = [adapters EXCEPT ![m].refs = @ + 1]
    /\ asked' = {}
    /\ UNCHANGED <<seq, fence, tombstones, works, closed, strays, sealed>>

Release(r) ==                 \* the first terminal of a request
    /\ requests[r] # NoName
    /\ requests' = [requests EXCEPT ![r] = NoName]
    /\ LET m == requests[r]
           last == adapters[m].state = "DRAINING" /\ adapters[m].refs = 1
       IN /\ adapters' = [adapters EXCEPT ![m].refs = @ - 1, ![m].state = IF last THEN "COUNTING" ELSE @]
          /\ asked' = IF last THEN {CountRequests(m)} ELSE {}
    /\ UNCHANGED <<seq, fence, tombstones, works, closed, strays, sealed>>

Settle(r, v) ==               \* it does not run; from now on it never will
    /\ requests[r] = NoName
    /\ sealed[r] = NoVersion
    /\ closed[v] = NoReclaim
    /\ sealed' = [sealed EXCEPT ![r] = v]
    /\ asked' = {}
    /\ UNCHANGED <<seq, fence, tombstones, works, adapters, closed, strays, requests>>

-----------------------------------------------------------------------------
(* Results of what the executor was asked for *)

BucketFinished(n, k, ok) ==
    /\ At(n, "ARMED")
    /\ k = works[n].received
    /\ works' = CASE works[n].doomed -> Except(works, {n})
                  [] ~works[n].doomed /\ ok -> [works EXCEPT ![n].state = "PREPARED", ![n].received = k + 1]
                  [] OTHER -> [works EXCEPT ![n].state = "FAILED"]
    /\ asked' = IF ok /\ ~works[n].doomed THEN {} ELSE {DropStash(n)}
    /\ seq' = seq + 1
    /\ UNCHANGED <<fence, tombstones, adapters, closed, strays, requests, sealed>>

Dropped(n) == IF Buckets(works[n]) > 0 THEN {DropStash(n)} ELSE {}

LoadFinished(n, ok) ==
    LET m == NameFor(works[n])
        fresh == [number |-> n, state |-> "PRESENT", refs |-> 0]
    IN
    /\ At(n, "LOADING")
    /\ seq' = seq + 1
    /\ IF works[n].doomed
       THEN /\ works' = Except(works, {n})
            /\ adapters' = IF ok THEN With(adapters, m, SentAway(fresh)) ELSE adapters
            /\ asked' = Dropped(n) \cup IF ok THEN AsksToSend(m, fresh) ELSE {}
       ELSE /\ works' = [works EXCEPT ![n].state = IF ok THEN "PROBING" ELSE "FAILED"]
            /\ adapters' = IF ok THEN With(adapters, m, fresh) ELSE adapters
            /\ asked' = Dropped(n) \cup IF ok THEN {Probe(n, m)} ELSE {}
    /\ UNCHANGED <<fence, tombstones, closed, strays, requests, sealed>>

ProbeFinished(n, ok) ==
    LET m == NameFor(works[n]) IN
    /\ At(n, "PROBING")
    /\ seq' = seq + 1
    /\ IF works[n].doomed
       THEN /\ works' = Except(works, {n})
            /\ adapters' = [adapters EXCEPT ![m] = SentAway(@)]
            /\ asked' = AsksToSend(m, adapters[m])
       ELSE /\ works' = [works EXCEPT ![n].state = IF ok THEN "READY" ELSE "FAILED"]
            /\ adapters' = adapters
            /\ asked' = {}
    /\ UNCHANGED <<fence, tombstones, closed, strays, requests, sealed>>

Unregistered(m) ==            \* no request can come any more; wait for those in flight
    /\ m \in DOMAIN adapters
    /\ adapters[m].state = "UNREGISTERING"
    /\ adapters' = [adapters EXCEPT ![m].state = IF adapters[m].refs > 0 THEN "DRAINING" ELSE "COUNTING"]
    /\ asked' = IF adapters[m].refs > 0 THEN {} ELSE {CountRequests(m)}
    /\ UNCHANGED <<seq, fence, tombstones, works, closed, strays, requests, sealed>>

Counted(m, count) ==          \* the engine's own count; -1: negative, or it could not be read
    /\ m \in DOMAIN adapters
    /\ adapters[m].state = "COUNTING"
    /\ adapters' = [adapters EXCEPT ![m].state =
           CASE count = 0 -> "UNLOADING" [] count > 0 -> "DRAINING" [] OTHER -> "UNKNOWN"]
    /\ asked' = CASE count = 0 -> {PhysicalUnload(m, adapters[m].number)}
                  [] count > 0 -> {}
                  [] OTHER -> {AskQuarantine}
    /\ UNCHANGED <<seq, fence, tombstones, works, closed, strays, requests, sealed>>

UnloadFinished(m, absent) ==  \* gone only when it is seen to be absent
    /\ m \in DOMAIN adapters
    /\ adapters[m].state = "UNLOADING"
    /\ adapters' = IF absent THEN Except(adapters, {m}) ELSE [adapters EXCEPT ![m].state = "LINGERING"]
    /\ seq' = IF absent THEN seq + 1 ELSE seq
    /\ asked' = {}
    /\ UNCHANGED <<fence, tombstones, works, closed, strays, requests, sealed>>

Listed(names, q) ==           \* all that the engine held at seq q: some may have vanished, strangers may have come
    LET vanished == {m \in DOMAIN adapters \ names :
                        adapters[m].state \in {"PRESENT", "LINGERING"} /\ ~IsProbing(m)}
        loading  == {NameFor(works[n]) : n \in {i \in DOMAIN works : works[i].state = "LOADING"}}
        came     == names \ (loading \cup DOMAIN adapters)
    IN
    /\ q = seq
    /\ vanished \cup came # {}
    /\ adapters' = [m \in (DOMAIN adapters \ vanished) \cup came |->
           IF m \in came THEN [number |-> NoNumber, state |-> "PRESENT", refs |-> 0] ELSE adapters[m]]
    /\ requests' = [r \in Rid |-> IF requests[r] \in vanished THEN NoName ELSE requests[r]]
    /\ works' = [n \in DOMAIN works |->
           IF \E m \in vanished : adapters[m].number = n THEN [works[n] EXCEPT !.state = "FAILED"] ELSE works[n]]
    /\ seq' = seq + 1
    /\ asked' = {}
    /\ UNCHANGED <<fence, tombstones, closed, strays, sealed>>

-----------------------------------------------------------------------------
Next ==
    \/ \E to \in Address, n \in Number, v \in Version, d \in Digest :
           \/ \E b \in 0..MaxBuckets : Begin(to, n, v, d, b)
           \/ End(to, n, v, d)
           \/ Load(to, n, v, d)
    \/ \E to \in Address, n \in Number, k \in 0..MaxBuckets : ArmBucket(to, n, k)
    \/ \E to \in Address, n \in Number, v \in Version : Cleanup(to, n, v)
    \/ \E to \in Address, p \in OperationKey, m \in Name, n \in Number \cup {NoNumber} : UnloadStray(to, p, m, n)
    \/ \E to \in Address, v \in Version, d \in Digest, c \in ReclaimId : Unload(to, v, d, c)
    \/ \E to \in Address, n \in Number : AskStatus(to, n) \/ Cleaned(to, n)
    \/ \E to \in Address, p \in OperationKey, m \in Name, n \in Number \cup {NoNumber} : StrayGone(to, p, m, n)
    \/ \E to \in Address, v \in Version, d \in Digest, c \in ReclaimId : Unloaded(to, v, d, c)
    \/ \E r \in Rid : Release(r) \/ (\E m \in Name : Acquire(r, m)) \/ (\E v \in Version : Settle(r, v))
    \/ \E n \in Number, ok \in BOOLEAN :
           \/ \E k \in 0..MaxBuckets : BucketFinished(n, k, ok)
           \/ LoadFinished(n, ok)
           \/ ProbeFinished(n, ok)
    \/ \E m \in Name : Unregistered(m)
    \/ \E m \in Name, count \in {-1, 0, 1} : Counted(m, count)
    \/ \E m \in Name, absent \in BOOLEAN : UnloadFinished(m, absent)
    \/ \E names \in SUBSET Name : Listed(names, seq)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What holds in every state *)

OneNumberPerKey ==            \* I8: so one load of a version at a time
    \A n, i \in DOMAIN works :
        (works[n].key = works[i].key /\ works[n].state # "FAILED" /\ works[i].state # "FAILED") => n = i

BucketsWithinPlan ==          \* I8: a bucket that is armed is one of the plan's
    \A n \in DOMAIN works :
        works[n].received + (IF works[n].state = "ARMED" THEN 1 ELSE 0) <= Buckets(works[n])

AttemptsAreFenced ==          \* I12
    \A n \in DOMAIN works : IsAttempt(works[n]) => n <= fence

OverIsDoomed ==               \* I12: what is closed or over does not go on
    \A n \in DOMAIN works : (closed[works[n].key] # NoReclaim \/ n \in tombstones) => works[n].doomed

DoomedRuns ==                 \* a doomed work only waits for what runs; it is never READY
    \A n \in DOMAIN works : works[n].doomed => works[n].state \in Running

LoadedIsHere ==               \* I14: what probes and what is READY is on the engine, under its own name
    \A n \in DOMAIN works : works[n].state \in {"PROBING", "READY"} =>
        LET m == NameFor(works[n]) IN
        m \in DOMAIN adapters /\ adapters[m].number = n /\ adapters[m].state = "PRESENT"

OnlyReadyServes ==            \* I14: requests run on what is proved, until it is being removed
    \A m \in DOMAIN adapters : (adapters[m].refs > 0 /\ adapters[m].state = "PRESENT") => adapters[m].number \in Ready

RemovedByNumber ==            \* I6: what is being removed is a stranger's, or its number works here no more
    \A m \in DOMAIN adapters :
        (adapters[m].state # "PRESENT" /\ adapters[m].number # NoNumber) => adapters[m].number \notin DOMAIN works

ClosedIsRemoved ==            \* I13: whatever is of a closed version is on its way out
    \A m \in DOMAIN adapters :
        (m.version # NoVersion /\ adapters[m].number # NoNumber /\ adapters[m].state = "PRESENT") =>
            (closed[m.version] # NoReclaim =>
                adapters[m].number \in DOMAIN works /\ works[adapters[m].number].doomed)

RefsAreRequests ==            \* I13
    /\ \A m \in DOMAIN adapters : adapters[m].refs = Cardinality({r \in Rid : requests[r] = m})
    /\ \A r \in Rid : requests[r] \in DOMAIN adapters \cup {NoName}

UnloadedIsUnused ==           \* I13: nothing is unloaded while a request of it is in flight
    \A m \in DOMAIN adapters :
        adapters[m].state \in {"COUNTING", "UNKNOWN", "UNLOADING", "LINGERING"} => adapters[m].refs = 0

SealedNeverRuns ==            \* I12
    \A r \in Rid : sealed[r] # NoVersion => (requests[r] = NoName /\ closed[sealed[r]] = NoReclaim)

SlotsAreKept ==               \* I5: but for what strangers take
    Used - Cardinality({m \in DOMAIN adapters : adapters[m].number = NoNumber}) <= Slots

AskedIsUnderWay ==            \* what was just asked for is what the agent waits for
    /\ \A n \in Number : \A k \in 0..MaxBuckets :
           PostReceive(n, k) \in asked => At(n, "ARMED") /\ works[n].received = k
    /\ \A n \in Number : AbortCommunicator(n) \in asked => At(n, "ARMED") /\ works[n].doomed
    /\ \A n \in Number, m \in Managed :
           /\ \A source \in {"stash", "store"} : StartLoad(n, m, source) \in asked =>
                  At(n, "LOADING") /\ NameFor(works[n]) = m /\ Source(works[n]) = source
           /\ Probe(n, m) \in asked => At(n, "PROBING") /\ NameFor(works[n]) = m
    /\ \A m \in Name :
           /\ Unregister(m) \in asked => adapters[m].state = "UNREGISTERING"
           /\ CountRequests(m) \in asked => adapters[m].state = "COUNTING"
           /\ \A n \in Number \cup {NoNumber} : PhysicalUnload(m, n) \in asked =>
                  adapters[m].state = "UNLOADING" /\ adapters[m].number = n
    /\ TakeListing \in asked => \E m \in DOMAIN adapters : adapters[m].state = "LINGERING"
    /\ \A n \in Number : <<"Status", n, "Ready">> \in asked => n \in Ready    \* and what was told is so
    /\ \A n \in Number : <<"Cleaned", n>> \in asked => NothingOf(n) /\ n <= fence
    /\ AskQuarantine \in asked => \E m \in DOMAIN adapters : adapters[m].state = "UNKNOWN"

-----------------------------------------------------------------------------
(* What holds of every step *)

ClosedIsForEver == [][\A v \in Version : closed[v] # NoReclaim => closed'[v] = closed[v]]_vars

NothingRunsBackwards == [][seq' >= seq /\ fence' >= fence /\ tombstones \subseteq tombstones']_vars

NewsHasANewSeq ==             \* I12: who knows a higher seq knows what is here and what is READY
    [][(DOMAIN adapters' # DOMAIN adapters \/ Ready' # Ready) => seq' > seq]_vars

WorkMoves ==                  \* how a work may go on
    {<<"PREPARED", "ARMED">>, <<"ARMED", "PREPARED">>, <<"ARMED", "FAILED">>, <<"PREPARED", "LOADING">>,
     <<"LOADING", "PROBING">>, <<"LOADING", "FAILED">>, <<"PROBING", "READY">>, <<"PROBING", "FAILED">>,
     <<"READY", "FAILED">>}

AdapterMoves ==               \* and a removal
    {<<"PRESENT", "UNREGISTERING">>, <<"UNREGISTERING", "DRAINING">>, <<"UNREGISTERING", "COUNTING">>,
     <<"DRAINING", "COUNTING">>, <<"COUNTING", "DRAINING">>, <<"COUNTING", "UNLOADING">>, <<"COUNTING", "UNKNOWN">>,
     <<"UNKNOWN", "COUNTING">>, <<"UNLOADING", "LINGERING">>}

LifecycleIsKept ==            \* I8: a work starts at most one load, an adapter at most one unload
    [][/\ \A n \in DOMAIN works \cap DOMAIN works' :
              \/ works'[n].state = works[n].state
              \/ <<works[n].state, works'[n].state>> \in WorkMoves
       /\ \A m \in DOMAIN adapters \cap DOMAIN adapters' :
              \/ adapters'[m].state = adapters[m].state
              \/ <<adapters[m].state, adapters'[m].state>> \in AdapterMoves]_vars

RunningIsWaitedFor ==         \* nothing that runs is forgotten before its own result; what is doomed stays so
    [][/\ \A n \in DOMAIN works : works[n].state \in Running /\ n \notin DOMAIN works' => works[n].doomed
       /\ \A n \in DOMAIN works \cap DOMAIN works' : works[n].doomed => works'[n].doomed]_vars

OneCollective ==              \* I8: a bucket whose receive was posted is never posted again
    [][\A n \in DOMAIN works \cap DOMAIN works' :
           /\ works'[n].received \in {works[n].received, works[n].received + 1}
           /\ (works[n].state = "ARMED" /\ works'[n].state # "ARMED") =>
                  (works'[n].state = "FAILED" \/ works'[n].received = works[n].received + 1)
           /\ \A k \in 0..MaxBuckets :
                  PostReceive(n, k) \in asked' \ asked => works[n].state = "PREPARED"]_vars

NoZeroNoUnload ==             \* I13: a leak, a negative or an unreadable count is not zero
    [][\A m \in Name, count \in {-1, 0, 1} :
           Counted(m, count) => (adapters'[m].state = "UNLOADING") = (count = 0)]_vars

OldListingsAreNoNews ==       \* I12: a seq that is not the latest changes nothing
    [][\A names \in SUBSET DOMAIN adapters, q \in {seq - 1} : ~Listed(names, q)]_vars
=============================================================================
