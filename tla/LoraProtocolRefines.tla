------------------------ MODULE LoraProtocolRefines ------------------------
(* Every step of the whole protocol keeps the promise; under its fairness, a slot that nobody can use comes free. *)
EXTENDS LoraProtocol

Session == Owner \X Sequence

Binding(s) == owners[s[1]].sessions[s[2]]

Promised == INSTANCE Promise WITH
    uses  <- [s \in Session |-> Binding(s).binding],
    ended <- {s \in Session : Binding(s).state \in {"CLOSED", "EXPIRED"}},
    taken <- {v \in Version : versions[v].revoked},
    refs  <- [v \in Version |-> versions[v].session_refs],
    slots <- Slots

RefinesPromise == Promised!Spec                         \* from nothing on
KeepsPromise   == [][Promised!Next]_(Promised!vars)     \* from any state on
SlotsComeFree  == Promised!SlotsComeFree                \* the promise's fairness, in the form that TLC can judge
=============================================================================
