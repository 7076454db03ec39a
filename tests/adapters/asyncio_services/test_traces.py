"""What the registry did while services died, replies were lost and engines ended is a behaviour of LoraRegistry.tla.

A sample of this folder's stories is told again, and TLC judges all of their journals in one run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lorafsm.events import ConfirmReclaim
from lorafsm_tla.trace import configuration, judged, names_in, read_story, small_numbers, trace_of
from tests.adapters.asyncio_services import (
    stage,
    test_binding,
    test_lease,
    test_publisher,
    test_reclaimer,
    test_watcher,
)
from tests.adapters.asyncio_services.fault_injection import Fault
from tests.spec.test_tla_trace import needs_tlc

STORIES = (
    lambda: test_publisher.test_a_dead_publisher_never_leaves_LOADING_for_ever("prepared", corrupt=True),
    lambda: test_publisher.test_a_dead_publisher_never_leaves_LOADING_for_ever("one ready", corrupt=False),
    test_publisher.test_a_takeover_commits_what_is_ready_everywhere,
    test_publisher.test_two_standbys_do_not_disturb_each_other,
    lambda: test_publisher.test_a_lost_commit_reply_aborts_nothing(Fault.REPLY_LOST),
    test_publisher.test_without_progress_the_attempt_is_given_up_and_cleaned_when_the_engine_dies,
    lambda: test_reclaimer.test_a_lost_claim_reply_leaves_no_RECLAIMING_for_ever(Fault.REPLY_LOST),
    lambda: test_reclaimer.test_a_reclaimer_that_dies_at_any_point_is_replaced(ConfirmReclaim),
    test_reclaimer.test_one_unconfirmed_unload_blocks_its_own_slot_and_no_later_publication,
    test_watcher.test_a_restarted_engine_is_provisioned_again,
    test_watcher.test_a_publication_is_doomed_by_a_death_and_the_next_one_succeeds,
    test_watcher.test_an_engine_that_died_during_a_reclaim_confirms_it_by_its_death,
    test_watcher.test_an_adapter_that_vanished_is_loaded_again,
    lambda: test_binding.test_a_bind_that_goes_wrong_on_its_way_binds_once(Fault.DOUBLED),
    lambda: test_binding.test_a_close_that_goes_wrong_on_its_way_releases_once(Fault.REPLY_LOST),
    test_lease.test_a_dead_shard_leaks_session_refs_no_more,
)


@needs_tlc
def test_tlc_accepts_what_happened_in_a_sample_of_these_stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stage, "kept", [tmp_path])
    for tell in STORIES:
        tell()
    told = [read_story(path) for path in sorted(tmp_path.iterdir(), key=lambda path: int(path.stem))]
    assert len(told) >= len(STORIES)
    configs = {story.config for story in told}
    assert len(configs) <= 2
    for config in configs:
        events = [small_numbers(story.events) for story in told if story.config == config]
        together = [event for one in events for event in one]
        names = names_in(together)
        traces = [trace_of(config, stage.EPOCH, one, names) for one in events]
        verdicts = list(judged(traces, configuration(config, together, names)))
        assert [v.accepted for v in verdicts] == [True] * len(traces), [v.position for v in verdicts]
