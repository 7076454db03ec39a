---------------------------- MODULE MCInductive ----------------------------
(* The boxes of MCLoraRegistry, for what LoraRegistryInductive says of their states. *)
EXTENDS MCLoraRegistry, LoraRegistryInductive
=============================================================================
