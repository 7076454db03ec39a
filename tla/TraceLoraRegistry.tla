------------------------- MODULE TraceLoraRegistry -------------------------
(***************************************************************************)
(* Is what a registry did, row by row of its journal, what LoraRegistry    *)
(* allows?  TraceData holds the traces: for each row the action and its    *)
(* arguments, whether it changed anything, and every variable that is      *)
(* another afterwards.  A row that changed nothing must be an action that  *)
(* is not enabled, and the code of a refusal must be true of the state.    *)
(* A trace is accepted when its last row is passed.                        *)
(***************************************************************************)
EXTENDS LoraRegistry, TraceData, TLC

VARIABLES
    trace,  \* which one
    row     \* the next row of it

Row == Traces[trace][row]
Arg == Row.args

TraceArrives == now' = Max(now, Row.now)    \* in the place of Arrives

Acts ==
    CASE Row.action = "Reserve"         -> Reserve(Arg.key, Arg.digest, Arg.token)
      [] Row.action = "ArtifactStored"  -> ArtifactStored(Arg.key, Arg.digest)
      [] Row.action = "AuthorizeBucket" -> AuthorizeBucket(Arg.number, Arg.token, Arg.bucket)
      [] Row.action = "Commit"          -> Commit(Arg.key, Arg.token, Arg.expected_revision)
      [] Row.action = "Abort"           -> Abort(Arg.key, Arg.token)
      [] Row.action = "Takeover"        -> Takeover(Arg.key, Arg.token, Arg.handover)
      [] Row.action = "Rollback"        -> Rollback(Arg.key, Arg.expected_revision, Arg.operation_id)
      [] Row.action = "Prepared"        -> Prepared(Arg.number, Arg.engine, Arg.incarnation, Arg.seq)
      [] Row.action = "BucketDone"      -> BucketDone(Arg.number, Arg.engine, Arg.incarnation, Arg.seq, Arg.bucket)
      [] Row.action = "Ready"           -> Ready(Arg.number, Arg.engine, Arg.incarnation, Arg.seq, Arg.proof)
      [] Row.action = "TargetFailed"    -> TargetFailed(Arg.number, Arg.engine, Arg.incarnation, Arg.seq)
      [] Row.action = "TargetUnknown"   -> TargetUnknown(Arg.number, Arg.engine, Arg.incarnation)
      [] Row.action = "Cleaned"         -> Cleaned(Arg.number, Arg.engine, Arg.incarnation, Arg.seq)
      [] Row.action = "OwnerUp"         -> OwnerUp(Arg.owner)
      [] Row.action = "Heartbeat"       -> Heartbeat(Arg.owner)
      [] Row.action = "OwnerExpired"    -> OwnerExpired(Arg.owner)
      [] Row.action = "OwnerGone"       -> OwnerGone(Arg.owner)
      [] Row.action = "Recovered"       -> Recovered
      [] Row.action = "Open"            -> Open(Arg.owner, Arg.sequence)
      [] Row.action = "BindFirst"       -> BindFirst(Arg.owner, Arg.sequence)
      [] Row.action = "BeginClose"      -> BeginClose(Arg.owner, Arg.sequence)
      [] Row.action = "CloseAndRelease" -> CloseAndRelease(Arg.owner, Arg.sequence)
      [] Row.action = "ClaimReclaim"    -> ClaimReclaim(Arg.key, Arg.reclaim_id)
      [] Row.action = "ConfirmReclaim"  ->
             ConfirmReclaim(Arg.reclaim_id, Arg.engine, Arg.incarnation, Arg.seq, Arg.observed_absent)
      [] Row.action = "ReclaimUnknown"  -> ReclaimUnknown(Arg.reclaim_id, Arg.engine, Arg.incarnation)
      [] Row.action = "EngineJoin"      ->
             EngineJoin(Arg.engine, Arg.incarnation, Arg.seq, Arg.base_fingerprint, Arg.residents)
      [] Row.action = "EngineUp"        ->
             \/ EngineUp(Arg.engine, Arg.incarnation, Arg.seq, Arg.base_fingerprint, Arg.residents)
             \/ EngineRestarted(Arg.engine, Arg.incarnation, Arg.seq, Arg.base_fingerprint, Arg.residents)
      [] Row.action = "EngineLost"      -> EngineLost(Arg.engine, Arg.incarnation)
      [] Row.action = "EngineDead"      -> EngineDead(Arg.engine, Arg.incarnation)
      [] Row.action = "EngineRemove"    -> EngineRemove(Arg.engine)
      [] Row.action = "Quarantine"      -> Quarantine(Arg.engine, Arg.incarnation)
      [] Row.action = "OrderRepair"     -> OrderRepair(Arg.key, Arg.engine)
      [] Row.action = "RepairReady"     -> RepairReady(Arg.number, Arg.engine, Arg.incarnation, Arg.seq, Arg.proof)
      [] Row.action = "RepairFailed"    -> RepairFailed(Arg.number, Arg.engine, Arg.incarnation, Arg.seq)

Is(name, after, before) == after = IF name \in DOMAIN Row.after THEN Row.after[name] ELSE before

Observed ==     \* the whole state, not the action's name only
    /\ Is("now", now', now)
    /\ Is("versions", versions', versions)
    /\ Is("default", default', default)
    /\ Is("default_revision", default_revision', default_revision)
    /\ Is("owners", owners', owners)
    /\ Is("engines", engines', engines)
    /\ Is("attempts", attempts', attempts)
    /\ Is("reclaims", reclaims', reclaims)
    /\ Is("repairs", repairs', repairs)
    /\ Is("tokens", tokens', tokens)
    /\ Is("rollbacks", rollbacks', rollbacks)
    /\ Is("next_number", next_number', next_number)

Answered ==     \* what the caller was told, where it says more than yes or no
    /\ "binding" \in DOMAIN Row.answer => owners'[Arg.owner].sessions[Arg.sequence].binding = Row.answer.binding
    /\ "revision" \in DOMAIN Row.answer /\ Row.changes => default_revision' = Row.answer.revision
    /\ "number" \in DOMAIN Row.answer /\ Row.changes => next_number = Row.answer.number

Came == Max(now, Row.now)      \* when the row's event came

IsSo(code) ==   \* what a refusal says of the state; of what concerns a request's form alone it says nothing here
    CASE code = "CAPACITY_ERROR"          -> Cardinality(Slots) >= Capacity
      [] code = "PUBLICATION_IN_PROGRESS" -> \E n \in Unresolved : attempts[n].state = "OPEN"
      [] code = "PUBLICATION_UNRESOLVED"  -> \E n \in Unresolved : attempts[n].state = "ABORTED"
      [] code = "NO_PUBLISHED_VERSION"    -> default = NoVersion
      [] code = "VERSION_CONFLICT"        -> versions[Arg.key].digest # Arg.digest
      [] code = "VERSION_BACKWARDS"       ->
             versions[Arg.key].state = "NONE" /\ \E w \in Version : w > Arg.key /\ versions[w].state # "NONE"
      [] code = "UNKNOWN_VERSION"         -> versions[Arg.key].state = "NONE"
      [] code = "NOT_RETIRED"             -> versions[Arg.key].state # "RETIRED"
      [] code = "VERSION_GONE"            -> versions[Arg.key].state \in {"RECLAIMING", "RECLAIMED"}
      [] code = "SESSION_REFS_HELD"       -> versions[Arg.key].session_refs > 0
      [] code = "ARTIFACT_MISSING"        -> ~versions[Arg.key].artifact
      [] code = "ALREADY_COMMITTED"       -> attempts[tokens[Arg.token]].state = "COMMITTED"
      [] code = "ALREADY_ABORTED"         -> attempts[tokens[Arg.token]].state \in {"ABORTED", "CLEAN"}
      [] code = "NOT_READY"               ->
             \E e \in DOMAIN attempts[tokens[Arg.token]].targets : ~ReadyCounts(tokens[Arg.token], e)
      [] code = "NOT_ABORTED"             -> attempts[Arg.number].state = "OPEN"
      [] code = "DRIVER_ALIVE"            -> Came < attempts[versions[Arg.key].number].driver_until
      [] code = "UNKNOWN_OWNER"           -> owners[Arg.owner].state = "NONE"
      [] code = "SESSION_EXPIRED"         -> owners[Arg.owner].state \in {"EXPIRED", "GONE"}
      [] code = "OWNER_ALIVE"             -> owners[Arg.owner].state = "LIVE" /\ Came <= owners[Arg.owner].lease_until
      [] code = "SESSION_CLOSED"          ->
             owners[Arg.owner].sessions[Arg.sequence].state \in {"FINALIZING", "CLOSED"}
      [] code = "UNKNOWN_RECLAIM"         -> reclaims[Arg.reclaim_id].state = "NONE"
      [] code = "NOT_DEAD"                -> engines[Arg.engine].state # "DEAD"
      [] code = "BASE_MISMATCH"           -> Arg.base_fingerprint # OurBase
      [] code = "BACKING_OFF"             -> Came < engines[Arg.engine].retry_at
      [] OTHER -> TRUE

TraceInit == Init /\ trace \in DOMAIN Traces /\ row = 1

TraceNext ==
    /\ row \in DOMAIN Traces[trace]
    /\ IF Row.changes THEN Acts /\ Observed
       ELSE ~ENABLED (Acts /\ vars' # vars) /\ UNCHANGED vars /\ IsSo(Row.code)
    /\ Answered
    /\ row' = row + 1
    /\ trace' = trace
    /\ PrintT(<<"passed", trace, row>>)

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, row>>
=============================================================================
