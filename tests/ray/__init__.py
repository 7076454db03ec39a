"""The registry as a Ray actor: its class alone, its clients under faults, and real clusters."""
