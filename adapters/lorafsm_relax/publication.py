"""`publication.step` of a training rank, put together: registry, engines, transport, artifact store (RFC 3, 6).

The only module of this package that needs torch; a trainer has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.distributed import Store

from lorafsm.manifest import Plan, store_plan
from lorafsm_asyncio.client import RegistryClient
from lorafsm_asyncio.owner import monotonic_ms
from lorafsm_asyncio.publisher import Publisher
from lorafsm_relax.fleet import guarded_engines
from lorafsm_torch.bucket_sender import BucketSender
from lorafsm_torch.freeze import Snapshot
from lorafsm_torch.plan import DEFAULT_CAP
from lorafsm_torch.rank_zero import RegistryPublisher, driven_by
from lorafsm_torch.ranks import Publication
from lorafsm_torch.sender import Lobby
from lorafsm_torch.store import ArtifactStore


def versioned_publication(
    args: Any,
    board: Store,
    rank: int,
    size: int,
    *,
    connect: Callable[[], RegistryClient],
    engines: Iterable[str],
    url_of: Callable[[str], str],
    token: str,
    host: str = "127.0.0.1",
    backend: str = "gloo",
    buckets: bool = True,
    clock: Callable[[], int] = monotonic_ms,
    **more: Any,
) -> Publication:
    """One rank's publication; only rank 0 connects to the registry and talks to engines.

    `board` is a torch.distributed store that all ranks share.  `host` is where the engines reach this process, for the
    transfer over `backend`; without `buckets` they read the artifact store.  `more` goes to `Publication` (deadlines,
    release, renew).
    """
    publisher = None
    if rank == 0:
        client = connect()
        members = guarded_engines(
            engines, url_of, token, clock=clock, announce=lambda begin: sender.announcement(begin)
        )
        sender = BucketSender(Lobby(host), members, client.apply, clock, cap=DEFAULT_CAP, backend=backend)
        driver = Publisher(client, members, send=sender.send, clock=clock)

        def plan(snapshot: Snapshot) -> Plan:
            return sender.plan(snapshot) if buckets else store_plan()

        publisher = RegistryPublisher(
            client,
            args.lora_deployment_epoch,
            ArtifactStore(args.lora_artifact_store),
            driven_by(driver, sender),
            clock,
            plan=plan,
        )
    return Publication(board, rank, size, publisher, **more)
