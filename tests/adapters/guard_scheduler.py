"""A stand-in for SGLang's scheduler process, over its real sockets and message types: requests end as they are told.

A real scheduler cannot be told to answer 503 twice.
"""

from __future__ import annotations

import asyncio
import dataclasses
from array import array
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from sglang.srt.managers import io_struct as io
from sglang.srt.server_args import PortArgs

STOP = {"type": "stop", "matched": None}


def end_with(code: int) -> dict[str, Any]:
    return {"type": "abort", "message": f"made up {code}", "status_code": code}


def message(kind: Any, **known: Any) -> Any:
    """A message of SGLang with these fields, None in the others that it needs."""
    if dataclasses.is_dataclass(kind):  # before 0.5.17
        needed = [
            f.name
            for f in dataclasses.fields(kind)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
    else:
        needed = [f.name for f in msgspec.structs.fields(kind) if f.required]
    return kind(**known, **{name: None for name in needed if name not in known})


class Scheduler:
    """Answers over the real sockets.  Requests run until `end` or `echo` is called, probes end at once."""

    def __init__(self, ports: PortArgs) -> None:
        context = zmq.asyncio.Context.instance()
        self._from, self._to = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        self._from.connect(ports.scheduler_input_ipc_name)
        self._to.connect(ports.tokenizer_ipc_name)
        self.adapters: dict[str, Any] = {}
        self.running: dict[str, Any] = {}
        self.received: list[str] = []
        self.loads = self.unloads = 0
        self.on_abort: str = "echo"  # echo: as from the waiting queue; end: as when it ran; drop: no answer
        self.load_delay_s = 0.0
        self.fault: str | None = None

    async def run(self) -> None:
        while True:
            receive = getattr(io, "async_sock_recv", None)  # before 0.5.17 messages were pickled
            await self._take(await (receive(self._from) if receive else self._from.recv_pyobj()))

    async def _take(self, item: Any) -> None:
        kind = type(item).__name__
        if kind == "LoadLoRAAdapterReqInput":
            await asyncio.sleep(self.load_delay_s)
            fault, self.fault = self.fault, None
            if fault is None:
                self.loads += 1
                self.adapters[item.lora_id] = item
            await self._lora(fault)
        elif kind == "UnloadLoRAAdapterReqInput":
            self.unloads += self.adapters.pop(item.lora_id, None) is not None
            await self._lora(None)
        elif kind == "TokenizedGenerateReqInput":
            self.received.append(item.rid)
            self.running[item.rid] = item
            if item.sampling_params.max_new_tokens == 1:
                await self.end(item.rid)
        elif kind == "BatchTokenizedGenerateReqInput":
            for each in item.batch:
                await self._take(each)
        elif kind == "AbortReq":
            for rid in [r for r in self.running if item.abort_all or r.startswith(item.rid)]:
                if self.on_abort == "echo":
                    await self.echo(rid)
                elif self.on_abort == "end":
                    await self.end(rid, {"type": "abort", "message": "aborted"})

    async def _lora(self, fault: str | None) -> None:
        listed = {each.lora_name: each.lora_path for each in self.adapters.values()}
        await self._send(io.LoRAUpdateOutput(success=fault is None, error_message=fault, loaded_adapters=listed))

    async def end(self, rid: str, reason: dict[str, Any] = STOP, *, keep: bool = False) -> None:
        """A last batch output of this request."""
        if not keep:
            self.running.pop(rid, None)
        counts = {"prompt_tokens": [1], "completion_tokens": [1], "reasoning_tokens": [0], "cached_tokens": [0]}
        output = {"output_strs": ["x"], "output_ids": [array("q", [5])], "retraction_counts": [0]}
        await self._send(message(io.BatchStrOutput, rids=[rid], finished_reasons=[reason], **counts, **output))

    async def echo(self, rid: str, reason: dict[str, Any] | None = None, *, keep: bool = False) -> None:
        """An abort echo, as for a request that never ran."""
        if not keep:
            self.running.pop(rid, None)
        await self._send(io.AbortReq(rid=rid, **({"finished_reason": reason} if reason else {})))

    async def _send(self, item: Any) -> None:
        send = getattr(io, "async_sock_send", None)
        await (send(self._to, item) if send else self._to.send_pyobj(item))
