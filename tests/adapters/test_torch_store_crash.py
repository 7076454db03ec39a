"""kill -9 at any moment of a put: the version is there as a whole or not at all, and the next opener tidies up."""

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lorafsm.identity import VersionKey, parse_lora_name

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from lorafsm_torch import ArtifactStore, freeze_snapshot  # noqa: E402

ROOT = Path(__file__).parents[2]


def snapshot_of(number: int):
    tensors = {f"w{i}": torch.full((64, 64), float(number * 10 + i)) for i in range(3)}
    return freeze_snapshot({"r": 1, "number": number}, tensors)


def check(root: Path) -> set[int]:
    """Open the store after a death; the versions that are there, each of them proved."""
    store = ArtifactStore(root)
    assert {path.name for path in root.iterdir()} == set(store.names())
    numbers = {parse_lora_name(name).key.version_id for name in store.names()}
    for number in numbers:
        assert store.get(VersionKey("e", number), snapshot_of(number).digest) == snapshot_of(number)
    return numbers


# Each child dies by its own hand right before its n-th step: a call that makes, opens, renames or removes something,
# or an fsync.
STEPS = """
import os, signal, sys
sys.path[:0] = sys.argv[1:3]
import torch
torch.set_num_threads(1)
from lorafsm.identity import VersionKey
from lorafsm_torch import ArtifactStore
from tests.adapters.test_torch_store_crash import snapshot_of
snapshot = snapshot_of(1)
def child(root, last):
    steps = 0
    def step(*_):
        nonlocal steps
        steps += 1
        if steps > last:
            os.kill(os.getpid(), signal.SIGKILL)
    events = {"open", "os.mkdir", "os.rename", "os.chmod", "os.rmdir", "os.remove", "shutil.rmtree", "os.listdir"}
    sync = os.fsync
    os.fsync = lambda fd: (step(), sync(fd))[1]
    sys.addaudithook(lambda event, _: step() if event in events and armed else None)
    armed = True
    if ACTION == "put":
        ArtifactStore(root).put(VersionKey("e", 1), snapshot)
    else:
        store.delete(store.names()[0])
    os._exit(0)
ACTION = sys.argv[4]
for last in range(200):
    root = os.path.join(sys.argv[3], f"{last:03}")
    store = ArtifactStore(root)
    if ACTION == "delete":
        store.put(VersionKey("e", 1), snapshot)
    pid = os.fork()
    if pid == 0:
        try:
            child(root, last)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        print(os.waitstatus_to_exitcode(status), last)
        break
"""


@pytest.mark.parametrize("action, least", [("put", 15), ("delete", 5)])
def test_death_before_every_step(tmp_path: Path, action: str, least: int):
    command = [sys.executable, "-c", STEPS, str(ROOT), str(ROOT / "adapters"), str(tmp_path), action]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    status, deaths = map(int, done.stdout.split())
    assert status == 0, done.stderr
    assert deaths >= least, "the steps were not seen"
    roots = sorted(tmp_path.iterdir())
    assert len(roots) == deaths + 1
    littered = sum(any(path.name.startswith(".incoming-") for path in root.iterdir()) for root in roots)
    assert littered >= 2, "no death left anything to tidy up: the test kills at the wrong moments"
    there = [check(root) for root in roots]
    before, after = ([], [1]) if action == "put" else ([1], [])
    # Not there, then there, and never in between.
    turn = there.index(set(after))
    assert there == [set(before)] * turn + [set(after)] * (len(roots) - turn)
    assert turn > 0
    for root in roots:
        ArtifactStore(root).put(VersionKey("e", 1), snapshot_of(1))
        assert check(root) == {1}


ENDLESS = """
import itertools, sys
sys.path[:0] = sys.argv[1:3]
from lorafsm.identity import VersionKey
from lorafsm_torch import ArtifactStore
from tests.adapters.test_torch_store_crash import snapshot_of
store = ArtifactStore(sys.argv[3])
for number in itertools.count(int(sys.argv[4])):
    store.put(VersionKey("e", number), snapshot_of(number))
    print(number, flush=True)
"""


def test_death_at_a_random_moment(tmp_path: Path):
    """What was acknowledged is there; at most one version more is, and it is whole."""
    chance = random.Random(20)
    first = 0
    for _ in range(3):
        command = [sys.executable, "-c", ENDLESS, str(ROOT), str(ROOT / "adapters"), str(tmp_path), str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
            try:
                assert writer.stdout is not None
                for _ in range(chance.randint(1, 8)):
                    line = writer.stdout.readline()
                    assert line, writer.communicate()[1]
                threading.Event().wait(chance.random() * 0.02)  # the moment, not a condition
            finally:
                writer.send_signal(signal.SIGKILL)
            acknowledged = [int(line), *map(int, writer.stdout.read().split())]
        there = check(tmp_path)
        last = acknowledged[-1]
        assert there in (set(range(last + 1)), set(range(last + 2)))
        first = last + 1  # perhaps there already: then the put is a repetition
