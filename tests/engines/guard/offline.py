"""SGLang's `Engine` in this process, guarded, without HTTP: publishes, asks, removes; says what it saw as JSON lines.

Run as a program with a guarded environment: `offline.py MODEL STORE`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lorafsm.engine.answers import Answer, Pending
from lorafsm.identity import VersionKey, lora_name
from lorafsm.manifest import store_plan
from lorafsm.orders import Begin, End, Unload
from lorafsm_sglang.cpu_profile import cpu_flags
from lorafsm_sglang.tiny_model import lora_fixture
from lorafsm_torch import ArtifactStore, freeze_snapshot

PROMPT = list(range(40, 72))


def say(what: str, **seen: Any) -> None:
    print(json.dumps({"seen": what, **seen}), flush=True)


def main() -> None:
    """Everything in one engine's life."""
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.server_args import prepare_server_args

    args = prepare_server_args([*cpu_flags(sys.argv[1]), "--port", sys.argv[3], "--nccl-port", sys.argv[4]])
    engine = Engine(server_args=args)
    try:
        live(engine, ArtifactStore(Path(sys.argv[2])))
    finally:
        engine.shutdown()


def live(engine: Any, store: ArtifactStore) -> None:
    """One version from its begin to its unload."""
    guard = engine.tokenizer_manager.lora_guard
    agent = guard.executor.agent
    snapshot = freeze_snapshot(*reversed(lora_fixture("A")))
    key = VersionKey(agent.epoch, 1)
    name = lora_name(key, snapshot.digest)
    store.put(key, snapshot)
    what = {"epoch": agent.epoch, "engine": agent.engine, "incarnation": agent.incarnation}
    what |= {"key": key, "digest": snapshot.digest, "lora_name": name}

    def carry_out(order: Any) -> Answer:
        while True:  # also until the fingerprint of the base is known
            answer: Answer = engine.loop.run_until_complete(guard.carry_out(order, 60.0))
            if not isinstance(answer, Pending):
                return answer

    def ask(which: str | None) -> dict[str, Any]:
        try:
            answer = engine.generate(input_ids=PROMPT, sampling_params={"max_new_tokens": 4}, lora_path=which)
        except Exception as error:
            return {"refused": str(error)}
        return {"output_ids": list(answer["output_ids"])}

    say("before", **ask(name))
    for order in (Begin(**what, number=1, plan=store_plan()), End(**what, number=1)):
        say(type(order).__name__, answer=type(carry_out(order)).__name__)
    say("version", **ask(name))
    say("base", **ask(None))
    say("Unload", answer=type(carry_out(Unload(**what, reclaim_id="r-1"))).__name__)
    say("after", **ask(name))
    status = guard.status()
    say("status", adapters=status["adapters"], quarantine=status["quarantine"])


if __name__ == "__main__":
    main()
