"""The registry as a Ray actor that outlives its process, and its clients (RFC 2)."""

from lorafsm_ray.actor import RegistryActor
from lorafsm_ray.calls import NAMESPACE
from lorafsm_ray.client import AsyncClient, BlockingClient
from lorafsm_ray.deploy import connect, connect_blocking, start_registry, stop_registry
from lorafsm_ray.live import Happened, Hook, Live, Seen
from lorafsm_ray.patience import Patience
from lorafsm_ray.settings import RegistrySettings

__all__ = [
    "NAMESPACE",
    "AsyncClient",
    "BlockingClient",
    "Happened",
    "Hook",
    "Live",
    "Patience",
    "RegistryActor",
    "RegistrySettings",
    "Seen",
    "connect",
    "connect_blocking",
    "start_registry",
    "stop_registry",
]
