"""Publications over the wire that succeed: what arrives is what was frozen, byte for byte."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from tests.adapters.transport.stories import Fleet, adapter, publish, two_engines  # noqa: E402


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    yield from two_engines()


@pytest.mark.parametrize("cap", [3000, 8192, 1 << 20])
def test_every_engine_reads_what_was_frozen(fleet: Fleet, cap: int):
    publish(fleet, adapter(1), cap=cap)
