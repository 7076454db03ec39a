"""The buckets of attempts on the engine's host, in shared memory where there is some: outside the scheduler.

One file a bucket, each a safetensors file with some of the adapter's tensors; bucket 0 carries the adapter config
as canonical JSON in its metadata under `config`.  Nothing of it reaches SGLang before the whole has the digest.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from attrs import define, field

from lorafsm.errors import InvalidField
from lorafsm_sglang.guard.wire import read_json

LARGEST_BUCKET = 512 << 20  # bytes
_PREFIX = "lorafsm-stash"


class StashError(InvalidField):
    """A bucket or a stash that cannot be what was announced."""


@define
class Stash:
    """The buckets of one engine's process under `root`; what dead processes left there is removed."""

    root: Path
    engine: str
    deadline_s: float = 60.0
    _posted: dict[tuple[int, int], asyncio.Future[None]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for left in self.root.glob(f"{_PREFIX}-{self.engine}-*"):
            pid = left.name.rpartition("-")[2]
            if pid.isdigit() and not Path("/proc", pid).exists():
                shutil.rmtree(left, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """This process's own folder."""
        return self.root / f"{_PREFIX}-{self.engine}-{os.getpid()}"

    async def receive(self, number: int, bucket: int) -> str | None:
        """Wait until the posted bucket is delivered; None, or why it was not."""
        future = asyncio.get_running_loop().create_future()
        self._posted[number, bucket] = future
        try:
            async with asyncio.timeout(self.deadline_s):
                await future
        except TimeoutError:
            return f"bucket {bucket} did not come within {self.deadline_s:.0f} s"
        except StashError as error:
            return error.message
        finally:
            self._posted.pop((number, bucket), None)
        return None

    async def deliver(self, number: int, bucket: int, data: bytes) -> None:
        """Take the bytes of a posted bucket; StashError where none is posted, or there is no room."""
        future = self._posted.get((number, bucket))
        if future is None or future.done():
            raise StashError("bucket", f"no receive of bucket {bucket} of number {number} is posted; arm it first")
        if not data or len(data) > LARGEST_BUCKET:
            raise StashError("bucket", f"must have 1 to {LARGEST_BUCKET} bytes, not {len(data)}")
        await asyncio.to_thread(self._write, number, bucket, data)
        if not future.done():
            future.set_result(None)

    def abort(self, number: int) -> None:
        """Nobody will deliver what is posted for this number."""
        for (posted, bucket), future in self._posted.items():
            if posted == number and not future.done():
                future.set_exception(StashError("bucket", f"the receive of bucket {bucket} was aborted"))

    def assemble(self, number: int, digest: str) -> Path:
        """Put the buckets together, prove the digest, and return a folder that SGLang can load."""
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import save_file

        from lorafsm_torch import freeze_snapshot

        files = sorted((self.folder / str(number)).glob("*.safetensors"), key=lambda path: int(path.stem))
        tensors, config = {}, None
        try:
            for file in files:
                with safe_open(file, framework="pt") as bucket:
                    metadata = bucket.metadata() or {}
                    config = read_json(metadata["config"].encode()) if "config" in metadata else config
                    for name in bucket.keys():  # noqa: SIM118 - not a mapping
                        if name in tensors:
                            raise StashError(name, "came in two buckets")
                        tensors[name] = bucket.get_tensor(name)
        except SafetensorError as error:
            raise StashError("bucket", f"{error}; send safetensors") from error
        if config is None:
            raise StashError("config", "came in no bucket; put it into the metadata of bucket 0")
        snapshot = freeze_snapshot(config, tensors)
        if snapshot.digest != digest:
            raise StashError("digest", f"the buckets have digest {snapshot.digest}, not {digest}")
        folder = self.folder / str(number) / "adapter"
        folder.mkdir(exist_ok=True)
        save_file(dict(snapshot.tensors), folder / "adapter_model.safetensors", {"format": "pt"})
        (folder / "adapter_config.json").write_text(snapshot.manifest.config_json + "\n", encoding="utf-8")
        return folder

    def drop(self, number: int) -> None:
        """Free the buckets of a number."""
        shutil.rmtree(self.folder / str(number), ignore_errors=True)

    def close(self) -> None:
        """Free everything."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, number: int, bucket: int, data: bytes) -> None:
        folder = self.folder / str(number)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if shutil.disk_usage(folder).free < 2 * len(data):  # the adapter is put together beside its buckets
            raise StashError("bucket", "there is no room for it on the engine's host")
        incoming = folder / f"{bucket}.incoming"
        incoming.write_bytes(data)
        incoming.rename(folder / f"{bucket}.safetensors")
