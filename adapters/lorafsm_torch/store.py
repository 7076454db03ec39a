"""The artifact store: one immutable folder per version, there as a whole or not at all (RFC 3.1, protocol rule 15).

A folder is written under a hidden temporary name, synced, read back, renamed, and its parent synced.  The root is
locked (`flock`) only around looking and renaming, so that one key never gets two contents; a writer holds a lock
on its temporary folder while it lives, so that the next opener can tell a dead writer's leavings from live work.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from lorafsm.errors import InvalidField
from lorafsm.identity import MANAGED_PREFIX, VersionKey, fault_in_digest, fault_in_lora_name, lora_name
from lorafsm.manifest import Manifest
from lorafsm_torch.errors import ArtifactCode, ArtifactError, invalid
from lorafsm_torch.folder import TENSORS_FILE, TensorFile, check_entries, open_tensors, read_bounded
from lorafsm_torch.freeze import Snapshot, freeze_snapshot
from lorafsm_torch.manifest_file import MANIFEST_FILE, config_of, parse_manifest, render_manifest
from lorafsm_torch.peft import CONFIG_FILE, check_expected_shapes
from lorafsm_torch.tensor_bytes import sha256_of_all

_TEMPORARY = re.compile(r"\.incoming-[0-9a-f]{32}\Z")
_METADATA = {"format": "pt"}  # what readers of PEFT adapters expect


class ArtifactStore:
    """Versions on disk under `root` (made if it is not there); safe for several threads and processes.

    Opening removes temporary folders of writers that died, and nothing else.
    """

    def __init__(self, root: Path | str) -> None:
        try:
            Path(root).mkdir(parents=True, exist_ok=True)
            self.root = Path(root).resolve(strict=True)
            with self._locked():
                self._remove_dead()
        except OSError as error:
            raise _unwritable(Path(root), error) from error

    def put(self, key: VersionKey, snapshot: Snapshot) -> Path:
        """Store `snapshot` as version `key` and return its folder; the same contents again change nothing.

        Raises ArtifactError: SNAPSHOT_CHANGED, VERSION_CONFLICT (the key is stored with other contents),
        ARTIFACT_INVALID (what is stored is damaged), STORE_UNWRITABLE.  Raises InvalidField for a malformed key.
        """
        name = lora_name(key, snapshot.digest)
        snapshot.verify()
        try:
            with self._locked():
                held = self._held(key)
            if held is None:
                held = self._write(key, name, snapshot)
            if held is not None:
                self._require_same(held, name, snapshot.digest)
            _sync(self.root)
        except OSError as error:
            raise _unwritable(self.root, error) from error
        return self.path(name)

    def get(self, key: VersionKey, digest: str) -> Snapshot:
        """Read a version back, every byte checked; errors as of `verify`, InvalidField for a malformed argument."""
        name = lora_name(key, digest)
        with _opened(self._folder(name), name, digest) as (manifest, file):
            snapshot = freeze_snapshot(config_of(manifest), file.tensors())
        _check_bytes(manifest, {entry.name: entry.sha256 for entry in snapshot.manifest.tensors})
        return snapshot

    def verify(self, lora_name: str, digest: str) -> Manifest:
        """Prove that the stored folder is exactly the version of this digest, without keeping its tensors.

        Raises ArtifactError: ARTIFACT_MISSING, or ARTIFACT_INVALID whose `field` names the file or tensor.
        """
        if fault := fault_in_digest(digest):
            raise InvalidField("digest", fault)
        return _check_folder(self._folder(lora_name), lora_name, digest)

    def delete(self, lora_name: str) -> bool:
        """Remove a version, damaged or not; whether it was there.  A crash leaves it whole or leaves it gone."""
        folder = self.path(lora_name)
        try:
            with self._locked():
                if not _is_folder(folder):
                    return False
                leaving = self._temporary()
                folder.rename(leaving)
                _sync(self.root)
                shutil.rmtree(leaving)
        except OSError as error:
            raise _unwritable(folder, error) from error
        return True

    def names(self) -> tuple[str, ...]:
        """Names of the versions stored, sorted; contents are not looked at."""
        return tuple(sorted(p.name for p in self.root.iterdir() if fault_in_lora_name(p.name) is None))

    def path(self, lora_name: str) -> Path:
        """The folder of a version, there or not; InvalidField for a name that is not a managed one.

        No path hides in a name that passes, and a link in its place is never followed.
        """
        if fault := fault_in_lora_name(lora_name):
            raise InvalidField("lora_name", fault)
        return self.root / lora_name

    def _folder(self, name: str) -> Path:
        folder = self.path(name)
        if not _is_folder(folder):
            raise ArtifactError(
                ArtifactCode.ARTIFACT_MISSING, f"{name} is not in the store {self.root}; put it first", "lora_name"
            )
        return folder

    def _held(self, key: VersionKey) -> str | None:
        """The name under which `key` is stored, whatever its digest."""
        # An epoch has no hyphen, so no other key's names begin like this.
        return next((name for name in self.names() if name.startswith(f"{MANAGED_PREFIX}{key}-")), None)

    def _require_same(self, held: str, name: str, digest: str) -> None:
        # Names differ, or (a prefix in common, by chance or by design) only the full digests do.
        if held != name or self._stored_digest(held) != digest:
            raise ArtifactError(
                ArtifactCode.VERSION_CONFLICT,
                f"the key is stored as {held} with other contents, for good; publish these under a new version_id",
                "digest",
            )
        _check_folder(self._folder(held), held, digest)

    def _stored_digest(self, name: str) -> str:
        return parse_manifest(read_bounded(self._folder(name) / MANIFEST_FILE), name).digest()

    def _write(self, key: VersionKey, name: str, snapshot: Snapshot) -> str | None:
        """Write the folder and rename it; the name that was stored meanwhile, if another writer won."""
        with self._locked():
            incoming = self._temporary()
            incoming.mkdir()
            lock = _lock(incoming)
        try:
            _fill(incoming, name, snapshot)
            _check_folder(incoming, name, snapshot.digest)
            with self._locked():
                held = self._held(key)
                if held is None:
                    incoming.rename(self.root / name)
            return held
        finally:
            shutil.rmtree(incoming, ignore_errors=True)  # there only if it was not renamed
            os.close(lock)

    def _temporary(self) -> Path:
        return self.root / f".incoming-{secrets.token_hex(16)}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = _lock(self.root)
        try:
            yield
        finally:
            os.close(lock)

    def _remove_dead(self) -> None:
        for folder in list(self.root.iterdir()):
            if not _TEMPORARY.match(folder.name) or folder.is_symlink() or not folder.is_dir():
                continue
            try:
                lock = _lock(folder, fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its writer lives
            try:
                shutil.rmtree(folder)
            finally:
                os.close(lock)


@contextmanager
def _opened(folder: Path, name: str, digest: str) -> Iterator[tuple[Manifest, TensorFile]]:
    """The folder of version `name`, everything checked but the tensors' bytes, cheapest first."""
    check_entries(folder, {TENSORS_FILE, CONFIG_FILE, MANIFEST_FILE})
    manifest = parse_manifest(read_bounded(folder / MANIFEST_FILE), name)
    if manifest.digest() != digest:
        raise invalid(MANIFEST_FILE, f"has digest {manifest.digest()}, not {digest}; it is another version")
    if read_bounded(folder / CONFIG_FILE) != _config_bytes(manifest):
        raise invalid(CONFIG_FILE, "is not the config of the manifest; delete the version and put it again")
    with open_tensors(folder / TENSORS_FILE) as file:
        if file.metadata != _METADATA:
            raise invalid(TENSORS_FILE, f"has metadata {dict(file.metadata)!r:.80}, not what the store writes")
        shapes = {tensor: shape for tensor, (_, shape) in file.header.items()}
        check_expected_shapes(shapes, {t.name: t.shape for t in manifest.tensors}, TENSORS_FILE)
        for entry in manifest.tensors:
            if (dtype := file.header[entry.name][0]) != entry.dtype:
                raise invalid(entry.name, f"has dtype {dtype} in {TENSORS_FILE}, but must have {entry.dtype}")
        yield manifest, file


def _check_folder(folder: Path, name: str, digest: str) -> Manifest:
    with _opened(folder, name, digest) as (manifest, file):
        _check_bytes(manifest, sha256_of_all(file.tensors()))
    return manifest


def _check_bytes(manifest: Manifest, seen: Mapping[str, str]) -> None:
    for entry in manifest.tensors:
        if seen[entry.name] != entry.sha256:
            raise invalid(entry.name, f"has other bytes in {TENSORS_FILE}; delete the version and put it again")


def _fill(folder: Path, name: str, snapshot: Snapshot) -> None:
    files = {
        MANIFEST_FILE: render_manifest(snapshot.manifest, name),
        CONFIG_FILE: _config_bytes(snapshot.manifest),
    }
    for file, data in files.items():
        (folder / file).write_bytes(data)
    weights = folder / TENSORS_FILE
    try:
        save_file(dict(snapshot.tensors), weights, _METADATA)
    except SafetensorError as error:
        raise _unwritable(weights, error) from error
    # safetensors makes it private; an engine may run as another user.
    weights.chmod(stat.S_IMODE((folder / MANIFEST_FILE).stat().st_mode))
    for file in (*files, TENSORS_FILE):
        _sync(folder / file)
    _sync(folder)


def _config_bytes(manifest: Manifest) -> bytes:
    return f"{manifest.config_json}\n".encode()


def _is_folder(path: Path) -> bool:
    """Whether a folder is there; anything else in its place (a link above all) is refused."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise invalid(path.name, "is not a folder but a file or a link; the store did not make it, remove it by hand")
    return True


def _lock(folder: Path, how: int = 0) -> int:
    """An open descriptor that holds the folder's exclusive lock; closing it, or the process's end, gives it back."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: Exception) -> ArtifactError:
    return ArtifactError(ArtifactCode.STORE_UNWRITABLE, f"{path}: {error}; check permissions and free space", "root")
