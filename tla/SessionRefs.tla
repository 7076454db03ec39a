----------------------------- MODULE SessionRefs -----------------------------
(***************************************************************************)
(* Which KV a prefix cache keeps: sessions refer to what they will ask for *)
(* again, softly, from the end of a request until they are closed.  A ref  *)
(* says when a node goes, never whether.                                   *)
(*                                                                         *)
(* One component (full KV), one tier, least recently used at the base.  A  *)
(* session is (owner, sequence); the sequence is its generation: a label   *)
(* that is opened again is the next sequence.  Only what changes something *)
(* is an action; a call that is refused is an action that is not enabled.  *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Owner,         \* processes that hold sessions
    Sequence,      \* generations: numbers of one owner's sessions
    Version,       \* LoRA versions: positive integers
    Text,          \* what requests ask for: sequences of tokens
    Pin,           \* requests that may run at a time, each with a hard lock
    Branches,      \* ends of one session that are protected
    TTL            \* ticks without a request after which a session is only expired; 0: never

VARIABLES
    tree,          \* the nodes, the least recently used first
    pins,          \* the node up to which each running request locks
    sessions,      \* what is known of each session
    standing       \* what the registry said of each version

vars == <<tree, pins, sessions, standing>>

Base    == 0                              \* the namespace of the base model
NoSpace == -1
Space   == Version \cup {Base}            \* namespaces never share a node
Session == Owner \X Sequence

Node    == [space : Space, text : Seq(Nat)]    \* text: all tokens from the root to the node's end
NoNode  == [space |-> NoSpace, text |-> <<>>]

-----------------------------------------------------------------------------
(* What the variables may hold *)

End ==
    [node : Node,          \* where a request of the session ended
     fell : BOOLEAN]       \* no: where the ref fell back to, since that node was evicted

SessionRecord ==
    [state : {"UNSEEN", "LIVE", "EXPIRED", "CLOSED"},
     space : Space \cup {NoSpace},         \* fixed by its first request
     left : 0..TTL,                        \* ticks until it expires
     ends : Seq(End)]                      \* the oldest first

Nobody(state) == [state |-> state, space |-> NoSpace, left |-> 0, ends |-> <<>>]

TypeOK ==
    /\ tree \in Seq(Node)
    /\ pins \in [Pin -> Node \cup {NoNode}]
    /\ sessions \in [Session -> SessionRecord]
    /\ standing \in [Version -> {"SERVING", "IDLE", "DEAD"}]

Init ==
    /\ tree = <<>>
    /\ pins = [p \in Pin |-> NoNode]
    /\ sessions = [s \in Session |-> Nobody("UNSEEN")]
    /\ standing = [v \in Version |-> "SERVING"]

-----------------------------------------------------------------------------
(* Questions *)

Range(seq) == {seq[i] : i \in DOMAIN seq}

IsPrefix(a, b) == Len(a) <= Len(b) /\ SubSeq(b, 1, Len(a)) = a

Shared(a, b) ==            \* the longest common prefix
    LET lengths == {k \in 0..Len(a) : k <= Len(b) /\ SubSeq(a, 1, k) = SubSeq(b, 1, k)}
    IN  SubSeq(a, 1, CHOOSE k \in lengths : \A j \in lengths : j <= k)

Nodes     == Range(tree)
At(v, t)  == [space |-> v, text |-> t]
Covers(n, m) == m.space = n.space /\ IsPrefix(m.text, n.text)     \* m is n, or on its way to the root
Path(n)   == {m \in Nodes : Covers(n, m)}
Below(n)  == {m \in Nodes : m # n /\ Covers(m, n)}
Age(n)    == CHOOSE i \in DOMAIN tree : tree[i] = n                \* 1: the oldest

Held      == {s \in Session : sessions[s].state \in {"LIVE", "EXPIRED"}}
EndsOf(s) == {sessions[s].ends[i].node : i \in DOMAIN sessions[s].ends}

Refs(n, state) ==          \* distinct sessions of this state that cover n, however many branches each has
    Cardinality({s \in Session : sessions[s].state = state /\ \E e \in EndsOf(s) : Covers(e, n)})

Pinned(n) == \E p \in Pin : pins[p] # NoNode /\ Covers(pins[p], n)

IsDead(v) == v \in Version /\ standing[v] = "DEAD"

-----------------------------------------------------------------------------
(* The order of eviction: idle version < unreferenced < expired < active, then fewer refs, then least recently used. *)
(* What a dead version still has is locked.                                                                          *)

IDLE == 1  UNREFERENCED == 2  EXPIRED == 3  ACTIVE == 4

Class(n) ==
    CASE n.space \in Version /\ standing[n.space] = "IDLE" -> IDLE
      [] Refs(n, "LIVE") > 0    -> ACTIVE
      [] Refs(n, "EXPIRED") > 0 -> EXPIRED
      [] OTHER                  -> UNREFERENCED

Weight(n) == IF Refs(n, "LIVE") > 0 THEN Refs(n, "LIVE") ELSE Refs(n, "EXPIRED")

Before(m, n) ==
    \/ Class(m) < Class(n)
    \/ Class(m) = Class(n) /\ Weight(m) < Weight(n)
    \/ Class(m) = Class(n) /\ Weight(m) = Weight(n) /\ Age(m) < Age(n)

Candidates == {n \in Nodes : Below(n) = {} /\ ~Pinned(n)}

Victims == {n \in Candidates : \A m \in Candidates : m = n \/ Before(n, m)}     \* at most one

-----------------------------------------------------------------------------
(* The tree *)

Without(seq, S) == SelectSeq(seq, LAMBDA n : n \notin S)

Upward(S) ==               \* the nodes of one path, from the root down
    [i \in 1..Cardinality(S) |-> CHOOSE n \in S : Cardinality({m \in S : Len(m.text) < Len(n.text)}) = i - 1]

Reach(v, t) ==             \* how much of t is there: the longest of what it shares with any node
    LET shared == {Shared(t, n.text) : n \in {m \in Nodes : m.space = v}} \cup {<<>>}
    IN  CHOOSE a \in shared : \A b \in shared : Len(b) <= Len(a)

Accessed(n) ==             \* its path becomes the most recent, n the most of all; a split is no access
    LET new  == IF n \in Nodes THEN {} ELSE {n}
        path == Path(n) \cup new
    IN  Without(tree, path) \o Upward(path)

-----------------------------------------------------------------------------
(* Requests *)

Match(v, t) ==             \* t's longest prefix that is there; a node that t leaves in the middle is split there
    /\ ~IsDead(v)
    /\ Reach(v, t) # <<>>
    /\ tree' = Accessed(At(v, Reach(v, t)))
    /\ UNCHANGED <<pins, sessions, standing>>

Insert(v, t) ==            \* what a request computed
    LET fork == At(v, Reach(v, t))
        path == Path(At(v, t)) \cup {At(v, t)} \cup (IF fork.text = <<>> THEN {} ELSE {fork})
    IN
    /\ ~IsDead(v)
    /\ tree' = Without(tree, path) \o Upward(path)
    /\ UNCHANGED <<pins, sessions, standing>>

Lock(p, n) ==              \* a request runs on this path: nothing of it may go
    /\ pins[p] = NoNode
    /\ n \in Nodes
    /\ ~IsDead(n.space)
    /\ pins' = [pins EXCEPT ![p] = n]
    /\ UNCHANGED <<tree, sessions, standing>>

Unlock(p) ==               \* what is left of a dead version goes with its lock
    LET others(n) == \E q \in Pin \ {p} : pins[q] # NoNode /\ Covers(pins[q], n)
    IN
    /\ pins[p] # NoNode
    /\ pins' = [pins EXCEPT ![p] = NoNode]
    /\ tree' = IF IsDead(pins[p].space)
               THEN SelectSeq(tree, LAMBDA n : n.space # pins[p].space \/ others(n)) ELSE tree
    /\ UNCHANGED <<sessions, standing>>

-----------------------------------------------------------------------------
(* Sessions *)

Used(record) == [record EXCEPT !.state = "LIVE", !.left = TTL]    \* an expired session that comes back is live

Open(s, v) ==              \* or a request without an open; a closed session never opens again
    /\ sessions[s].state = "UNSEEN" \/ (s \in Held /\ sessions[s].space = v)
    /\ ~IsDead(v)
    /\ sessions' = [sessions EXCEPT ![s] = [Used(@) EXCEPT !.space = v]]
    /\ UNCHANGED <<tree, pins, standing>>

EndedAt(s, n) ==           \* a request of s ended at n
    /\ s \in Held
    /\ n \in Nodes
    /\ n.space = sessions[s].space
    /\ ~IsDead(n.space)

Advanced(ends, n) ==       \* from its nearest end above; the oldest branch gives way where there is one too many
    LET above == {i \in DOMAIN ends : Covers(n, ends[i].node)}
        old   == {i \in above : \A j \in above : Len(ends[j].node.text) <= Len(ends[i].node.text)}
        keep  == SelectSeq(ends, LAMBDA e : \A i \in old : e # ends[i])
        all   == Append(keep, [node |-> n, fell |-> FALSE])
    IN  IF Len(all) > Branches THEN Tail(all) ELSE all

Register(s, n) ==          \* the insert of a request succeeded: the session refers to its path
    /\ EndedAt(s, n)
    /\ sessions' = [sessions EXCEPT ![s] = [Used(@) EXCEPT !.ends = Advanced(@, n)]]
    /\ UNCHANGED <<tree, pins, standing>>

Aborted(s, n) ==           \* it was aborted, or streams: it counts as use, and leaves no ref
    /\ EndedAt(s, n)
    /\ sessions' = [sessions EXCEPT ![s] = Used(@)]
    /\ UNCHANGED <<tree, pins, standing>>

Close(s) ==                \* for ever; the KV stays, and stays where it is in the order
    /\ sessions[s].state # "CLOSED"
    /\ sessions' = [sessions EXCEPT ![s] = Nobody("CLOSED")]
    /\ UNCHANGED <<tree, pins, standing>>

EndOwner(o) ==             \* its process is gone: none of its sessions comes back
    /\ \E q \in Sequence : sessions[<<o, q>>].state # "CLOSED"
    /\ sessions' = [s \in Session |-> IF s[1] = o THEN Nobody("CLOSED") ELSE sessions[s]]
    /\ UNCHANGED <<tree, pins, standing>>

KnownWhile(record) ==      \* an expired session without refs is unseen again, which is not closed
    IF record.state = "EXPIRED" /\ record.ends = <<>> THEN Nobody("UNSEEN") ELSE record

Expired(record) ==         \* what fell back would pile up on what many share: it ends with the TTL
    KnownWhile([record EXCEPT !.state = "EXPIRED", !.left = 0, !.ends = SelectSeq(@, LAMBDA e : ~e.fell)])

Tick(d) ==                 \* time passes
    /\ \E s \in Session : sessions[s].state = "LIVE" /\ TTL > 0
    /\ sessions' = [s \in Session |->
           LET record == sessions[s] IN
           IF record.state # "LIVE" THEN record
           ELSE IF record.left <= d THEN Expired(record) ELSE [record EXCEPT !.left = @ - d]]
    /\ UNCHANGED <<tree, pins, standing>>

-----------------------------------------------------------------------------
(* Memory *)

Parent(n) ==               \* the nearest node above, or none
    LET above == Path(n) \ {n}
    IN  IF above = {} THEN NoNode ELSE CHOOSE m \in above : \A k \in above : Len(k.text) <= Len(m.text)

Fallen(record, n) ==       \* a live session's ref falls back to the parent, an expired one's is released
    LET kept == SelectSeq(record.ends, LAMBDA e : e.node # n)
        back == Parent(n)
        none == back = NoNode \/ record.state = "EXPIRED" \/ \E i \in DOMAIN kept : kept[i].node = back
    IN  KnownWhile([record EXCEPT !.ends = IF none THEN kept ELSE Append(kept, [node |-> back, fell |-> TRUE])])

Evict ==                   \* room is needed: the next victim goes
    \E n \in Victims :
        /\ tree' = Without(tree, {n})
        /\ sessions' = [s \in Session |-> IF n \in EndsOf(s) THEN Fallen(sessions[s], n) ELSE sessions[s]]
        /\ UNCHANGED <<pins, standing>>

NotThere(record, S) ==     \* a session without its ends in these namespaces
    KnownWhile([record EXCEPT !.ends = SelectSeq(@, LAMBDA e : e.node.space \notin S)])

Dropped(S) ==              \* all KV of these namespaces that no lock holds goes, and all refs
    /\ tree' = SelectSeq(tree, LAMBDA n : n.space \notin S \/ Pinned(n))
    /\ sessions' = [s \in Session |-> NotThere(sessions[s], S)]

Flush ==                   \* live sessions stay live, closed ones closed
    /\ Dropped(Space)
    /\ UNCHANGED <<pins, standing>>

-----------------------------------------------------------------------------
(* Versions: what the registry says *)

Serve(v) ==                \* PUBLISHED, or RETIRED with session refs
    /\ standing[v] = "IDLE"
    /\ standing' = [standing EXCEPT ![v] = "SERVING"]
    /\ UNCHANGED <<tree, pins, sessions>>

Retire(v) ==               \* RETIRED without session refs, or RECLAIMING: next to go
    /\ standing[v] = "SERVING"
    /\ standing' = [standing EXCEPT ![v] = "IDLE"]
    /\ UNCHANGED <<tree, pins, sessions>>

Discard(v) ==              \* ABORTED or FAILED_CLEAN: it may be reserved again
    /\ standing[v] # "DEAD"
    /\ standing' = [standing EXCEPT ![v] = "SERVING"]
    /\ Dropped({v})
    /\ UNCHANGED pins

Reclaim(v) ==              \* RECLAIMED: dropped at once, and nothing can ask for it again
    /\ standing[v] # "DEAD"
    /\ standing' = [standing EXCEPT ![v] = "DEAD"]
    /\ Dropped({v})
    /\ UNCHANGED pins

-----------------------------------------------------------------------------
Next ==
    \/ \E v \in Space, t \in Text : Match(v, t) \/ Insert(v, t)
    \/ \E p \in Pin : Unlock(p) \/ \E n \in Nodes : Lock(p, n)
    \/ \E s \in Session : \/ Close(s)
                          \/ \E v \in Space : Open(s, v)
                          \/ \E n \in Nodes : Register(s, n) \/ Aborted(s, n)
    \/ \E o \in Owner : EndOwner(o)
    \/ \E d \in 1..TTL : Tick(d)
    \/ Evict
    \/ Flush
    \/ \E v \in Version : Serve(v) \/ Retire(v) \/ Discard(v) \/ Reclaim(v)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What is promised of every state *)

TreeIsRadix ==             \* a node where texts part; none twice
    /\ Cardinality(Nodes) = Len(tree)
    /\ \A m, n \in Nodes : m.space = n.space =>
           (m.text # <<>> /\ (Shared(m.text, n.text) = <<>> \/ At(m.space, Shared(m.text, n.text)) \in Nodes))

PinnedIsThere == \A p \in Pin : pins[p] \in Nodes \cup {NoNode}

RefsAreThere ==            \* and no version refers to another's KV
    \A s \in Held : EndsOf(s) \subseteq {n \in Nodes : n.space = sessions[s].space}

OnlyTheHeldRefer == \A s \in Session \ Held : sessions[s] = Nobody(sessions[s].state)

BranchesAreFew ==
    \A s \in Session : Len(sessions[s].ends) <= Branches /\ Cardinality(EndsOf(s)) = Len(sessions[s].ends)

RefsDoNotGrowDownward ==
    \A m, n \in Nodes : Covers(m, n) => \A state \in {"LIVE", "EXPIRED"} : Refs(m, state) <= Refs(n, state)

SilenceIsForgotten ==      \* who is silent for its TTL leaves nothing behind but refs on KV that is still there
    \A s \in Session : sessions[s].state = "EXPIRED" =>
        /\ sessions[s].ends # <<>>
        /\ \A i \in DOMAIN sessions[s].ends : ~sessions[s].ends[i].fell

DeadIsGone == \A n \in Nodes : IsDead(n.space) => Pinned(n) /\ Refs(n, "LIVE") + Refs(n, "EXPIRED") = 0

RefsNeverRefuse ==         \* what no lock holds can be freed, down to the last node
    (\E n \in Nodes : ~Pinned(n)) => Cardinality(Victims) = 1

LeastWorthGoesFirst ==     \* no referenced leaf goes while an unreferenced one could
    \A n \in Victims, m \in Candidates : Class(n) <= Class(m)

-----------------------------------------------------------------------------
(* And of every step *)

ClosedIsForEver ==
    [][\A s \in Session : sessions[s].state = "CLOSED" => sessions'[s] = sessions[s]]_vars

DeadIsForEver == [][\A v \in Version : IsDead(v) => IsDead(v)']_vars

ClosingMovesNothing ==     \* no value, lock, or place in the order; no other session but of the same owner
    [][\A s \in Session : (sessions[s].state # "CLOSED" /\ sessions'[s].state = "CLOSED") =>
           /\ UNCHANGED <<tree, pins, standing>>
           /\ \A other \in Session : other[1] = s[1] \/ sessions'[other] = sessions[other]]_vars

OneVersionForLife ==
    [][\A s \in Held : s \in Held' => sessions'[s].space = sessions[s].space]_vars

PinnedStays ==
    [][\A p \in Pin : (pins[p] # NoNode /\ pins'[p] = pins[p]) => Path(pins[p]) \subseteq Nodes']_vars

OrderIsOfAccess ==         \* only a request moves nodes in the order; whoever else leaves them as they were
    [][(UNCHANGED <<pins, sessions, standing>> /\ Len(tree') >= Len(tree)) \/ tree' = SelectSeq(tree, LAMBDA n : n \in Nodes')]_vars
=============================================================================
