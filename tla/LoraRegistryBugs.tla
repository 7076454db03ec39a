-------------------------- MODULE LoraRegistryBugs --------------------------
(***************************************************************************)
(* Mistakes that are tempting.  Each takes the place of one action, or of  *)
(* one definition, in the model of the same name, and must break the       *)
(* property that the manifest names, while TypeOK holds.                   *)
(***************************************************************************)
EXTENDS MCLoraRegistry

-----------------------------------------------------------------------------
(* Publication *)

\* One READY is enough: the others will follow.
CommitOnOneReady(v, t, revision) ==
    LET n == tokens[t] IN
    /\ Arrives
    /\ n # NoNumber
    /\ attempts[n].key = v
    /\ attempts[n].state = "OPEN"
    /\ attempts[n].token = t
    /\ revision = attempts[n].revision
    /\ revision = default_revision
    /\ \E e \in DOMAIN attempts[n].targets : ~Doomed(n, e) /\ ReadyCounts(n, e)
    /\ attempts' = [attempts EXCEPT ![n].state = "COMMITTED"]
    /\ versions' = Revoked(Switched(v), default_revision + 1)
    /\ default' = v
    /\ default_revision' = default_revision + 1
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<owners, reclaims, repairs, tokens, rollbacks, next_number>>

\* An engine that restarted is the engine that was READY.
RestartIsForgiven(n, e) == FALSE                    \* for Doomed
RestartIsUnnoticed(e, i, listed) == attempts        \* for FencedAttempts

\* Whoever is late wins: the default may have moved since the reserve.
CommitUndoesRollback(v, t, revision) ==
    LET n == tokens[t] IN
    /\ Arrives
    /\ n # NoNumber
    /\ attempts[n].key = v
    /\ attempts[n].state = "OPEN"
    /\ attempts[n].token = t
    /\ \A e \in DOMAIN attempts[n].targets : ~Doomed(n, e) /\ ReadyCounts(n, e)
    /\ attempts' = [attempts EXCEPT ![n].state = "COMMITTED"]
    /\ versions' = Revoked(Switched(v), default_revision + 1)
    /\ default' = v
    /\ default_revision' = default_revision + 1
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<owners, reclaims, repairs, tokens, rollbacks, next_number>>

\* The name says which version it is.
ReadyByName(n, e, i, q, proof) ==
    /\ Arrives
    /\ OpenTarget(n, e, i)
    /\ proof.version = attempts[n].key
    /\ q > Target(n, e).seq
    /\ Target(n, e).state \in {"PREPARED", "RECEIVING", "UNKNOWN"}
    /\ HasAll(n, e)
    /\ attempts' = Advanced(n, e, [Target(n, e) EXCEPT !.state = "READY", !.buckets_done = Buckets, !.seq = q])
    /\ engines' = [engines EXCEPT ![e] = [Seen(@, q) EXCEPT
           !.residents[attempts[n].key] = [digest |-> proof.digest, number |-> n]]]
    /\ UNCHANGED <<versions, default, default_revision, owners, reclaims, repairs, tokens, rollbacks, next_number>>

Reserved(v, d, t, slots) ==
    /\ Arrives
    /\ versions[v].state \in {"NONE", "FAILED_CLEAN"}
    /\ Cardinality(slots) < Capacity
    /\ next_number \in Number
    /\ LET targets == {e \in Engine : engines[e].state \in Alive} IN
       /\ targets # {}
       /\ attempts' = With(attempts, next_number,
              [key |-> v, token |-> t, state |-> "OPEN", revision |-> default_revision,
               driver_until |-> now' + DriverLease,
               targets |-> [e \in targets |->
                   [incarnation |-> engines[e].incarnation, state |-> "RESERVED", buckets_done |-> 0, seq |-> -1]],
               authorized |-> 0, taken_over |-> FALSE])
    /\ versions' = [versions EXCEPT ![v] =
           [state |-> "LOADING", digest |-> d, number |-> next_number, session_refs |-> 0,
            published_revision |-> 0, reclaim_id |-> NoReclaim, artifact |-> @.artifact, revoked |-> FALSE]]
    /\ tokens' = [tokens EXCEPT ![t] = next_number]
    /\ next_number' = next_number + 1
    /\ UNCHANGED <<default, default_revision, owners, engines, reclaims, repairs, rollbacks>>

\* A duplicate of an old request opens a second attempt.
ReserveDuplicated(v, d, t) ==
    Unresolved = {} /\ versions[v].digest \in {NoDigest, d} /\ Reserved(v, d, t, Slots)

\* Two publications at a time.
ReserveBesideAnother(v, d, t) ==
    tokens[t] = NoNumber /\ versions[v].digest \in {NoDigest, d} /\ Reserved(v, d, t, Slots)

\* What is ordered away is as good as gone.
ReserveBeforeUnloaded(v, d, t) ==
    /\ tokens[t] = NoNumber
    /\ Unresolved = {}
    /\ versions[v].digest \in {NoDigest, d}
    /\ Reserved(v, d, t, {w \in Slots : versions[w].state # "RECLAIMING"})

\* A retry may carry another content.
ReserveOtherContent(v, d, t) == tokens[t] = NoNumber /\ Unresolved = {} /\ Reserved(v, d, t, Slots)

\* The trainer's counter went back: an id that was skipped is as good as any.
ReserveBackwards(v, d, t) ==
    /\ tokens[t] = NoNumber
    /\ Unresolved = {}
    /\ versions[v].digest \in {NoDigest, d}
    /\ Reserved(v, d, t, Slots)

\* Broadcast as soon as somebody is ready for it.
AuthorizeEarly(n, t, k) ==
    /\ Arrives
    /\ n \in DOMAIN attempts
    /\ attempts[n].state = "OPEN"
    /\ attempts[n].token = t
    /\ k < Buckets
    /\ k = attempts[n].authorized
    /\ \E e \in DOMAIN attempts[n].targets : ~Doomed(n, e) /\ ArmedFor(n, e, k)
    /\ attempts' = [attempts EXCEPT ![n].authorized = k + 1, ![n].driver_until = now' + DriverLease]
    /\ UNCHANGED <<versions, default, default_revision, owners, engines, reclaims, repairs, tokens, rollbacks,
                   next_number>>

\* The successor goes on where the driver stopped.
AuthorizeAfterTakeover(n, t, k) ==
    /\ Arrives
    /\ n \in DOMAIN attempts
    /\ attempts[n].state = "OPEN"
    /\ attempts[n].token = t
    /\ k < Buckets
    /\ k = attempts[n].authorized
    /\ \A e \in DOMAIN attempts[n].targets : ~Doomed(n, e) /\ ArmedFor(n, e, k)
    /\ attempts' = [attempts EXCEPT ![n].authorized = k + 1, ![n].driver_until = now' + DriverLease]
    /\ UNCHANGED <<versions, default, default_revision, owners, engines, reclaims, repairs, tokens, rollbacks,
                   next_number>>

\* Any unknown result is fatal.
UnknownIsFatal(n, e, i) ==
    /\ Arrives
    /\ n \in Unresolved
    /\ e \in DOMAIN attempts[n].targets
    /\ Target(n, e).incarnation = i
    /\ Target(n, e).state \notin {"CLEANED", "FAILED"}
    /\ attempts' = [attempts EXCEPT ![n].targets[e].state = "FAILED"]
    /\ UNCHANGED <<versions, default, default_revision, owners, engines, reclaims, repairs, tokens, rollbacks,
                   next_number>>

\* Who does not answer a cleanup has nothing to clean.
UnknownIsClean(n, e, i) ==
    /\ Arrives
    /\ n \in Unresolved
    /\ attempts[n].state = "ABORTED"
    /\ e \in DOMAIN attempts[n].targets
    /\ Target(n, e).incarnation = i
    /\ Target(n, e).state # "CLEANED"
    /\ attempts' = CleanAttempts([attempts EXCEPT ![n].targets[e].state = "CLEANED"])
    /\ versions' = FreedSlots(versions, attempts', reclaims)
    /\ UNCHANGED <<default, default_revision, owners, engines, reclaims, repairs, tokens, rollbacks, next_number>>

\* Roll back to what was there once.
RollbackToAbsent(v, revision, op) ==
    /\ Arrives
    /\ op \notin rollbacks
    /\ versions[v].state = "RETIRED"
    /\ ~versions[v].revoked
    /\ revision = default_revision
    /\ versions' = Switched(v)
    /\ default' = v
    /\ default_revision' = default_revision + 1
    /\ rollbacks' = rollbacks \cup {op}
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<owners, attempts, reclaims, repairs, tokens, next_number>>

-----------------------------------------------------------------------------
(* Sessions *)

\* A session moves along with the default.
BindToNewest(o, s) ==
    /\ Arrives
    /\ owners[o].state = "LIVE"
    /\ owners[o].sessions[s].state \in {"NONE", "OPEN", "BOUND"}
    /\ default \notin {NoVersion, owners[o].sessions[s].binding}
    /\ owners' = [owners EXCEPT ![o].sessions[s] = [state |-> "BOUND", binding |-> default]]
    /\ versions' = [v \in Version |->
           [versions[v] EXCEPT !.session_refs =
               CASE v = default -> @ + 1 [] v = owners[o].sessions[s].binding -> @ - 1 [] OTHER -> @]]
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<default, default_revision, attempts, reclaims, repairs, tokens, rollbacks, next_number>>

\* A late request opens a closed session again.
BindReopens(o, s) ==
    /\ Arrives
    /\ owners[o].state = "LIVE"
    /\ owners[o].sessions[s].state \in {"NONE", "OPEN", "CLOSED"}
    /\ default # NoVersion
    /\ owners' = [owners EXCEPT ![o].sessions[s] = [state |-> "BOUND", binding |-> default]]
    /\ versions' = [versions EXCEPT ![default].session_refs = @ + 1]
    /\ UNCHANGED <<default, default_revision, engines, attempts, reclaims, repairs, tokens, rollbacks, next_number>>

\* The ref is dropped when the session begins to close, and again when it has closed.
BeginCloseReleases(o, s) ==
    /\ Arrives
    /\ owners[o].state = "LIVE"
    /\ owners[o].sessions[s].state \in {"NONE", "OPEN", "BOUND"}
    /\ owners' = [owners EXCEPT ![o].sessions[s].state = "FINALIZING"]
    /\ versions' = [v \in Version |->
           IF v = owners[o].sessions[s].binding THEN [versions[v] EXCEPT !.session_refs = @ - 1] ELSE versions[v]]
    /\ UNCHANGED <<default, default_revision, engines, attempts, reclaims, repairs, tokens, rollbacks, next_number>>

\* The refs of an owner that ended are left to somebody else.
EndOwnerKeepsRefs(o, state) ==
    /\ owners' = [owners EXCEPT ![o].state = state,
           ![o].sessions = [s \in Sequence |->
               IF @[s].state = "CLOSED" THEN @[s] ELSE [state |-> "EXPIRED", binding |-> NoVersion]]]
    /\ UNCHANGED <<versions, engines, default, default_revision, attempts, reclaims, repairs, tokens, rollbacks,
                   next_number>>

\* Policy revokes a version and leaves its count alone.
RevokedKeepsRefs(vs, revision) ==
    [v \in Version |->
        IF vs[v].state = "RETIRED" /\ revision - vs[v].published_revision >= MaxVersionLag
        THEN [vs[v] EXCEPT !.revoked = TRUE] ELSE vs[v]]

-----------------------------------------------------------------------------
(* Reclaim and repair *)

\* Keep the newest versions and reclaim the rest, held or not.
WindowRetention(v, c) ==
    /\ Arrives
    /\ reclaims[c].state = "NONE"
    /\ versions[v].state = "RETIRED"
    /\ default_revision - versions[v].published_revision >= 1
    /\ reclaims' = DoneReclaims([reclaims EXCEPT ![c] =
           [state |-> "OPEN", key |-> v,
            unloads |-> [e \in {e \in Members : engines[e].state # "DEAD"} |->
                [incarnation |-> engines[e].incarnation, state |-> "ORDERED"]]]])
    /\ versions' = FreedSlots([versions EXCEPT ![v].state = "RECLAIMING", ![v].reclaim_id = c], attempts, reclaims')
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<default, default_revision, owners, attempts, repairs, tokens, rollbacks, next_number>>

\* Repairs under way are left to themselves.
ClaimForgetsRepairs(v, c) ==
    /\ Arrives
    /\ reclaims[c].state = "NONE"
    /\ versions[v].state = "RETIRED"
    /\ versions[v].session_refs = 0
    /\ reclaims' = DoneReclaims([reclaims EXCEPT ![c] =
           [state |-> "OPEN", key |-> v,
            unloads |-> [e \in {e \in Members : engines[e].state # "DEAD"} |->
                [incarnation |-> engines[e].incarnation, state |-> "ORDERED"]]]])
    /\ versions' = FreedSlots([versions EXCEPT ![v].state = "RECLAIMING", ![v].reclaim_id = c], attempts, reclaims')
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<default, default_revision, owners, attempts, repairs, tokens, rollbacks, next_number>>

\* One engine's receipt frees the slot.
DoneOnFirstReceipt(cs) ==
    [c \in ReclaimId |->
        IF cs[c].state = "OPEN" /\ \E e \in DOMAIN cs[c].unloads : cs[c].unloads[e].state = "UNLOADED"
        THEN [cs[c] EXCEPT !.state = "DONE"] ELSE cs[c]]

\* A restarted engine is empty, whatever it lists.
RestartIsEmpty(e, i, listed) ==
    [c \in ReclaimId |->
        IF e \notin DOMAIN reclaims[c].unloads THEN reclaims[c]
        ELSE [reclaims[c] EXCEPT !.unloads[e].state = "UNLOADED"]]

-----------------------------------------------------------------------------
(* Witnesses: each says that something never happens, and must be found wrong. *)

NothingIsReclaimed      == \A v \in Version : versions[v].state # "RECLAIMED"
NothingFailsAndReturns  == \A n \in DOMAIN attempts : attempts[n].state = "COMMITTED" =>
                               \A m \in DOMAIN attempts : m < n => attempts[m].key # attempts[n].key
NobodyHoldsTheOld       == \A v \in Version : versions[v].state = "RETIRED" => versions[v].session_refs = 0
NobodyIsRevoked         == \A o \in Owner, s \in Sequence :
                               LET v == owners[o].sessions[s].binding IN v # NoVersion => ~versions[v].revoked
NobodyWakesFromUnknown  == \A n \in DOMAIN attempts : \A e \in DOMAIN attempts[n].targets :
                               ~(attempts[n].state = "OPEN" /\ Target(n, e).state = "UNKNOWN" /\ Buckets > 0
                                   /\ attempts[n].authorized = Buckets)
NoStrayIsLeft           == \A e \in Engine : engines[e].strays = {}
NoRepairSucceeds        == \A p \in DOMAIN repairs : repairs[p].state # "READY"
NobodyIsQuarantined     == \A e \in Engine : engines[e].state # "QUARANTINED"
NoOrderRepeats          == \A c \in ReclaimId : \A e \in DOMAIN reclaims[c].unloads :
                               reclaims[c].unloads[e].incarnation = 1
=============================================================================
