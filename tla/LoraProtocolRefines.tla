------------------------ MODULE LoraProtocolRefines ------------------------
(* Every step of the whole protocol keeps the promise; under its fairness, a slot that nobody can use comes free. *)
EXTENDS LoraProtocol

Session == Owner \X Sequence

Binding(s) == owners[s[1]].sessions[s[2]]

Promised == INSTANCE Promise WITH
    uses  <- [s \in Session |-> Binding(s).binding],
    ended <- {s \in Session : Binding(s).state \in {"CLOSED", "EXPIRED"}},
    taken <- {v \in Version : versions[v].revoked},
    refs  <- [v \in Version |-> versions[v].session_refs],
    slots <- Slots

RefinesPromise == Promised!Spec                         \* from nothing on
KeepsPromise   == [][Promised!Next]_(Promised!vars)     \* from any state on
SlotsComeFree  == Promised!SlotsComeFree                \* the promise's fairness, in the form that TLC can judge

-----------------------------------------------------------------------------
(* Each engine of the protocol is an EngineAgent: what changes its memory, or asks its executor for something, is an  *)
(* action of the agent's own specification.  A restart is none: it ends one agent and begins another.                 *)

Named(v) == [version |-> v, digest |-> ContentOf(v)]
Rids     == Sequence \X (1..Requests) \X Engine

Agent(e, asking) == INSTANCE EngineAgent WITH
    OperationKey <- Version \X Number,
    Rid          <- Rids,
    Stranger     <- {},
    Address      <- {e},
    Us           <- e,
    MaxBuckets   <- Buckets,
    Slots        <- EngineSlots,
    seq          <- agents[e].seq,
    fence        <- agents[e].fence,
    tombstones   <- agents[e].tombstones,
    works        <- [n \in DOMAIN agents[e].works |->
                        LET w == agents[e].works[n] IN
                        [key |-> w.key, digest |-> ContentOf(w.key), plan |-> IF w.repair THEN -1 ELSE Buckets,
                         state |-> w.state, received |-> w.received, doomed |-> w.doomed]],
    adapters     <- [m \in {Named(v) : v \in DOMAIN agents[e].adapters} |-> agents[e].adapters[m.version]],
    closed       <- [v \in Version |-> IF v \in agents[e].closed THEN ReclaimOf(v) ELSE NoReclaim],
    strays       <- [x \in Version \X Number |->
                        IF x \in agents[e].strays THEN [name |-> Named(x[1]), number |-> x[2]]
                        ELSE [name |-> [version |-> NoVersion, digest |-> NoDigest], number |-> NoNumber]],
    requests     <- [r \in Rids |-> IF r \in DOMAIN agents[e].requests THEN Named(agents[e].requests[r])
                                    ELSE [version |-> NoVersion, digest |-> NoDigest]],
    sealed       <- [r \in Rids |-> IF r \in DOMAIN agents[e].sealed THEN agents[e].sealed[r] ELSE NoVersion],
    asked        <- asking

Memory(p) ==
    <<p.seq, p.fence, p.tombstones, p.works, p.adapters, p.closed, p.strays, p.requests, p.sealed>>

InFull(p, a) ==           \* what is asked for, with all that the agent says of it
    CASE a[1] = "StartLoad" ->
             LET w == p.works[a[2]]
             IN <<a[1], a[2], Named(w.key), IF w.repair \/ Buckets = 0 THEN "store" ELSE "stash">>
      [] a[1] = "Probe" -> <<a[1], a[2], Named(p.works[a[2]].key)>>
      [] a[1] \in {"Unregister", "CountRequests"} -> <<a[1], Named(a[2])>>
      [] a[1] = "PhysicalUnload" -> <<a[1], Named(a[2]), a[3]>>
      [] OTHER -> a

AsksAnew(p, q) == {InFull(q, a) : a \in q.todo \ p.todo}

MayAsk(p, q) ==           \* what the protocol does not keep apart: a stash, an alarm, a listing that is asked for again
    {<<"DropStash", n>> : n \in DOMAIN p.works} \cup {<<"AskQuarantine">>} \cup ({TakeListing} \cap p.todo \cap q.todo)

EnginesAreAgents ==
    [][\A e \in Engine :
        LET p == agents[e]
            q == agents'[e]
        IN (p.incarnation = q.incarnation /\ (Memory(p) # Memory(q) \/ ~(q.todo \subseteq p.todo))) =>
               \E asking \in {AsksAnew(p, q) \cup more : more \in SUBSET MayAsk(p, q)} : Agent(e, asking)!Next]_agents
=============================================================================
