"""SGLang plugin: an engine whose owner was killed ends by itself.

An owner that is stopped in an orderly way ends its engines.  One that gets SIGKILL cannot, and an engine
holds more than a gigabyte.  The owner puts its pid into ``LORAFSM_ENGINE_OWNER`` and makes the server
the leader of a session; the leader then looks once a second whether that pid is still its parent.
"""

import os
import signal
import threading
import time

VARIABLE = "LORAFSM_ENGINE_OWNER"
PERIOD_S = 1.0


def watch(owner):
    """Return never; SIGKILL the own process group when ``owner`` (a pid) is no longer the parent."""
    while os.getppid() == owner:
        time.sleep(PERIOD_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def activate():
    """Called by SGLang's plugin loader in each process; acts in the leader of the engine's session."""
    owner = os.environ.get(VARIABLE)
    if owner and os.getsid(0) == os.getpgid(0) == os.getpid():
        threading.Thread(target=watch, args=(int(owner),), name="owner-watch", daemon=True).start()
