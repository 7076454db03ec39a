"""An engine's process with all of the transport in it, and a stand-in for SGLang behind the agent.

It says on which port it listens, then takes requests, a JSON object a line; every connection has a thread of its own.
The core's engine agent decides.
"""

from __future__ import annotations

import json
import socketserver
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attrs import asdict

from lorafsm.engine import actions as act
from lorafsm.engine import agent_step, new_agent
from lorafsm.engine import answers as ans
from lorafsm.engine import orders as inp
from lorafsm.errors import LoraFsmError
from lorafsm.identity import VersionKey
from lorafsm.manifest import Plan
from lorafsm_torch import check_adapter_folder
from lorafsm_torch.announcement import Announcement
from lorafsm_torch.deadlines import Deadlines
from lorafsm_torch.receiver import Receiver
from tests.adapters.transport.stories import EPOCH

ORDERS = {inp.name_of(kind): kind for kind in inp.ORDERS}


class Engine:
    """The agent and what carries its actions out."""

    def __init__(self, name: str, incarnation: int, root: Path, deadline: float, hash_on_arrival: bool) -> None:
        self._agent = new_agent(name, incarnation, EPOCH, slots=4)
        self._news = threading.Condition()
        self._results = 0
        deadlines = Deadlines(join=deadline, receive=deadline)
        self._receiver = Receiver(
            root, name, incarnation, self._received, deadlines=deadlines, hash_on_arrival=hash_on_arrival
        )
        self.posted: list[tuple[int, int]] = []  # every collective that was joined
        self.loaded: dict[int, str] = {}  # digest of what the engine read, by number

    def carry_out(self, order: inp.EngineOrder, transfer: object, wait_s: float) -> ans.Answer:
        """Give an order, and again while it is Pending and time is left."""
        if isinstance(order, inp.Begin) and order.plan.buckets:
            try:
                self._receiver.prepare(Announcement.parse(transfer), order)
            except LoraFsmError as error:
                return ans.Refused(code=error.code, reason=error.message, field=error.field, number=order.number)
        with self._news:
            while True:
                before, answer = self._results, self._give(order)
                if not isinstance(answer, ans.Pending) or wait_s <= 0:
                    break
                if self._results == before and not self._news.wait(wait_s):
                    break
        if isinstance(order, inp.Begin) and isinstance(answer, ans.Refused):
            self._receiver.drop(order.number)
        return answer

    def prove(self, number: int, digest: str) -> None:
        """Compare everything with the digest, and load nothing."""
        self._receiver.sealed(number, digest)

    def close(self) -> None:
        self._receiver.close()

    def _give(self, item: inp.Input) -> ans.Answer:
        with self._news:
            done = agent_step(self._agent, item)
            self._agent = done.agent
            for action in done.actions:
                self._do(action)
            if isinstance(item, inp.RESULTS):
                self._results += 1
                self._news.notify_all()
            return done.answer

    def _do(self, action: act.Action) -> None:
        match action:
            case act.PostReceive():
                self.posted.append((action.number, action.bucket))
                self._receiver.post(action.number, action.bucket)
            case act.AbortCommunicator():
                self._receiver.abort(action.number)
            case act.DropStash():
                self._receiver.drop(action.number)
            case act.StartLoad():
                threading.Thread(target=self._load, args=(action,), daemon=True).start()
            case act.Probe():
                self._give(inp.ProbeFinished(number=action.number, ok=True))
            case act.Unregister():
                self._give(inp.Unregistered(lora_name=action.lora_name))
            case act.CountRequests():
                self._give(inp.Counted(lora_name=action.lora_name, count=0))
            case act.PhysicalUnload():
                self._give(inp.UnloadFinished(lora_name=action.lora_name, absent=True))
            case _:
                raise AssertionError(f"{action} has no place here")

    def _received(self, number: int, bucket: int, fault: str | None) -> None:
        self._give(inp.BucketFinished(number=number, bucket=bucket, ok=fault is None, detail=(fault or "")[:512]))

    def _load(self, action: act.StartLoad) -> None:
        fault = ""
        try:
            folder = self._receiver.sealed(action.number, action.digest)
            self.loaded[action.number] = check_adapter_folder(folder).digest
        except LoraFsmError as error:
            fault = str(error)
        self._give(inp.LoadFinished(number=action.number, ok=not fault, detail=fault[:512]))


class _Requests(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self) -> None:
        engine: Engine = self.server.engine  # type: ignore[attr-defined]
        for line in self.rfile:
            asked = json.loads(line)
            if asked["order"] == "look":
                reply: dict[str, Any] = {"posted": engine.posted, "loaded": engine.loaded, "memory": memory()}
            elif asked["order"] == "prove":
                engine.prove(**asked["fields"])
                reply = {}
            elif asked["order"] == "forget peak":
                Path("/proc/self/clear_refs").write_text("5")
                reply = memory()
            else:
                order = read_order(asked["order"], asked["fields"])
                answer = engine.carry_out(order, asked["transfer"], asked["wait_s"])
                reply = {"answer": type(answer).__name__, "fields": asdict(answer)}
            self.wfile.write(json.dumps(reply).encode() + b"\n")


def read_order(name: str, fields: dict[str, Any]) -> inp.EngineOrder:
    """An order from plain values."""
    if "key" in fields:
        fields["key"] = VersionKey(**fields["key"])
    if "plan" in fields:
        fields["plan"] = Plan(**fields["plan"])
    return ORDERS[name](**fields)


def read_answer(reply: dict[str, Any]) -> ans.Answer:
    """An answer from plain values."""
    fields = reply["fields"]
    if "key" in fields:
        fields["key"] = VersionKey(**fields["key"])
    return getattr(ans, reply["answer"])(**fields)


def memory() -> dict[str, int]:
    """Bytes of this process's memory now and at its highest (Linux)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM")}


def main(name: str, incarnation: int, root: Path, deadline: float, hash_on_arrival: bool, parent: Connection) -> None:
    """Serve until whoever started this process goes."""
    engine = Engine(name, incarnation, root, deadline, hash_on_arrival)
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Requests) as server:
        server.engine = engine  # type: ignore[attr-defined]
        parent.send(server.server_address[1])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        parent.poll(None)
        engine.close()
