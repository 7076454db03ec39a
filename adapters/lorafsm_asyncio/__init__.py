"""The protocol's moving parts as asyncio services around the pure policies, over any `RegistryClient`."""

from lorafsm_asyncio.client import RegistryClient, RegistryUnavailable
from lorafsm_asyncio.local import LocalClient
from lorafsm_asyncio.questions import Question, answer

__all__ = ["LocalClient", "Question", "RegistryClient", "RegistryUnavailable", "answer"]
