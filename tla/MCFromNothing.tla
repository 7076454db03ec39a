--------------------------- MODULE MCFromNothing ---------------------------
(* LoraRegistry from its own first state on, with all its actions: that it refines Promise from there. *)
EXTENDS MCLoraRegistry

NothingSpec == Init /\ [][MCNext]_vars
=============================================================================
