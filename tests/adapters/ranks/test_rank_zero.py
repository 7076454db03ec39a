"""Rank 0's publication against the registry: whatever fails, what it answers is what the registry says."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'lorafsm[torch]'")

from lorafsm.identity import VersionKey  # noqa: E402
from lorafsm.invariants import check  # noqa: E402
from lorafsm.lifecycle import VersionState  # noqa: E402
from lorafsm_torch.ranks import Flag  # noqa: E402
from tests.adapters.ranks.engines import EPOCH, Deployment  # noqa: E402

CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
DEADLINE_S = 2.5


def weights(version: float):
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    return CONFIG, {f"{name}A.weight": torch.full((2, 4), float(version)), f"{name}B.weight": torch.full((4, 2), 1.0)}


@pytest.fixture
def deployment(tmp_path: Path):
    one = Deployment.at(tmp_path, share_s=1.0, registry_s=0.3)
    with one.host:
        yield one
        assert check(one.host.registry) == ()


def state(deployment: Deployment, version: int) -> VersionState:
    return deployment.host.registry.versions[VersionKey(EPOCH, version)].state


def publish(deployment: Deployment, version: int):
    return deployment.publisher.publish(version, weights(version), DEADLINE_S)


def publishes_twice(deployment: Deployment, first: int) -> None:
    """Two publications in a row work: nothing of an earlier one is in the way."""
    assert publish(deployment, first).flag is Flag.OK
    assert publish(deployment, first + 1).flag in (Flag.OK, Flag.SKIPPED_CAPACITY)


def test_a_publication_makes_the_default_and_the_same_again_is_a_no_op(deployment: Deployment):
    done = publish(deployment, 1)
    assert (done.flag, done.reason) == (Flag.OK, "e1-1 is the default, revision 1")
    again = publish(deployment, 1)
    assert (int(again), again.reason) == (0, "NO_OP: e1-1 was published already")
    assert deployment.host.registry.default_revision == 1


def test_other_content_under_a_known_version_is_refused(deployment: Deployment):
    publish(deployment, 1)
    refused = deployment.publisher.publish(1, weights(2), DEADLINE_S)
    assert refused.flag is Flag.FAILED_CLEAN
    assert refused.reason.startswith("VERSION_CONFLICT")
    assert deployment.publisher.refused == {"VERSION_CONFLICT": 1}


def test_without_a_slot_it_is_skipped_counted_and_no_engine_hears_of_it(deployment: Deployment):
    assert publish(deployment, 1).flag is publish(deployment, 2).flag is Flag.OK
    before = [engine.agent for engine in deployment.engines.values()]
    skipped = [publish(deployment, 3) for _ in range(2)]
    assert [int(each) for each in skipped] == [1, 1]
    assert "e1-1 RETIRED: nobody holds it" in skipped[0].reason
    assert deployment.publisher.refused == {"CAPACITY_ERROR": 2}
    assert [engine.agent for engine in deployment.engines.values()] == before


@pytest.mark.parametrize(
    ("config", "tensors", "why"),
    [
        (CONFIG, {}, "an adapter without tensors"),
        (CONFIG, {"w": torch.zeros(2, dtype=torch.int64)}, "must be one of bfloat16"),
        (["no", "mapping"], {"w": torch.zeros(2)}, "must be a mapping"),
    ],
)
def test_what_cannot_be_frozen_reserves_nothing(deployment: Deployment, config, tensors, why):
    refused = deployment.publisher.publish(1, (config, tensors), DEADLINE_S)
    assert refused.flag is Flag.FAILED_CLEAN
    assert refused.reason.startswith("nothing was begun")
    assert why in refused.reason
    assert not deployment.host.registry.versions
    publishes_twice(deployment, 1)


def test_a_driver_that_raises_between_reserve_and_commit_leaves_a_clean_failure(deployment: Deployment):
    faults = [ZeroDivisionError("the driver has a bug")]

    def buggy() -> None:
        if faults:
            raise faults.pop()

    deployment.in_drive = buggy
    failed = publish(deployment, 1)
    assert failed.flag is Flag.FAILED_CLEAN
    assert "ZeroDivisionError: the driver has a bug" in failed.reason
    assert state(deployment, 1) is VersionState.FAILED_CLEAN
    publishes_twice(deployment, 1)


def test_an_engine_that_refuses_leaves_a_clean_failure(deployment: Deployment):
    deployment.engines["E1"].broken = True
    failed = publish(deployment, 1)
    assert failed.flag is Flag.FAILED_CLEAN
    assert "E1: broken" in failed.reason
    assert state(deployment, 1) is VersionState.FAILED_CLEAN
    deployment.engines["E1"].broken = False
    publishes_twice(deployment, 1)


def test_an_engine_that_says_nothing_is_named_and_the_next_publication_is_skipped_until_it_speaks(
    deployment: Deployment,
):
    deployment.engines["E1"].silent = True
    failed = publish(deployment, 1)
    assert failed.flag is Flag.FAILED_CLEAN
    assert "deadline" in failed.reason
    assert "slot is held" in failed.reason
    assert state(deployment, 1) is VersionState.ABORTED
    skipped = publish(deployment, 2)
    assert (skipped.flag, skipped.reason[:22]) == (Flag.SKIPPED_CAPACITY, "PUBLICATION_UNRESOLVED")


@pytest.mark.parametrize("event", ["reserve", "artifact_stored", "ready", "commit"])
def test_a_lost_reply_is_resolved_by_asking(deployment: Deployment, event: str):
    deployment.client.lost_replies[event] = 1
    done = publish(deployment, 1)
    # The driver gives up at a reply that it lost; whether the version is the default, the registry knows.
    committed = event != "ready"
    assert (done.flag is Flag.OK) is committed, done
    assert (deployment.host.registry.default is not None) is committed
    publishes_twice(deployment, 1 if not committed else 2)


def test_a_registry_that_is_not_reached_reserves_nothing(deployment: Deployment):
    deployment.client.unreachable.update({"reserve", "ask"})
    failed = publish(deployment, 1)
    assert failed.flag is Flag.FAILED_CLEAN
    assert failed.reason == "nothing was begun: REGISTRY_UNAVAILABLE: reserve did not arrive"
    deployment.client.unreachable.clear()
    publishes_twice(deployment, 1)


def test_a_registry_that_is_lost_for_good_after_the_reserve_is_fatal(deployment: Deployment):
    """Nobody can say whether the default moved."""
    deployment.client.unreachable.update({"ask"})
    failed = publish(deployment, 1)
    assert failed.flag is Flag.FATAL
    assert failed.reason.startswith("UNRESOLVED e1-1")


def test_an_attempt_of_a_dead_driver_is_taken_over_once_its_lease_has_run_out(deployment: Deployment):
    """A trainer that starts again with the version that its former self had begun."""
    deployment.client.unreachable.update({"ask"})
    assert publish(deployment, 1).flag is Flag.FATAL
    deployment.client.unreachable.clear()
    waited = publish(deployment, 1)
    assert (waited.flag, waited.reason) == (Flag.FATAL, "UNRESOLVED e1-1: attempt 1 is still open")
    deployment.publisher.clock.now += deployment.host.registry.config.driver_lease
    taken = publish(deployment, 1)
    assert taken.flag is Flag.FAILED_CLEAN
    assert "TAKEN_OVER" in taken.reason
    publishes_twice(deployment, 1)
