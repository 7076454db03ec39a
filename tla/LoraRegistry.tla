---------------------------- MODULE LoraRegistry ----------------------------
(***************************************************************************)
(* The registry: which LoRA versions there are, which one is the default,  *)
(* which sessions hold which, and what is known of the engines.            *)
(*                                                                         *)
(* Only what changes something is an action.  A call that the registry     *)
(* refuses, or answers from what is stored, is an action that is not       *)
(* enabled.  Times, tokens, ids and answers come from outside: each action *)
(* takes them as arguments.                                                *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS
    Engine,           \* ids of engines
    Version,          \* version keys: positive integers
    Digest,           \* contents that a version may have
    Token,            \* authorities of drivers, each made once
    Owner,            \* processes that hold sessions
    Sequence,         \* sequences of an owner's sessions
    ReclaimId,        \* ids of reclaims
    Operation,        \* ids of rollbacks
    Incarnation,      \* incarnations of an engine: positive integers
    AnswerSeq,        \* what an engine may number its answers with
    Number,           \* numbers of attempts and repairs: 1..n
    Time,             \* times that an event may carry
    Base,             \* fingerprints of base models
    OurBase,          \* the deployment's own
    Buckets,          \* how many buckets a publication sends
    Capacity,         \* versions that may hold a slot
    MaxMembers,       \* engines that a fleet may have
    RequireArtifact,  \* whether a commit needs the stored bytes
    PublishPastLost,  \* whether a publication leaves silent members out
    MaxVersionLag,    \* revoke versions so many revisions behind; 0: never
    OwnerLease,       \* an owner silent for longer may be expired
    DriverLease,      \* a driver without progress so long may be replaced
    RepairBackoff,    \* wait after the first failed repair; doubled each time
    RepairLimit       \* the failed repair that quarantines

VARIABLES
    now,              \* the highest time seen
    versions,         \* what has become of each version
    default,          \* the version that a new session gets
    default_revision, \* how often the default has moved
    owners,           \* each owner, its lease and its sessions
    engines,          \* each engine as the registry knows it
    attempts,         \* the tries at a publication, by number
    reclaims,         \* the orders to unload a version everywhere, by id
    repairs,          \* the orders to load a version on one engine, by number
    tokens,           \* the attempt that each token was for; 0: unused
    rollbacks,        \* the rollbacks that were done
    next_number       \* the number of the next attempt or repair

vars == <<now, versions, default, default_revision, owners, engines, attempts,
          reclaims, repairs, tokens, rollbacks, next_number>>

NoVersion == 0
NoNumber  == 0
NoDigest  == ""
NoReclaim == ""
NoResident == [digest |-> NoDigest, number |-> NoNumber]

Alive      == {"UP", "REPAIRING"}
NoMember   == {"NONE", "REMOVED"}
Serves     == {"PUBLISHED", "RETIRED"}
HoldsASlot == {"LOADING", "PUBLISHED", "RETIRED", "RECLAIMING", "ABORTED"}

Resident == [version : Version, digest : Digest, number : Number \cup {NoNumber}]
Proof    == [version : Version, digest : Digest, base : Base, probe : BOOLEAN]
Listings == SUBSET Resident     \* what an inventory may list

-----------------------------------------------------------------------------
(* What the variables may hold *)

VersionRecord ==
    [state : {"NONE", "LOADING", "PUBLISHED", "RETIRED", "RECLAIMING",
              "RECLAIMED", "ABORTED", "FAILED_CLEAN"},
     digest : Digest \cup {NoDigest},
     number : Number \cup {NoNumber},      \* its latest attempt
     session_refs : Nat,                   \* sessions that hold it
     published_revision : Nat,             \* when it last became the default
     reclaim_id : ReclaimId \cup {NoReclaim},
     artifact : BOOLEAN,                   \* its bytes are stored
     revoked : BOOLEAN]                    \* policy took it from its sessions

TargetRecord ==
    [incarnation : Incarnation,
     state : {"RESERVED", "PREPARED", "RECEIVING", "READY", "FAILED", "UNKNOWN", "CLEANED"},
     buckets_done : 0..Buckets,
     seq : AnswerSeq \cup {-1, 0}]               \* of the engine's latest answer about it

AttemptRecord(engines_of_it) ==
    [key : Version,
     token : Token,                        \* its driver's
     state : {"OPEN", "COMMITTED", "ABORTED", "CLEAN"},
     revision : Nat,                       \* of the default, at reserve
     driver_until : Nat,
     targets : [engines_of_it -> TargetRecord],
     authorized : 0..Buckets,              \* buckets whose broadcast was permitted
     taken_over : BOOLEAN]

SessionRecord ==
    [state : {"NONE", "OPEN", "BOUND", "FINALIZING", "CLOSED", "EXPIRED"},
     binding : Version \cup {NoVersion}]

OwnerRecord ==
    [state : {"NONE", "LIVE", "EXPIRED", "GONE"},
     lease_until : Nat,
     sessions : [Sequence -> SessionRecord]]

ReclaimRecord(engines_of_it) ==
    [state : {"NONE", "OPEN", "DONE"},
     key : Version \cup {NoVersion},
     unloads : [engines_of_it -> [incarnation : Incarnation, state : {"ORDERED", "UNKNOWN", "UNLOADED"}]]]

RepairRecord ==
    [key : Version, engine : Engine, incarnation : Incarnation,
     state : {"ORDERED", "READY", "FAILED", "WITHDRAWN"}]

EngineRecord ==
    [state : {"NONE", "UP", "LOST", "REPAIRING", "QUARANTINED", "DEAD", "REMOVED"},
     incarnation : Incarnation \cup {0},
     seq : AnswerSeq \cup {0},                   \* the highest of its answers
     inventory : [seq : AnswerSeq \cup {0}, residents : SUBSET Resident],   \* the latest
     residents : [Version -> [digest : Digest \cup {NoDigest}, number : Number \cup {NoNumber}]],  \* proved
     strays : SUBSET Resident,             \* listed, and should not be there
     repairs : [Version -> Number \cup {NoNumber}],    \* under way
     repair_failures : Nat,
     retry_at : Nat]

TypeOK ==
    /\ now \in Time
    /\ \A v \in Version : versions[v] \in VersionRecord
    /\ default \in Version \cup {NoVersion}
    /\ default_revision \in Nat
    /\ \A o \in Owner : owners[o] \in OwnerRecord
    /\ \A e \in Engine : engines[e] \in EngineRecord
    /\ DOMAIN attempts \cap DOMAIN repairs = {}
    /\ DOMAIN attempts \cup DOMAIN repairs = 1..(next_number - 1)
    /\ \A n \in DOMAIN attempts :
           /\ DOMAIN attempts[n].targets \subseteq Engine
           /\ attempts[n] \in AttemptRecord(DOMAIN attempts[n].targets)
    /\ \A n \in DOMAIN repairs : repairs[n] \in RepairRecord
    /\ \A c \in ReclaimId :
           /\ DOMAIN reclaims[c].unloads \subseteq Engine
           /\ reclaims[c] \in ReclaimRecord(DOMAIN reclaims[c].unloads)
    /\ tokens \in [Token -> DOMAIN attempts \cup {NoNumber}]
    /\ rollbacks \subseteq Operation
    /\ next_number \in Nat \ {0}

-----------------------------------------------------------------------------
(* In the beginning there is nothing *)

Max(a, b) == IF a > b THEN a ELSE b

Empty == [x \in {} |-> NoNumber]

With(f, x, y) == [z \in DOMAIN f \cup {x} |-> IF z = x THEN y ELSE f[z]]

FreshEngine(state, i) ==
    [state |-> state, incarnation |-> i, seq |-> 0,
     inventory |-> [seq |-> 0, residents |-> {}],
     residents |-> [v \in Version |-> NoResident],
     strays |-> {},
     repairs |-> [v \in Version |-> NoNumber],
     repair_failures |-> 0, retry_at |-> 0]

Init ==
    /\ now = 0
    /\ versions = [v \in Version |->
           [state |-> "NONE", digest |-> NoDigest, number |-> NoNumber, session_refs |-> 0,
            published_revision |-> 0, reclaim_id |-> NoReclaim, artifact |-> FALSE, revoked |-> FALSE]]
    /\ default = NoVersion
    /\ default_revision = 0
    /\ owners = [o \in Owner |->
           [state |-> "NONE", lease_until |-> 0,
            sessions |-> [s \in Sequence |-> [state |-> "NONE", binding |-> NoVersion]]]]
    /\ engines = [e \in Engine |-> FreshEngine("NONE", 0)]
    /\ attempts = Empty
    /\ reclaims = [c \in ReclaimId |-> [state |-> "NONE", key |-> NoVersion, unloads |-> Empty]]
    /\ repairs = Empty
    /\ tokens = [t \in Token |-> NoNumber]
    /\ rollbacks = {}
    /\ next_number = 1

-----------------------------------------------------------------------------
(* Questions *)

Arrives == now' \in {t \in Time : t >= now}   \* time comes with the event and never runs back

Members == {e \in Engine : engines[e].state \notin NoMember}
Slots   == {v \in Version : versions[v].state \in HoldsASlot}

Unresolved == {n \in DOMAIN attempts : attempts[n].state \in {"OPEN", "ABORTED"}}

Target(n, e) == attempts[n].targets[e]

LoadOf(n) ==      \* what attempt n makes resident
    [version |-> attempts[n].key, digest |-> versions[attempts[n].key].digest, number |-> n]

RightProof(v) ==  \* what a READY for v must show: a name alone is no proof
    [version |-> v, digest |-> versions[v].digest, base |-> OurBase, probe |-> TRUE]

Doomed(n, e) ==   \* the incarnation that the target was frozen with is dead
    \/ engines[e].incarnation # Target(n, e).incarnation
    \/ engines[e].state \in {"DEAD", "REMOVED"}

ReadyCounts(n, e) == Target(n, e).state = "READY" /\ engines[e].state \in Alive

Needed(vs, v) ==  \* every member must hold it
    \/ vs[v].state = "PUBLISHED"
    \/ vs[v].state = "RETIRED" /\ vs[v].session_refs > 0

DeniesPresence(e, q, r) ==  \* a later inventory does not list r
    q < engines[e].inventory.seq /\ r \notin engines[e].inventory.residents

DeniesAbsence(e, q, r) ==   \* a later inventory lists r
    q < engines[e].inventory.seq /\ r \in engines[e].inventory.residents

-----------------------------------------------------------------------------
(* What follows by itself once its last condition is true *)

CleanAttempts(as) ==
    [n \in DOMAIN as |->
        IF as[n].state = "ABORTED" /\ \A e \in DOMAIN as[n].targets : as[n].targets[e].state = "CLEANED"
        THEN [as[n] EXCEPT !.state = "CLEAN"] ELSE as[n]]

DoneReclaims(cs) ==
    [c \in ReclaimId |->
        IF cs[c].state = "OPEN" /\ \A e \in DOMAIN cs[c].unloads : cs[c].unloads[e].state = "UNLOADED"
        THEN [cs[c] EXCEPT !.state = "DONE"] ELSE cs[c]]

FreedSlots(vs, as, cs) ==
    [v \in Version |->
        CASE vs[v].state = "ABORTED" /\ as[vs[v].number].state = "CLEAN" -> [vs[v] EXCEPT !.state = "FAILED_CLEAN"]
          [] vs[v].state = "RECLAIMING" /\ cs[vs[v].reclaim_id].state = "DONE" -> [vs[v] EXCEPT !.state = "RECLAIMED"]
          [] OTHER -> vs[v]]

Serving(es, vs) ==    \* UP while a member holds all that sessions may need
    [e \in Engine |->
        IF es[e].state \notin Alive THEN es[e]
        ELSE IF \E v \in Version : Needed(vs, v) /\ es[e].residents[v] = NoResident
        THEN [es[e] EXCEPT !.state = "REPAIRING"]
        ELSE [es[e] EXCEPT !.state = "UP"]]

Seen(engine, q) == [engine EXCEPT !.seq = Max(@, q)]

Without(engine, n) ==   \* forget what number n loaded; another number's load stays
    [engine EXCEPT !.residents =
        [v \in Version |-> IF engine.residents[v].number = n THEN NoResident ELSE engine.residents[v]]]

-----------------------------------------------------------------------------
(* Publication: what its driver asks for *)

Reserve(v, d, t) ==
    /\ Arrives
    /\ tokens[t] = NoNumber
    /\ versions[v].state \in {"NONE", "FAILED_CLEAN"}
    /\ versions[v].digest \in {NoDigest, d}
    /\ versions[v].state = "NONE" => ~\E w \in Version : w > v /\ versions[w].state # "NONE"   \* nor backwards
    /\ Unresolved = {}
    /\ Cardinality(Slots) < Capacity
    /\ PublishPastLost \/ \A e \in Engine : engines[e].state \notin {"LOST", "QUARANTINED"}
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

ArtifactStored(v, d) ==
    /\ Arrives
    /\ versions[v].state # "NONE"
    /\ versions[v].digest = d
    /\ ~versions[v].artifact
    /\ versions' = [versions EXCEPT ![v].artifact = TRUE]
    /\ UNCHANGED <<default, default_revision, owners, engines, attempts, reclaims, repairs, tokens, rollbacks,
                   next_number>>

ArmedFor(n, e, k) ==
    /\ Target(n, e).state = IF k = 0 THEN "PREPARED" ELSE "RECEIVING"
    /\ Target(n, e).buckets_done = k
    /\ engines[e].state \in Alive

AuthorizeBucket(n, t, k) ==     \* once, and only when nobody will wait for somebody who is not there
    /\ Arrives
    /\ n \in DOMAIN attempts
    /\ attempts[n].state = "OPEN"
    /\ attempts[n].token = t
    /\ ~attempts[n].taken_over
    /\ k < Buckets
    /\ k = attempts[n].authorized
    /\ \A e \in DOMAIN attempts[n].targets : ~Doomed(n, e) /\ ArmedFor(n, e, k)
    /\ attempts' = [attempts EXCEPT ![n].authorized = k + 1, ![n].driver_until = now' + DriverLease]
    /\ UNCHANGED <<versions, default, default_revision, owners, engines, reclaims, repairs, tokens, rollbacks,
                   next_number>>

Revoked(vs, revision) ==    \* policy: too far behind the default
    [v \in Version |->
        IF /\ MaxVersionLag > 0
           /\ vs[v].state = "RETIRED"
           /\ revision - vs[v].published_revision >= MaxVersionLag
        THEN [vs[v] EXCEPT !.revoked = TRUE, !.session_refs = 0] ELSE vs[v]]

Switched(v) ==              \* v is the default now, in place of the one before
    [w \in Version |->
        CASE w = v -> [versions[w] EXCEPT !.state = "PUBLISHED", !.published_revision = default_revision + 1]
          [] w = default -> [versions[w] EXCEPT !.state = "RETIRED"]
          [] OTHER -> versions[w]]

Commit(v, t, revision) ==   \* the only way to PUBLISHED but for a rollback
    LET n == tokens[t] IN
    /\ Arrives
    /\ n # NoNumber
    /\ attempts[n].key = v
    /\ attempts[n].state = "OPEN"
    /\ attempts[n].token = t
    /\ revision = attempts[n].revision
    /\ revision = default_revision
    /\ \A e \in DOMAIN attempts[n].targets : ~Doomed(n, e) /\ ReadyCounts(n, e)
    /\ RequireArtifact => versions[v].artifact
    /\ attempts' = [attempts EXCEPT ![n].state = "COMMITTED"]
    /\ versions' = Revoked(Switched(v), default_revision + 1)
    /\ default' = v
    /\ default_revision' = default_revision + 1
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<owners, reclaims, repairs, tokens, rollbacks, next_number>>

Abort(v, t) ==              \* from here on cleanup may be ordered, by anybody
    LET n == tokens[t] IN
    /\ Arrives
    /\ n # NoNumber
    /\ attempts[n].key = v
    /\ attempts[n].state = "OPEN"
    /\ attempts[n].token = t
    /\ LET targets == [e \in DOMAIN attempts[n].targets |->
               IF Target(n, e).state # "CLEANED" /\ Target(n, e).incarnation # engines[e].incarnation
               THEN [Target(n, e) EXCEPT !.incarnation = engines[e].incarnation, !.seq = -1]
               ELSE Target(n, e)]
       IN attempts' = CleanAttempts([attempts EXCEPT ![n].state = "ABORTED", ![n].targets = targets])
    /\ versions' = FreedSlots([versions EXCEPT ![v].state = "ABORTED"], attempts', reclaims)
    /\ UNCHANGED <<default, default_revision, owners, engines, reclaims, repairs, tokens, rollbacks, next_number>>

Takeover(v, t, handover) == \* a successor drives the attempt to its end
    LET n == versions[v].number IN
    /\ Arrives
    /\ tokens[t] = NoNumber
    /\ n # NoNumber
    /\ attempts[n].state = "OPEN"
    /\ now' >= attempts[n].driver_until \/ handover = attempts[n].token
    /\ attempts' = [attempts EXCEPT ![n].token = t, ![n].taken_over = TRUE, ![n].driver_until = now' + DriverLease]
    /\ tokens' = [tokens EXCEPT ![t] = n]
    /\ UNCHANGED <<versions, default, default_revision, owners, engines, reclaims, repairs, rollbacks, next_number>>

Rollback(v, revision, op) ==    \* a resident version is the default again, without a transfer
    /\ Arrives
    /\ op \notin rollbacks
    /\ versions[v].state = "RETIRED"
    /\ ~versions[v].revoked
    /\ revision = default_revision
    /\ \E e \in Engine : engines[e].state = "UP"
    /\ \A e \in Engine : engines[e].state = "UP" => engines[e].residents[v] # NoResident
    /\ versions' = Switched(v)
    /\ default' = v
    /\ default_revision' = default_revision + 1
    /\ rollbacks' = rollbacks \cup {op}
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<owners, attempts, reclaims, repairs, tokens, next_number>>

-----------------------------------------------------------------------------
(* Publication: what an engine answers about its share of an attempt *)

OpenTarget(n, e, i) ==      \* the answer counts: the attempt is open, the incarnation the frozen one
    /\ n \in DOMAIN attempts
    /\ attempts[n].state = "OPEN"
    /\ e \in DOMAIN attempts[n].targets
    /\ Target(n, e).incarnation = i
    /\ ~Doomed(n, e)

Advanced(n, e, target) ==   \* progress renews the driver's lease
    [attempts EXCEPT ![n].targets[e] = target, ![n].driver_until = now' + DriverLease]

Resumed(n, e, target) ==    \* no news: the engine stands where it stood, and what it was not told is ordered again
    [attempts EXCEPT ![n].targets[e] = target]

Prepared(n, e, i, q) ==
    /\ Arrives
    /\ OpenTarget(n, e, i)
    /\ LET accepted == [Target(n, e) EXCEPT !.state = "PREPARED", !.seq = q] IN
       \/ /\ Target(n, e).seq = -1     \* RESERVED, or UNKNOWN
          /\ attempts' = Advanced(n, e, accepted)
       \/ /\ Target(n, e).state = "UNKNOWN"
          /\ Target(n, e).seq # -1
          /\ q >= Target(n, e).seq
          /\ attempts[n].authorized = 0
          /\ attempts' = Resumed(n, e, accepted)
    /\ UNCHANGED <<versions, default, default_revision, owners, engines, reclaims, repairs, tokens, rollbacks,
                   next_number>>

BucketDone(n, e, i, q, k) ==
    /\ Arrives
    /\ OpenTarget(n, e, i)
    /\ LET received == [Target(n, e) EXCEPT !.state = "RECEIVING", !.buckets_done = k + 1, !.seq = q] IN
       \/ /\ q > Target(n, e).seq
          /\ Target(n, e).state \in {"PREPARED", "RECEIVING", "UNKNOWN"}
          /\ k = Target(n, e).buckets_done
          /\ k < attempts[n].authorized
          /\ attempts' = Advanced(n, e, received)
       \/ /\ q >= Target(n, e).seq
          /\ Target(n, e).state = "UNKNOWN"
          /\ k + 1 = Target(n, e).buckets_done
          /\ k + 1 = attempts[n].authorized
          /\ attempts' = Resumed(n, e, received)
    /\ UNCHANGED <<versions, default, default_revision, owners, engines, reclaims, repairs, tokens, rollbacks,
                   next_number>>

HasAll(n, e) ==             \* a silent target may have received what was authorised
    \/ Target(n, e).buckets_done = Buckets
    \/ Target(n, e).state = "UNKNOWN" /\ attempts[n].authorized = Buckets

Ready(n, e, i, q, proof) ==
    /\ Arrives
    /\ OpenTarget(n, e, i)
    /\ proof = RightProof(attempts[n].key)
    /\ q > Target(n, e).seq
    /\ Target(n, e).state \in {"PREPARED", "RECEIVING", "UNKNOWN"}
    /\ HasAll(n, e)
    /\ ~DeniesPresence(e, q, LoadOf(n))
    /\ attempts' = Advanced(n, e, [Target(n, e) EXCEPT !.state = "READY", !.buckets_done = Buckets, !.seq = q])
    /\ engines' = [engines EXCEPT ![e] = [Seen(@, q) EXCEPT
           !.residents[attempts[n].key] = [digest |-> proof.digest, number |-> n]]]
    /\ UNCHANGED <<versions, default, default_revision, owners, reclaims, repairs, tokens, rollbacks, next_number>>

TargetFailed(n, e, i, q) ==     \* the engine said no
    /\ Arrives
    /\ OpenTarget(n, e, i)
    /\ q > Target(n, e).seq
    /\ Target(n, e).state # "FAILED"
    /\ attempts' = [attempts EXCEPT ![n].targets[e].state = "FAILED", ![n].targets[e].seq = q]
    /\ engines' = [engines EXCEPT ![e] = Without(@, n)]
    /\ UNCHANGED <<versions, default, default_revision, owners, reclaims, repairs, tokens, rollbacks, next_number>>

TargetUnknown(n, e, i) ==       \* nothing was heard; a READY of an open attempt is a proof and stays one
    /\ Arrives
    /\ n \in Unresolved
    /\ e \in DOMAIN attempts[n].targets
    /\ Target(n, e).incarnation = i
    /\ Target(n, e).state \notin {"CLEANED", "FAILED", "UNKNOWN"}
    /\ ~(attempts[n].state = "OPEN" /\ Target(n, e).state = "READY")
    /\ attempts' = [attempts EXCEPT ![n].targets[e].state = "UNKNOWN"]
    /\ UNCHANGED <<versions, default, default_revision, owners, engines, reclaims, repairs, tokens, rollbacks,
                   next_number>>

Cleaned(n, e, i, q) ==          \* nothing of the attempt is left here; the last one frees the slot
    /\ Arrives
    /\ n \in DOMAIN attempts
    /\ attempts[n].state = "ABORTED"
    /\ e \in DOMAIN attempts[n].targets
    /\ Target(n, e).incarnation = i
    /\ Target(n, e).state # "CLEANED"
    /\ q > Target(n, e).seq
    /\ ~DeniesAbsence(e, q, LoadOf(n))
    /\ attempts' = CleanAttempts([attempts EXCEPT ![n].targets[e].state = "CLEANED", ![n].targets[e].seq = q])
    /\ versions' = FreedSlots(versions, attempts', reclaims)
    /\ engines' = [engines EXCEPT ![e] = Without(Seen(@, q), n)]
    /\ UNCHANGED <<default, default_revision, owners, reclaims, repairs, tokens, rollbacks, next_number>>

-----------------------------------------------------------------------------
(* Sessions: what their owners ask for *)

OwnerUp(o) ==
    /\ Arrives
    /\ owners[o].state = "NONE"
    /\ owners' = [owners EXCEPT ![o].state = "LIVE", ![o].lease_until = now' + OwnerLease]
    /\ UNCHANGED <<versions, default, default_revision, engines, attempts, reclaims, repairs, tokens, rollbacks,
                   next_number>>

Heartbeat(o) ==
    /\ Arrives
    /\ owners[o].state = "LIVE"
    /\ now' + OwnerLease > owners[o].lease_until
    /\ owners' = [owners EXCEPT ![o].lease_until = now' + OwnerLease]
    /\ UNCHANGED <<versions, default, default_revision, engines, attempts, reclaims, repairs, tokens, rollbacks,
                   next_number>>

Holders(o, v) == {s \in Sequence : owners[o].sessions[s].binding = v}

EndOwner(o, state) ==       \* its refs leave at once; every session of it is over
    /\ owners' = [owners EXCEPT ![o].state = state,
           ![o].sessions = [s \in Sequence |->
               IF @[s].state = "CLOSED" THEN @[s] ELSE [state |-> "EXPIRED", binding |-> NoVersion]]]
    /\ versions' = [v \in Version |->
           IF versions[v].revoked THEN versions[v]
           ELSE [versions[v] EXCEPT !.session_refs = @ - Cardinality(Holders(o, v))]]
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<default, default_revision, attempts, reclaims, repairs, tokens, rollbacks, next_number>>

OwnerExpired(o) ==
    /\ Arrives
    /\ owners[o].state = "LIVE"
    /\ now' > owners[o].lease_until
    /\ EndOwner(o, "EXPIRED")

OwnerGone(o) ==
    /\ Arrives
    /\ owners[o].state \in {"LIVE", "EXPIRED"}
    /\ EndOwner(o, "GONE")

Recovered ==                \* after a recovery nobody is late
    /\ Arrives
    /\ owners' = [o \in Owner |->
           IF owners[o].state = "LIVE" THEN [owners[o] EXCEPT !.lease_until = now' + OwnerLease]
           ELSE owners[o]]
    /\ attempts' = [n \in DOMAIN attempts |->
           IF n \in Unresolved THEN [attempts[n] EXCEPT !.driver_until = now' + DriverLease]
           ELSE attempts[n]]
    /\ <<owners, attempts>>' # <<owners, attempts>>
    /\ UNCHANGED <<versions, default, default_revision, engines, reclaims, repairs, tokens, rollbacks, next_number>>

Open(o, s) ==               \* registers; binds nothing
    /\ Arrives
    /\ owners[o].state = "LIVE"
    /\ owners[o].sessions[s].state = "NONE"
    /\ owners' = [owners EXCEPT ![o].sessions[s].state = "OPEN"]
    /\ UNCHANGED <<versions, default, default_revision, engines, attempts, reclaims, repairs, tokens, rollbacks,
                   next_number>>

BindFirst(o, s) ==          \* once, to what is the default now
    /\ Arrives
    /\ owners[o].state = "LIVE"
    /\ owners[o].sessions[s].state \in {"NONE", "OPEN"}
    /\ default # NoVersion
    /\ owners' = [owners EXCEPT ![o].sessions[s] = [state |-> "BOUND", binding |-> default]]
    /\ versions' = [versions EXCEPT ![default].session_refs = @ + 1]
    /\ UNCHANGED <<default, default_revision, engines, attempts, reclaims, repairs, tokens, rollbacks, next_number>>

BeginClose(o, s) ==         \* no new request; the ref is still held
    /\ Arrives
    /\ owners[o].state = "LIVE"
    /\ owners[o].sessions[s].state \in {"NONE", "OPEN", "BOUND"}
    /\ owners' = [owners EXCEPT ![o].sessions[s].state = "FINALIZING"]
    /\ UNCHANGED <<versions, default, default_revision, engines, attempts, reclaims, repairs, tokens, rollbacks,
                   next_number>>

CloseAndRelease(o, s) ==    \* the end of a session, and of its ref
    /\ Arrives
    /\ owners[o].state = "LIVE"
    /\ owners[o].sessions[s].state # "CLOSED"
    /\ owners' = [owners EXCEPT ![o].sessions[s] = [state |-> "CLOSED", binding |-> NoVersion]]
    /\ versions' = [v \in Version |->
           IF v = owners[o].sessions[s].binding /\ ~versions[v].revoked
           THEN [versions[v] EXCEPT !.session_refs = @ - 1] ELSE versions[v]]
    /\ engines' = Serving(engines, versions')
    /\ UNCHANGED <<default, default_revision, attempts, reclaims, repairs, tokens, rollbacks, next_number>>

-----------------------------------------------------------------------------
(* Reclaim *)

ClaimReclaim(v, c) ==       \* RETIRED and unheld: unload it wherever a load of it may be on its way
    /\ Arrives
    /\ reclaims[c].state = "NONE"
    /\ versions[v].state = "RETIRED"
    /\ versions[v].session_refs = 0
    /\ reclaims' = DoneReclaims([reclaims EXCEPT ![c] =
           [state |-> "OPEN", key |-> v,
            unloads |-> [e \in {e \in Members : engines[e].state # "DEAD"} |->
                [incarnation |-> engines[e].incarnation, state |-> "ORDERED"]]]])
    /\ repairs' = [p \in DOMAIN repairs |->
           IF repairs[p].key = v /\ repairs[p].state = "ORDERED"
           THEN [repairs[p] EXCEPT !.state = "WITHDRAWN"] ELSE repairs[p]]
    /\ versions' = FreedSlots([versions EXCEPT ![v].state = "RECLAIMING", ![v].reclaim_id = c], attempts, reclaims')
    /\ engines' = Serving([e \in Engine |-> [engines[e] EXCEPT !.repairs[v] = NoNumber]], versions')
    /\ UNCHANGED <<default, default_revision, owners, attempts, tokens, rollbacks, next_number>>

ConfirmReclaim(c, e, i, q, absent) ==   \* an engine's receipt; the last one frees the slot
    /\ Arrives
    /\ e \in DOMAIN reclaims[c].unloads
    /\ reclaims[c].unloads[e].incarnation = i
    /\ reclaims[c].unloads[e].state # "UNLOADED"
    /\ absent
    /\ \A r \in engines[e].inventory.residents : r.version = reclaims[c].key => ~DeniesAbsence(e, q, r)
    /\ reclaims' = DoneReclaims([reclaims EXCEPT ![c].unloads[e].state = "UNLOADED"])
    /\ versions' = FreedSlots(versions, attempts, reclaims')
    /\ engines' = [engines EXCEPT ![e] = [Seen(@, q) EXCEPT !.residents[reclaims[c].key] = NoResident]]
    /\ UNCHANGED <<default, default_revision, owners, attempts, repairs, tokens, rollbacks, next_number>>

ReclaimUnknown(c, e, i) ==
    /\ Arrives
    /\ e \in DOMAIN reclaims[c].unloads
    /\ reclaims[c].unloads[e].incarnation = i
    /\ reclaims[c].unloads[e].state = "ORDERED"
    /\ reclaims' = [reclaims EXCEPT ![c].unloads[e].state = "UNKNOWN"]
    /\ UNCHANGED <<versions, default, default_revision, owners, engines, attempts, repairs, tokens, rollbacks,
                   next_number>>

-----------------------------------------------------------------------------
(* The fleet: what comes, goes, restarts and is silent *)

WithdrawnRepairs(e) ==
    [p \in DOMAIN repairs |->
        IF repairs[p].engine = e /\ repairs[p].state = "ORDERED"
        THEN [repairs[p] EXCEPT !.state = "WITHDRAWN"] ELSE repairs[p]]

Lists(listed, v) == \E r \in listed : r.version = v

(* An incarnation of e is dead.  What it had of an unresolved attempt is gone, unless its successor i lists it. *)
FencedAttempts(e, i, listed) ==
    [n \in DOMAIN attempts |->
        IF n \notin Unresolved \/ e \notin DOMAIN attempts[n].targets THEN attempts[n]
        ELSE IF Target(n, e).state = "CLEANED" THEN attempts[n]
        ELSE IF ~Lists(listed, attempts[n].key) THEN [attempts[n] EXCEPT !.targets[e].state = "CLEANED"]
        ELSE IF attempts[n].state = "OPEN" THEN [attempts[n] EXCEPT !.targets[e].state = "FAILED"]
        ELSE [attempts[n] EXCEPT !.targets[e] = [@ EXCEPT !.state = "FAILED", !.incarnation = i, !.seq = -1]]]

(* Its unloads are done, unless its successor i lists the version: then the order repeats. *)
FencedReclaims(e, i, listed) ==
    [c \in ReclaimId |->
        IF e \notin DOMAIN reclaims[c].unloads THEN reclaims[c]
        ELSE IF reclaims[c].unloads[e].state = "UNLOADED" THEN reclaims[c]
        ELSE IF ~Lists(listed, reclaims[c].key) THEN [reclaims[c] EXCEPT !.unloads[e].state = "UNLOADED"]
        ELSE [reclaims[c] EXCEPT !.unloads[e] = [incarnation |-> i, state |-> "ORDERED"]]]

(* A resident may be there if the number that loaded it, on this incarnation, still answers for it. *)
LoadedByAttempt(e, i, r, as) ==
    /\ r.number \in DOMAIN as
    /\ as[r.number].key = r.version
    /\ e \in DOMAIN as[r.number].targets
    /\ as[r.number].targets[e].state # "CLEANED"
    /\ as[r.number].state \in {"OPEN", "ABORTED"} \/ as[r.number].targets[e].incarnation = i

LoadedByRepair(e, i, r, ps) ==
    /\ r.number \in DOMAIN ps
    /\ ps[r.number].key = r.version
    /\ ps[r.number].engine = e
    /\ ps[r.number].incarnation = i
    /\ ps[r.number].state \in {"ORDERED", "READY"}

UnloadPending(e, v, cs) ==
    /\ e \in DOMAIN cs[versions[v].reclaim_id].unloads
    /\ cs[versions[v].reclaim_id].unloads[e].state # "UNLOADED"

Expected(e, i, r, as, cs, ps) ==
    LET v == r.version IN
    /\ versions[v].state \notin {"NONE", "RECLAIMED", "FAILED_CLEAN"}
    /\ versions[v].digest = r.digest
    /\ IF versions[v].state = "RECLAIMING" THEN UnloadPending(e, v, cs)
       ELSE LoadedByAttempt(e, i, r, as) \/ LoadedByRepair(e, i, r, ps)

Reconciled(e, engine, q, listed, as, cs, ps) ==   \* what is not listed is not proved any more
    [engine EXCEPT
        !.seq = q,
        !.inventory = [seq |-> q, residents |-> listed],
        !.residents = [v \in Version |->
            LET proved == engine.residents[v] IN
            IF [version |-> v, digest |-> proved.digest, number |-> proved.number] \in listed
            THEN proved ELSE NoResident],
        !.strays = {r \in listed : ~Expected(e, engine.incarnation, r, as, cs, ps)}]

LostReady(as, e, engine) ==     \* READY, and the inventory does not list it
    [n \in DOMAIN as |->
        IF /\ as[n].state = "OPEN"
           /\ e \in DOMAIN as[n].targets
           /\ as[n].targets[e].state = "READY"
           /\ engine.residents[as[n].key] = NoResident
        THEN [as[n] EXCEPT !.targets[e].state = "FAILED", !.targets[e].seq = engine.seq] ELSE as[n]]

Settle(e, engine, as, cs) ==
    /\ attempts' = CleanAttempts(LostReady(as, e, engine))
    /\ reclaims' = DoneReclaims(cs)
    /\ versions' = FreedSlots(versions, attempts', reclaims')
    /\ engines' = Serving([engines EXCEPT ![e] = engine], versions')
    /\ UNCHANGED <<default, default_revision, owners, tokens, rollbacks, next_number>>

EngineJoin(e, i, q, base, listed) ==    \* no target of what is under way
    /\ Arrives
    /\ engines[e].state \in NoMember
    /\ i > engines[e].incarnation
    /\ Cardinality(Members) < MaxMembers
    /\ base = OurBase
    /\ Settle(e, Reconciled(e, FreshEngine("UP", i), q, listed, attempts, reclaims, repairs), attempts, reclaims)
    /\ UNCHANGED repairs

EngineUp(e, i, q, base, listed) ==      \* the live incarnation tells what it holds
    /\ Arrives
    /\ e \in Members
    /\ i = engines[e].incarnation
    /\ engines[e].state # "DEAD"
    /\ base = OurBase
    /\ q >= engines[e].seq
    /\ LET back == [engines[e] EXCEPT !.state = IF @ = "LOST" THEN "UP" ELSE @]
       IN Settle(e, Reconciled(e, back, q, listed, attempts, reclaims, repairs), attempts, reclaims)
    /\ UNCHANGED repairs

EngineRestarted(e, i, q, base, listed) ==   \* a new incarnation: all that was of older ones is fenced
    /\ Arrives
    /\ e \in Members
    /\ i > engines[e].incarnation
    /\ base = OurBase
    /\ repairs' = WithdrawnRepairs(e)
    /\ LET as == FencedAttempts(e, i, listed)
           cs == FencedReclaims(e, i, listed)
       IN Settle(e, Reconciled(e, FreshEngine("UP", i), q, listed, as, cs, repairs'), as, cs)

EngineDead(e, i) ==     \* proof that the process ended: what it held is gone
    /\ Arrives
    /\ e \in Members
    /\ i = engines[e].incarnation
    /\ engines[e].state # "DEAD"
    /\ repairs' = WithdrawnRepairs(e)
    /\ Settle(e, FreshEngine("DEAD", i), FencedAttempts(e, i, {}), FencedReclaims(e, i, {}))

EngineLost(e, i) ==     \* silence suspends; it proves nothing
    /\ Arrives
    /\ i = engines[e].incarnation
    /\ engines[e].state \in Alive
    /\ engines' = [engines EXCEPT ![e].state = "LOST"]
    /\ UNCHANGED <<versions, default, default_revision, owners, attempts, reclaims, repairs, tokens, rollbacks,
                   next_number>>

EngineRemove(e) ==
    /\ Arrives
    /\ engines[e].state = "DEAD"
    /\ engines' = [engines EXCEPT ![e].state = "REMOVED"]
    /\ UNCHANGED <<versions, default, default_revision, owners, attempts, reclaims, repairs, tokens, rollbacks,
                   next_number>>

Quarantined(engine) == [engine EXCEPT !.state = "QUARANTINED", !.repairs = [v \in Version |-> NoNumber]]

Quarantine(e, i) ==     \* it broke a promise: it serves nothing
    /\ Arrives
    /\ i = engines[e].incarnation
    /\ engines[e].state \in Alive \cup {"LOST"}
    /\ engines' = [engines EXCEPT ![e] = Quarantined(@)]
    /\ repairs' = WithdrawnRepairs(e)
    /\ UNCHANGED <<versions, default, default_revision, owners, attempts, reclaims, tokens, rollbacks, next_number>>

-----------------------------------------------------------------------------
(* Repair: a needed version is loaded again on a member that lacks it *)

OrderRepair(v, e) ==
    /\ Arrives
    /\ engines[e].state \in Alive
    /\ engines[e].repairs[v] = NoNumber
    /\ Needed(versions, v)
    /\ engines[e].residents[v] = NoResident
    /\ ~\E r \in engines[e].strays : r.version = v /\ r.digest = versions[v].digest
    /\ versions[v].artifact
    /\ now' >= engines[e].retry_at
    /\ next_number \in Number
    /\ repairs' = With(repairs, next_number,
           [key |-> v, engine |-> e, incarnation |-> engines[e].incarnation, state |-> "ORDERED"])
    /\ engines' = [engines EXCEPT ![e].repairs[v] = next_number]
    /\ next_number' = next_number + 1
    /\ UNCHANGED <<versions, default, default_revision, owners, attempts, reclaims, tokens, rollbacks>>

PendingRepair(p, e, i) ==
    /\ p \in DOMAIN repairs
    /\ repairs[p].engine = e
    /\ repairs[p].incarnation = i
    /\ repairs[p].state = "ORDERED"

RepairReady(p, e, i, q, proof) ==
    /\ Arrives
    /\ PendingRepair(p, e, i)
    /\ LET v == repairs[p].key IN
       /\ proof = RightProof(v)
       /\ ~DeniesPresence(e, q, [version |-> v, digest |-> versions[v].digest, number |-> p])
       /\ engines' = Serving([engines EXCEPT ![e] = [Seen(@, q) EXCEPT
              !.residents[v] = [digest |-> proof.digest, number |-> p], !.repairs[v] = NoNumber, !.repair_failures = 0, !.retry_at = 0]], versions)
    /\ repairs' = [repairs EXCEPT ![p].state = "READY"]
    /\ UNCHANGED <<versions, default, default_revision, owners, attempts, reclaims, tokens, rollbacks, next_number>>

RepairFailed(p, e, i, q) ==     \* wait and try again; the last failure allowed quarantines
    /\ Arrives
    /\ PendingRepair(p, e, i)
    /\ LET failures == engines[e].repair_failures + IF Needed(versions, repairs[p].key) THEN 1 ELSE 0
           failed == [Seen(engines[e], q) EXCEPT
               !.repairs[repairs[p].key] = NoNumber,
               !.repair_failures = failures,
               !.retry_at = now' + RepairBackoff * 2^Max(0, failures - 1)]
       IN IF failures >= RepairLimit
          THEN /\ engines' = [engines EXCEPT ![e] = Quarantined(failed)]
               /\ repairs' = [WithdrawnRepairs(e) EXCEPT ![p].state = "FAILED"]
          ELSE /\ engines' = [engines EXCEPT ![e] = failed]
               /\ repairs' = [repairs EXCEPT ![p].state = "FAILED"]
    /\ UNCHANGED <<versions, default, default_revision, owners, attempts, reclaims, tokens, rollbacks, next_number>>

-----------------------------------------------------------------------------
OfDriver ==
    \/ \E v \in Version, d \in Digest, t \in Token : Reserve(v, d, t)
    \/ \E v \in Version, d \in Digest : ArtifactStored(v, d)
    \/ \E n \in Number, t \in Token, k \in 0..Buckets : AuthorizeBucket(n, t, k)
    \/ \E v \in Version, t \in Token, revision \in {default_revision, default_revision + 1} : Commit(v, t, revision)
    \/ \E v \in Version, t \in Token : Abort(v, t)
    \/ \E v \in Version, t, handover \in Token : Takeover(v, t, handover)
    \/ \E v \in Version, op \in Operation, revision \in {default_revision, default_revision + 1} :
           Rollback(v, revision, op)

OfTarget ==
    \E n \in Number, e \in Engine, i \in Incarnation :
        \/ TargetUnknown(n, e, i)
        \/ \E q \in AnswerSeq :
            \/ Prepared(n, e, i, q)
            \/ \E k \in 0..Buckets : BucketDone(n, e, i, q, k)
            \/ \E proof \in Proof : Ready(n, e, i, q, proof)
            \/ TargetFailed(n, e, i, q)
            \/ Cleaned(n, e, i, q)

OfOwner ==
    \/ Recovered
    \/ \E o \in Owner :
        \/ OwnerUp(o)
        \/ Heartbeat(o)
        \/ OwnerExpired(o)
        \/ OwnerGone(o)
        \/ \E s \in Sequence :
            \/ Open(o, s)
            \/ BindFirst(o, s)
            \/ BeginClose(o, s)
            \/ CloseAndRelease(o, s)

OfReclaimer ==
    \/ \E v \in Version, c \in ReclaimId : ClaimReclaim(v, c)
    \/ \E c \in ReclaimId, e \in Engine, i \in Incarnation :
        \/ ReclaimUnknown(c, e, i)
        \/ \E q \in AnswerSeq, absent \in BOOLEAN : ConfirmReclaim(c, e, i, q, absent)

OfFleet ==
    \E e \in Engine :
        \/ EngineRemove(e)
        \/ \E i \in Incarnation :
            \/ EngineLost(e, i)
            \/ EngineDead(e, i)
            \/ Quarantine(e, i)
            \/ \E q \in AnswerSeq, base \in Base, listed \in Listings :
                \/ EngineJoin(e, i, q, base, listed)
                \/ EngineUp(e, i, q, base, listed)
                \/ EngineRestarted(e, i, q, base, listed)

OfRepairer ==
    \E e \in Engine :
        \/ \E v \in Version : OrderRepair(v, e)
        \/ \E p \in Number, i \in Incarnation, q \in AnswerSeq :
            \/ \E proof \in Proof : RepairReady(p, e, i, q, proof)
            \/ RepairFailed(p, e, i, q)

Next == OfDriver \/ OfTarget \/ OfOwner \/ OfReclaimer \/ OfFleet \/ OfRepairer

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What is promised of every state *)

OneDefault ==               \* I1
    /\ {v \in Version : versions[v].state = "PUBLISHED"} = {default} \ {NoVersion}
    /\ default = NoVersion <=> default_revision = 0

Bound(v) == {<<o, s>> \in Owner \X Sequence : owners[o].sessions[s].binding = v}

RefsAreHolders ==           \* I4
    \A v \in Version :
        /\ versions[v].session_refs = IF versions[v].revoked THEN 0 ELSE Cardinality(Bound(v))
        /\ versions[v].session_refs > 0 => versions[v].state \in Serves

BindingsAreAllThereIs ==    \* I3: a bound session knows its version, any other has none
    \A o \in Owner, s \in Sequence :
        LET session == owners[o].sessions[s] IN
        /\ session.state = "BOUND" => session.binding # NoVersion
        /\ session.state \in {"NONE", "OPEN", "CLOSED", "EXPIRED"} => session.binding = NoVersion
        /\ session.binding # NoVersion => owners[o].state = "LIVE"

SlotsWithinCapacity == Cardinality(Slots) <= Capacity       \* I5

OneUnresolved ==            \* at most one publication at a time, and its version says so
    /\ Cardinality(Unresolved) <= 1
    /\ \A n \in Unresolved :
        /\ versions[attempts[n].key].number = n
        /\ versions[attempts[n].key].state = IF attempts[n].state = "OPEN" THEN "LOADING" ELSE "ABORTED"
    /\ \A v \in Version : versions[v].state \in {"LOADING", "ABORTED"} => versions[v].number \in Unresolved

UnloadsAreOrdered ==        \* I6: an unload belongs to a version on its way out
    \A c \in ReclaimId :
        reclaims[c].state # "NONE" =>
            /\ versions[reclaims[c].key].reclaim_id = c
            /\ versions[reclaims[c].key].state = IF reclaims[c].state = "DONE" THEN "RECLAIMED" ELSE "RECLAIMING"

RepairsAreListed ==         \* each pending repair is known to its engine, and is of a version that is served
    \A e \in Engine, v \in Version :
        LET pending == {p \in DOMAIN repairs :
                repairs[p].engine = e /\ repairs[p].key = v /\ repairs[p].state = "ORDERED"}
        IN /\ pending = {engines[e].repairs[v]} \ {NoNumber}
           /\ pending # {} =>
               /\ versions[v].state \in Serves
               /\ \A p \in pending : repairs[p].incarnation = engines[e].incarnation

BucketsInOrder ==           \* I8: no engine is ahead of what was authorised
    \A n \in DOMAIN attempts : \A e \in DOMAIN attempts[n].targets :
        /\ Target(n, e).buckets_done <= attempts[n].authorized
        /\ attempts[n].authorized <= Target(n, e).buckets_done + 1 \/ Target(n, e).state = "UNKNOWN"
        /\ Target(n, e).state = "READY" => Target(n, e).buckets_done = Buckets

ProofsAreOfTheVersion ==    \* I9: what is proved was loaded here by a number of that very version
    \A e \in Engine, v \in Version :
        LET n == engines[e].residents[v].number IN
        engines[e].residents[v] # NoResident =>
            /\ engines[e].residents[v].digest = versions[v].digest
            /\ \/ n \in DOMAIN attempts /\ attempts[n].key = v /\ e \in DOMAIN attempts[n].targets
               \/ n \in DOMAIN repairs /\ repairs[n].key = v /\ repairs[n].engine = e

FreedMeansAbsent ==         \* I11
    /\ \A n \in DOMAIN attempts :
           attempts[n].state = "CLEAN" => \A e \in DOMAIN attempts[n].targets : Target(n, e).state = "CLEANED"
    /\ \A c \in ReclaimId :
           reclaims[c].state = "DONE" =>
               \A e \in DOMAIN reclaims[c].unloads : reclaims[c].unloads[e].state = "UNLOADED"
    /\ \A v \in Version, e \in Engine :
           versions[v].state \in {"RECLAIMED", "FAILED_CLEAN"} => engines[e].residents[v] = NoResident

UpMeansServing ==           \* an UP engine proved all that sessions may need; a dead one holds nothing
    \A e \in Engine :
        /\ engines[e].state = "UP" => \A v \in Version : Needed(versions, v) => engines[e].residents[v] # NoResident
        /\ engines[e].state = "REPAIRING" =>
               \E v \in Version : Needed(versions, v) /\ engines[e].residents[v] = NoResident
        /\ engines[e].state \in {"NONE", "DEAD", "REMOVED"} =>
               engines[e] = FreshEngine(engines[e].state, engines[e].incarnation)

-----------------------------------------------------------------------------
(* What is promised of every step *)

DefaultMovesByOne ==        \* I2: and only to a version that is proved, by nothing that was decided earlier
    [][<<default, default_revision>>' # <<default, default_revision>> =>
        /\ default_revision' = default_revision + 1
        /\ default' # default
        /\ \/ /\ versions[default'].state = "LOADING"
              /\ LET n == versions[default'].number IN
                 /\ attempts[n].state = "OPEN"
                 /\ attempts[n].revision = default_revision
                 /\ \A e \in DOMAIN attempts[n].targets :
                     /\ engines[e].state \in Alive
                     /\ engines[e].incarnation = Target(n, e).incarnation
                     /\ engines[e].residents[default'] = [digest |-> versions[default'].digest, number |-> n]
           \/ /\ versions[default'].state = "RETIRED"
              /\ rollbacks' # rollbacks
              /\ \A e \in Engine : engines[e].state = "UP" => engines[e].residents[default'] # NoResident]_vars

BindingIsForEver ==         \* I3: written once, to the default; it ends with the session
    [][\A o \in Owner, s \in Sequence :
        LET was == owners[o].sessions[s]
            is  == owners'[o].sessions[s]
        IN is.binding # was.binding =>
            \/ was.binding = NoVersion /\ is.binding = default /\ is.state = "BOUND"
            \/ is.state \in {"CLOSED", "EXPIRED"}]_vars

SilenceProvesNothing ==     \* a target fails or is clean by its engine's word, or by its engine's end
    [][\A n \in DOMAIN attempts : \A e \in DOMAIN attempts[n].targets :
        LET was == attempts[n].targets[e]
            is  == attempts'[n].targets[e]
        IN is.state \in {"FAILED", "CLEANED"} /\ is.state # was.state => is.seq # was.seq \/ engines'[e] # engines[e]]_vars

AbsenceIsObserved ==        \* I11: by a receipt of the incarnation that was asked, or because that one is dead
    [][/\ \A c \in ReclaimId : \A e \in DOMAIN reclaims[c].unloads :
            reclaims'[c].unloads[e].state = "UNLOADED" /\ reclaims[c].unloads[e].state # "UNLOADED" =>
                \/ engines'[e].incarnation = reclaims[c].unloads[e].incarnation
                \/ ~Lists(engines'[e].inventory.residents, reclaims[c].key)
       /\ \A n \in DOMAIN attempts : \A e \in DOMAIN attempts[n].targets :
            attempts'[n].targets[e].state = "CLEANED" /\ attempts[n].targets[e].state # "CLEANED" =>
                \/ engines'[e].incarnation = attempts[n].targets[e].incarnation
                \/ ~Lists(engines'[e].inventory.residents, attempts[n].key)]_vars

NobodySendsTwice ==         \* I8: bucket after bucket, and none after a takeover
    [][\A n \in DOMAIN attempts :
        attempts'[n].authorized # attempts[n].authorized =>
            /\ attempts'[n].authorized = attempts[n].authorized + 1
            /\ ~attempts[n].taken_over
            /\ \A e \in DOMAIN attempts[n].targets : attempts[n].targets[e].buckets_done = attempts[n].authorized]_vars

DigestIsForEver ==          \* I9
    [][\A v \in Version : versions[v].digest # NoDigest => versions'[v].digest = versions[v].digest]_vars

TheEndIsTheEnd ==           \* I10, I12: what is over stays as it is, whatever arrives late
    [][/\ \A o \in Owner, s \in Sequence :
            owners[o].sessions[s].state \in {"CLOSED", "EXPIRED"} => owners'[o].sessions[s] = owners[o].sessions[s]
       /\ \A n \in DOMAIN attempts : attempts[n].state \in {"COMMITTED", "CLEAN"} => attempts'[n] = attempts[n]
       /\ \A c \in ReclaimId : reclaims[c].state = "DONE" => reclaims'[c] = reclaims[c]
       /\ \A p \in DOMAIN repairs : repairs[p].state # "ORDERED" => repairs'[p] = repairs[p]
       /\ \A v \in Version : versions[v].state = "RECLAIMED" => versions'[v].state = "RECLAIMED"
       /\ \A v \in Version : versions[v].revoked => versions'[v].revoked
       /\ \A t \in Token : tokens[t] # NoNumber => tokens'[t] = tokens[t]
       /\ rollbacks \subseteq rollbacks']_vars

NothingRunsBackwards ==     \* I12
    [][/\ now' >= now
       /\ next_number' >= next_number
       /\ default_revision' >= default_revision
       /\ \A v \in Version :
            versions[v].state = "NONE" /\ versions'[v].state # "NONE" =>
                \A w \in Version : w > v => versions[w].state = "NONE"
       /\ \A e \in Engine :
            /\ engines'[e].incarnation >= engines[e].incarnation
            /\ engines'[e].incarnation = engines[e].incarnation /\ engines'[e].state # "DEAD" =>
                   engines'[e].seq >= engines[e].seq]_vars

VersionSteps ==
    {<<"NONE", "LOADING">>, <<"LOADING", "PUBLISHED">>, <<"LOADING", "ABORTED">>, <<"LOADING", "FAILED_CLEAN">>,
     <<"PUBLISHED", "RETIRED">>, <<"RETIRED", "PUBLISHED">>, <<"RETIRED", "RECLAIMING">>, <<"RETIRED", "RECLAIMED">>,
     <<"RECLAIMING", "RECLAIMED">>, <<"ABORTED", "FAILED_CLEAN">>, <<"FAILED_CLEAN", "LOADING">>}

LifecycleIsKept ==
    [][\A v \in Version :
        versions'[v].state # versions[v].state => <<versions[v].state, versions'[v].state>> \in VersionSteps]_vars
=============================================================================
