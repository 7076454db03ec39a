"""With the switch off the hooks hand everything through, byte for byte."""

from __future__ import annotations

import asyncio

import pytest

from lorafsm.errors import InvalidField
from lorafsm_relax import versioned_payload
from tests.adapters.asyncio_services.stage import A, name_of, stage
from tests.adapters.asyncio_services.virtual_time import virtually
from tests.adapters.relax.stand_ins import AgenticSessionShard, Reply, SGLangBackendAdapter, Wire
from tests.adapters.relax.test_shard import DONE, lora_of


def test_off_requests_sessions_and_retries_are_as_they_were():
    async def story() -> None:
        ends = [Reply(500, None)] * 6 + [Reply(200, DONE)]
        wire = Wire(lambda payload: ends.pop(0))
        shard = AgenticSessionShard(SGLangBackendAdapter(wire), None)
        session = shard.start_session("s1")
        ir = shard.start_ir(session, "q1")
        await ir.runner_task
        assert ir.result == DONE
        sent = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8}, "rid": "q1:0"}
        assert wire.payloads == [sent] * 7, "Relax's own helper repeats, as before"
        await shard._finish_session(session)
        assert shard.samples == {}
        assert shard.steps == ["begin_close", "aborted", "runners done", "released", "record dropped"]
        await asyncio.sleep(0)

    virtually(story())


def test_off_a_payload_is_a_copy_of_what_it_was():
    payload = {"input_ids": [1], "sampling_params": {"n": 4}}
    assert versioned_payload(payload, None) == payload


@pytest.mark.parametrize(
    ("more", "field"),
    [({"sampling_params": {"n": 2}}, "sampling_params.n"), ({"lora_path": "latest"}, "lora_path")],
)
def test_on_a_payload_that_means_something_else_is_refused(more: dict, field: str):
    async def story() -> None:
        async with stage() as s:
            lora = lora_of(s)
            lora.open("s1")
            async with lora.attempt("s1", "q1:0") as attempt:
                with pytest.raises(InvalidField) as caught:
                    versioned_payload({"input_ids": [1], **more}, attempt)
                assert caught.value.field == field
                good = versioned_payload({"input_ids": [1], "rid": "x"}, attempt)
                assert good == {"input_ids": [1], "rid": "q1:0", "lora_path": name_of(A)}
            await lora.stop()

    virtually(story())
