"""Events and outcomes on their way between client and actor: what comes out is what went in, or an error."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorafsm.errors import LoraFsmError
from lorafsm.events import EVENTS, Heartbeat, Open, OwnerUp
from lorafsm.outcomes import Code, Done
from lorafsm_journal import Undecodable
from lorafsm_journal.codec import OUTCOMES
from lorafsm_ray import AsyncClient
from lorafsm_ray.wire import read_events, read_outcomes, write_events, write_outcomes
from tests.adapters.journal_stories import life, session
from tests.ray.local import local_actor
from tests.ray.lossy import LocalCalls

EVENT = st.one_of(*[st.from_type(kind) for kind in EVENTS])
OUTCOME = st.one_of(*[st.from_type(kind) for kind in OUTCOMES.values()])


@given(st.lists(EVENT, min_size=1, max_size=5), st.lists(OUTCOME, min_size=1, max_size=5))
def test_a_row_comes_back(events: list, outcomes: list):
    text = write_events(events)
    assert text is not None
    assert read_events(text) == events
    assert read_outcomes(write_outcomes(outcomes), len(outcomes)) == tuple(outcomes)


@pytest.mark.parametrize("text", ["", "{}", '{"Heartbeat":{"now":0,"owner":5}}', '{"Done":{}}', "cos\nsystem\n(S'ls'"])
def test_what_is_no_event_is_refused(text: str):
    with pytest.raises(Undecodable):
        read_events(text)


def test_an_answer_to_another_number_of_events_is_refused():
    with pytest.raises(LoraFsmError) as caught:
        read_outcomes(write_outcomes([Done()]), 2)
    assert caught.value.code == "WRONG_ANSWER"


async def test_the_journals_text_goes_both_ways_and_a_malformed_event_as_an_object(tmp_path: Path):
    actor = local_actor(tmp_path)
    asked: list[str] = []

    class Calls(LocalCalls):
        async def call(self, method: str, *args: object, timeout_s: float) -> object:
            asked.append(method)
            return await super().call(method, *args, timeout_s=timeout_s)

    client = AsyncClient(Calls(actor), "local", coalesce=False)
    assert all(outcome.ok for outcome in await client.apply_all(life()[:3]))
    refused, done = await client.apply_all([Heartbeat(owner=5), OwnerUp(owner="o2")])  # type: ignore[arg-type]
    assert (refused.code, done.ok) == (Code.BAD_INPUT, True)
    assert (await client.apply(Open(session=session(0), label="a\nb"))).code == Code.BAD_INPUT
    assert asked == ["apply_text", "apply_all", "apply_text"]
    await actor.stop()
