--------------------------- MODULE SessionRefsBugs ---------------------------
(***************************************************************************)
(* Mistakes that are tempting; some are the original's.  Each takes the    *)
(* place of one action, or of one definition, in the model of the same     *)
(* name, and must break the property that the manifest names, while TypeOK *)
(* holds.                                                                  *)
(***************************************************************************)
EXTENDS MCSessionRefs

\* Whatever asks is let in: a request that comes after the close opens the session again.
EnsureReopens(s, v) ==
    /\ sessions[s].state \in {"UNSEEN", "CLOSED"} \/ (s \in Held /\ sessions[s].space = v)
    /\ ~IsDead(v)
    /\ sessions' = [sessions EXCEPT ![s] = [Used(@) EXCEPT !.space = v]]
    /\ UNCHANGED <<tree, pins, standing>>

\* A request that was running when its session was closed registers all the same.
LateFinishRefers(s, n) ==
    /\ n \in Nodes
    /\ sessions[s].state # "UNSEEN"
    /\ sessions' = [sessions EXCEPT ![s].ends = Advanced(@, n)]
    /\ UNCHANGED <<tree, pins, standing>>

\* Generations start anew when the cache is flushed.
FlushForgets ==
    /\ tree' = SelectSeq(tree, LAMBDA n : Pinned(n))
    /\ sessions' = [s \in Session |-> Nobody("UNSEEN")]
    /\ UNCHANGED <<pins, standing>>

\* Only so many tombstones are kept; here one.
TombstonesEvicted(s) ==
    /\ sessions[s].state # "CLOSED"
    /\ sessions' = [x \in Session |-> IF x = s THEN Nobody("CLOSED")
                                      ELSE IF sessions[x].state = "CLOSED" THEN Nobody("UNSEEN") ELSE sessions[x]]
    /\ UNCHANGED <<tree, pins, standing>>

\* Closing moves the session's nodes to the recent end of the part for what nobody refers to.
CloseIsAccess(s) ==
    /\ sessions[s].state # "CLOSED"
    /\ sessions' = [sessions EXCEPT ![s] = Nobody("CLOSED")]
    /\ tree' = Without(tree, EndsOf(s)) \o SelectSeq(tree, LAMBDA n : n \in EndsOf(s))
    /\ UNCHANGED <<pins, standing>>

\* What falls back stays until somebody closes the session.
RefsPileUp(record) == KnownWhile([record EXCEPT !.state = "EXPIRED", !.left = 0])

\* What a session refers to must not go.
RefsAreLocks == {n \in Nodes : Below(n) = {} /\ ~Pinned(n) /\ Refs(n, "LIVE") = 0}

\* Least recently used, whoever refers to it.
RefsAreIgnored(m, n) == Age(m) < Age(n)

\* Its KV will be evicted when room is needed.
ReclaimIsLazy(v) ==
    /\ standing[v] # "DEAD"
    /\ standing' = [standing EXCEPT ![v] = "DEAD"]
    /\ UNCHANGED <<tree, pins, sessions>>

-----------------------------------------------------------------------------
(* Witnesses: each says that something never happens, and must be found wrong. *)

NothingFallsBack == \A s \in Session : \A i \in DOMAIN sessions[s].ends : ~sessions[s].ends[i].fell
NobodyIsSilent   == \A s \in Session : sessions[s].state # "EXPIRED"
NoDeadIsLocked   == \A n \in Nodes : ~IsDead(n.space)
=============================================================================
