----------------------- MODULE LoraRegistryInductive -----------------------
(***************************************************************************)
(* Why the registry's invariants stay true: IndInv holds in the beginning, *)
(* every action keeps it from whatever state it holds in, and it implies   *)
(* I1-I6 and I9-I12.  lorafsm/inductive.py says the same of the code, and  *)
(* there the induction is checked: in states that are made field by field, *)
(* reachable or not.  Here TLC checks that reachable states have it.       *)
(***************************************************************************)
EXTENDS LoraRegistry

(* What is referred to is there. *)
RecordsAreThere ==
    /\ \A v \in Version : versions[v].state # "NONE" =>
           versions[v].number \in DOMAIN attempts /\ attempts[versions[v].number].key = v
    /\ \A n \in DOMAIN attempts :
           /\ versions[attempts[n].key].state # "NONE"
           /\ versions[attempts[n].key].number >= n
           /\ tokens[attempts[n].token] = n
    /\ \A p \in DOMAIN repairs : versions[repairs[p].key].state # "NONE"

(* A version and its latest attempt go together; what was published once needs a default in its place. *)
AttemptOf(state) ==
    CASE state = "LOADING"      -> "OPEN"
      [] state = "ABORTED"      -> "ABORTED"
      [] state = "FAILED_CLEAN" -> "CLEAN"
      [] OTHER                  -> "COMMITTED"

VersionsFollowAttempts ==
    \A v \in Version : versions[v].state # "NONE" =>
        /\ attempts[versions[v].number].state = AttemptOf(versions[v].state)
        /\ versions[v].state \in {"RETIRED", "RECLAIMING", "RECLAIMED"} => default # NoVersion
        /\ versions[v].state \in {"RECLAIMING", "RECLAIMED"} <=> versions[v].reclaim_id # NoReclaim
        /\ versions[v].revoked => versions[v].state \in {"RETIRED", "RECLAIMING", "RECLAIMED"}

(* Who is committed was READY everywhere; who is aborted is unclean somewhere; nobody knows a later incarnation. *)
TargetsFit ==
    \A n \in DOMAIN attempts :
        /\ attempts[n].state = "COMMITTED" => \A e \in DOMAIN attempts[n].targets : Target(n, e).state = "READY"
        /\ attempts[n].state = "ABORTED" => \E e \in DOMAIN attempts[n].targets : Target(n, e).state # "CLEANED"
        /\ \A e \in DOMAIN attempts[n].targets : Target(n, e).incarnation <= engines[e].incarnation

UnloadsFit ==
    \A c \in ReclaimId : \A e \in DOMAIN reclaims[c].unloads :
        reclaims[c].unloads[e].incarnation <= engines[e].incarnation

EnginesFit ==
    \A e \in Engine :
        /\ engines[e].inventory.seq <= engines[e].seq
        /\ engines[e].state = "QUARANTINED" => \A v \in Version : engines[e].repairs[v] = NoNumber

(* A proof leaves before its target is clean or its unload is done (I11). *)
PresenceFits ==
    \A e \in Engine, v \in Version :
        LET n == engines[e].residents[v].number
            c == versions[v].reclaim_id
        IN engines[e].residents[v] # NoResident =>
            /\ versions[v].state \in {"LOADING", "ABORTED"} =>
                   /\ n = versions[v].number
                   /\ e \in DOMAIN attempts[n].targets
                   /\ Target(n, e).state # "CLEANED"
            /\ versions[v].state = "RECLAIMING" =>
                   /\ e \in DOMAIN reclaims[c].unloads
                   /\ reclaims[c].unloads[e].state # "UNLOADED"

IndInv ==
    /\ TypeOK
    /\ OneDefault
    /\ RefsAreHolders
    /\ BindingsAreAllThereIs
    /\ SlotsWithinCapacity
    /\ OneUnresolved
    /\ UnloadsAreOrdered
    /\ RepairsAreListed
    /\ ProofsAreOfTheVersion
    /\ FreedMeansAbsent
    /\ UpMeansServing
    /\ RecordsAreThere
    /\ VersionsFollowAttempts
    /\ TargetsFit
    /\ UnloadsFit
    /\ EnginesFit
    /\ PresenceFits
=============================================================================
