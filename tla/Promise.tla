------------------------------ MODULE Promise ------------------------------
(***************************************************************************)
(* What a user may rely on.  A session uses one version from its first     *)
(* request to its end.  A new session gets the default, of which there is  *)
(* one.  A version occupies a slot from its reserve on; there are never    *)
(* more than Capacity; a slot becomes free only when nobody can use its    *)
(* version any more.                                                       *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Version,    \* the versions that may be published
    Session,    \* the sessions that may be opened, each once
    Capacity,   \* how many slots there are
    NoVersion   \* what is there when there is no version

VARIABLES
    default,    \* the version that a new session gets
    uses,       \* the version that each session uses
    ended,      \* the sessions that are over
    taken,      \* the versions that policy took from their sessions
    refs,       \* how many sessions are counted for each version
    slots       \* the versions that occupy one

vars == <<default, uses, ended, taken, refs, slots>>

TypeOK ==
    /\ default \in Version \cup {NoVersion}
    /\ uses \in [Session -> Version \cup {NoVersion}]
    /\ ended \subseteq Session
    /\ taken \subseteq Version
    /\ refs \in [Version -> Nat]
    /\ slots \subseteq Version

Init ==
    /\ default = NoVersion
    /\ uses = [s \in Session |-> NoVersion]
    /\ ended = {}
    /\ taken = {}
    /\ refs = [v \in Version |-> 0]
    /\ slots = {}

-----------------------------------------------------------------------------
Users(v)  == {s \in Session : uses[s] = v}
CanUse(v) == v = default \/ (v \notin taken /\ Users(v) # {})

Occupy(v) ==            \* reserve
    /\ v \notin slots
    /\ Cardinality(slots) < Capacity
    /\ slots' = slots \cup {v}
    /\ UNCHANGED <<default, uses, ended, taken, refs>>

Switch(v, lost) ==      \* commit, or rollback; policy may take versions that lag
    /\ v \in slots \ (taken \cup {default})
    /\ default' = v
    /\ taken' = taken \cup lost
    /\ refs' = [w \in Version |-> IF w \in lost THEN 0 ELSE refs[w]]
    /\ UNCHANGED <<uses, ended, slots>>

Bind(s) ==              \* once, to the default
    /\ s \notin ended
    /\ uses[s] = NoVersion
    /\ default # NoVersion
    /\ uses' = [uses EXCEPT ![s] = default]
    /\ refs' = [refs EXCEPT ![default] = @ + 1]
    /\ UNCHANGED <<default, ended, taken, slots>>

End(S) ==               \* one session, or all of an owner; each is counted off once
    /\ S # {}
    /\ S \cap ended = {}
    /\ ended' = ended \cup S
    /\ uses' = [s \in Session |-> IF s \in S THEN NoVersion ELSE uses[s]]
    /\ refs' = [v \in Version |-> IF v \in taken THEN refs[v] ELSE refs[v] - Cardinality(Users(v) \cap S)]
    /\ UNCHANGED <<default, taken, slots>>

Free(F) ==              \* only what nobody can use
    /\ F # {}
    /\ F \subseteq slots
    /\ \A v \in F : ~CanUse(v)
    /\ slots' = slots \ F
    /\ UNCHANGED <<default, uses, ended, taken, refs>>

Next ==
    \/ \E v \in Version : Occupy(v)
    \/ \E v \in Version : \E lost \in SUBSET (slots \ {v}) : Switch(v, lost)
    \/ \E s \in Session : Bind(s)
    \/ \E S \in SUBSET Session : End(S)
    \/ \E F \in SUBSET slots : Free(F)

Spec == Init /\ [][Next]_vars

\* A slot does not stay taken for ever by what nobody can use, even if nobody asks for it.
FreeOne(v) == \E F \in SUBSET slots : v \in F /\ Free(F)
Fairness   == \A v \in Version : WF_vars(FreeOne(v))
FairSpec   == Spec /\ Fairness

\* The same without a word on actions: FreeOne(v) can happen while v has a slot and no use, and ends that.
SlotsComeFree == \A v \in Version : []<>(v \notin slots \/ CanUse(v))

-----------------------------------------------------------------------------
(* So it holds, always: *)

DefaultHasASlot == default = NoVersion \/ default \in slots
UsedHasASlot    == \A v \in Version : CanUse(v) => v \in slots
RefsCountUsers  == \A v \in Version : refs[v] = IF v \in taken THEN 0 ELSE Cardinality(Users(v))
WithinCapacity  == Cardinality(slots) <= Capacity
SessionsStick   ==
    [][\A s \in Session :
        /\ s \in ended => uses'[s] = uses[s]
        /\ uses[s] # NoVersion => uses'[s] = uses[s] \/ s \in ended']_vars
=============================================================================
