"""kill -9 at any moment: what was acknowledged is there, what was not is wholly there or wholly absent."""

import random
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from lorafsm.records import new_registry
from lorafsm.registry import step
from lorafsm_journal import Journal
from tests.adapters.journal_stories import CONFIG, EPOCH, endless

ROOT = Path(__file__).parents[2]
WRITER = """
import sys
from itertools import islice
sys.path.insert(0, sys.argv[1])
from tests.adapters.journal_stories import CONFIG, EPOCH, endless
from lorafsm_journal import JournaledRegistry
with JournaledRegistry.open(sys.argv[2], CONFIG, EPOCH) as host:
    done = len(host.journal)
    for event in islice(endless(), done, None):
        host.apply(event)
        done += 1
        sys.stdout.write(f"{done}\\n")
        sys.stdout.flush()
"""


def killed_after(path: Path, lines: int) -> int:
    """Run a writer, kill it once it acknowledged `lines` rows more; the last row that it acknowledged."""
    command = [sys.executable, "-c", WRITER, str(ROOT), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            for _ in range(lines):
                assert writer.stdout.readline(), writer.stderr.read()
        finally:
            writer.kill()
        rest = writer.stdout.read()
        assert writer.wait(60) == -signal.SIGKILL
    # The last line may be cut: the row was written, its acknowledgement was not.
    complete = [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    return complete[-1] if complete else -1


@pytest.mark.parametrize("seed", range(3))
def test_recovery_is_a_prefix_that_holds_all_that_was_acknowledged(tmp_path: Path, seed: int):
    path = tmp_path / "journal"
    chance = random.Random(seed)
    total = 0
    for _ in range(4):
        lines = chance.randint(1, 60)
        acknowledged = max(killed_after(path, lines), total + lines)
        with Journal.read(path) as journal:
            rows = list(journal.rows())
            recovered = journal.recover()
        assert len(rows) >= acknowledged
        expected = list(islice(endless(), len(rows)))
        assert [row.event for row in rows] == expected
        registry = new_registry(EPOCH, CONFIG)
        for row, event in zip(rows, expected, strict=True):
            result = step(registry, event)
            assert row.outcome == result.outcome
            registry = result.registry
        assert recovered == registry
        total = len(rows)
    assert any(not row.outcome.ok for row in rows)
    assert sum(row.outcome.ok for row in rows) > 10
