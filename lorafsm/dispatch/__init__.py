"""May this session send a request now?  The guard in the session owner's own process (RFC 4.2, protocol rule 10).

One `Guard` value per owner: its lease by its own clock, the versions that policy revoked, and per session the
binding and at most one backend attempt.  The engine's closed set is the last line behind it (rule 13).
"""

from lorafsm.dispatch.records import DispatchStep, Guard, new_guard
from lorafsm.dispatch.step import dispatch_invariants, dispatch_step, may_dispatch

__all__ = ["DispatchStep", "Guard", "dispatch_invariants", "dispatch_step", "may_dispatch", "new_guard"]
