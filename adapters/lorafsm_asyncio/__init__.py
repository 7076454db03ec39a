"""The protocol's moving parts as asyncio services around the pure policies, over any `RegistryClient`."""

from lorafsm_asyncio.attempt import Attempt
from lorafsm_asyncio.binder import SessionBinder
from lorafsm_asyncio.client import RegistryClient, RegistryUnavailable
from lorafsm_asyncio.errands import Executor, Send
from lorafsm_asyncio.generate import Call, GenerateFailed, Verdict, classify
from lorafsm_asyncio.local import LocalClient
from lorafsm_asyncio.notices import Notice
from lorafsm_asyncio.publisher import Publisher
from lorafsm_asyncio.questions import Question, answer
from lorafsm_asyncio.reclaimer import Reclaimer
from lorafsm_asyncio.refusals import EngineSilent, Refused
from lorafsm_asyncio.repairer import Repairer
from lorafsm_asyncio.services import run_services
from lorafsm_asyncio.settling import ask_engines
from lorafsm_asyncio.watcher import Seat, Watcher

__all__ = [
    "Attempt",
    "Call",
    "EngineSilent",
    "Executor",
    "GenerateFailed",
    "LocalClient",
    "Notice",
    "Publisher",
    "Question",
    "Reclaimer",
    "Refused",
    "RegistryClient",
    "RegistryUnavailable",
    "Repairer",
    "Seat",
    "Send",
    "SessionBinder",
    "Verdict",
    "Watcher",
    "answer",
    "ask_engines",
    "classify",
    "run_services",
]
