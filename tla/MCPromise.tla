----------------------------- MODULE MCPromise -----------------------------
EXTENDS Promise
(* Witnesses: a promise about something that never happens would be worth nothing. *)
NothingIsTaken      == taken = {} \/ \A v \in taken : Users(v) = {}
NoTwoInUse          == Cardinality({v \in Version : Users(v) # {}}) < 2
NoSlotOccupiedAgain == ~(slots # {} /\ ended = Session)
=============================================================================
