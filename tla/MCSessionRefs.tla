---------------------------- MODULE MCSessionRefs ----------------------------
(***************************************************************************)
(* SessionRefs in small boxes: each .cfg of models/session_refs says which *)
(* calls may come in its box.  They come in any order, with any argument.  *)
(***************************************************************************)
EXTENDS SessionRefs

CONSTANTS
    Happens,      \* names of the calls of this box
    Spaces        \* namespaces that requests ask in

In(name, S) == IF name \in Happens THEN S ELSE {}

\* What requests ask for: one grows, or two part, at once or after a common beginning.
Growing == {<<1>>, <<1, 1>>}
Parting == {<<1, 1>>, <<1, 2>>}
Forking == {<<1>>, <<1, 1>>, <<1, 2>>}
Apart   == {<<1>>, <<2>>}
Single  == {<<1>>}

\* Every node that there may be.
Named == UNION {{At(v, SubSeq(t, 1, k)) : k \in 1..Len(t)} : v \in Spaces, t \in Text}

MCEvict == "Evict" \in Happens /\ Evict
MCFlush == "Flush" \in Happens /\ Flush

MCNext ==
    \/ \E v \in In("Match", Spaces), t \in Text : Match(v, t)
    \/ \E v \in In("Insert", Spaces), t \in Text : Insert(v, t)
    \/ \E p \in In("Lock", Pin), n \in Named : Lock(p, n)
    \/ \E p \in In("Unlock", Pin) : Unlock(p)
    \/ \E s \in In("Open", Session), v \in Spaces : Open(s, v)
    \/ \E s \in In("Register", Session), n \in Named : Register(s, n)
    \/ \E s \in In("Aborted", Session), n \in Named : Aborted(s, n)
    \/ \E s \in In("Close", Session) : Close(s)
    \/ \E o \in In("EndOwner", Owner) : EndOwner(o)
    \/ \E d \in In("Tick", 1..TTL) : Tick(d)
    \/ MCEvict
    \/ MCFlush
    \/ \E v \in In("Serve", Version) : Serve(v)
    \/ \E v \in In("Retire", Version) : Retire(v)
    \/ \E v \in In("Discard", Version) : Discard(v)
    \/ \E v \in In("Reclaim", Version) : Reclaim(v)

MCSpec == Init /\ [][MCNext]_vars
=============================================================================
