------------------------ MODULE LoraRegistryRefines ------------------------
(* Every step of the registry keeps the promise. *)
EXTENDS LoraRegistry

Session == Owner \X Sequence

SessionOf(s) == owners[s[1]].sessions[s[2]]

Promised == INSTANCE Promise WITH
    uses  <- [s \in Session |-> SessionOf(s).binding],
    ended <- {s \in Session : SessionOf(s).state \in {"CLOSED", "EXPIRED"}},
    taken <- {v \in Version : versions[v].revoked},
    refs  <- [v \in Version |-> versions[v].session_refs],
    slots <- Slots

RefinesPromise == Promised!Spec                         \* from nothing on
KeepsPromise   == [][Promised!Next]_(Promised!vars)     \* from any state on
=============================================================================
