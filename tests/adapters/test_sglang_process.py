"""Starting and ending an engine's process, by fault injection: a small server stands in for SGLang."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from lorafsm_sglang import EngineProcess, EngineStartError, wait_all_ready
from lorafsm_sglang.cpu_profile import ENGINE_PATH, cpu_environment, cpu_flags

psutil = pytest.importorskip("psutil", reason="not installed: psutil (extra `sglang`)")

SERVER = r"""
import http.server, pathlib, subprocess, sys, time
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
mode = flags["--mode"]
if mode == "crash":
    print("Traceback: no such model", flush=True)
    sys.exit(3)
marker = pathlib.Path("port-was-taken")
if mode.startswith("port-taken-late") and not marker.exists():
    marker.touch()
    print("ERROR: [Errno 98] error while attempting to bind: address already in use", flush=True)
    print("INFO:     Waiting for application shutdown.", flush=True)
    time.sleep(600 if mode.endswith("hang") else 0)
    sys.exit(1)
if mode == "hang":
    time.sleep(600)
STUBBORN = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", STUBBORN])
if mode == "orphan":
    print("child", child.pid, flush=True)
    sys.exit(4)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
http.server.HTTPServer((flags["--host"], int(flags["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def engine(tmp_path):
    """Makes engines in a mode and ends them all."""
    (tmp_path / "stand_in_server.py").write_text(SERVER)
    made: list[EngineProcess] = []

    def make(mode: str, **options) -> EngineProcess:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        log = tmp_path / f"engine-{len(made)}.log"
        made.append(
            EngineProcess("e", ["--mode", mode], environment, log, module="stand_in_server", **options),
        )
        return made[-1]

    yield make
    for each in made:
        each.kill()


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_two_start_together_and_stop_with_their_children(engine):
    pair = [engine("serve"), engine("serve")]
    for each in pair:
        each.start()
    seen: list[tuple[str, float, str]] = []
    wait_all_ready(pair, 30, lambda *line: seen.append(line))
    assert [each.alive() for each in pair] == [True, True]
    assert len({each.port for each in pair}) == 2
    assert [line for _, _, line in seen].count("ready") == 2
    assert pair[0].memory_bytes() > 1_000_000
    with pytest.raises(RuntimeError, match="runs already"):
        pair[0].start()
    trees = [[each.pid, *(c.pid for c in psutil.Process(each.pid).children())] for each in pair]
    assert [len(tree) for tree in trees] == [2, 2]
    pair[0].stop(grace_s=0.2)
    assert [runs(pid) for pid in trees[0]] == [False, False]
    assert [runs(pid) for pid in trees[1]] == [True, True], "the other one is left alone"
    pair[0].stop()
    pair[1].kill()
    assert [runs(pid) for pid in trees[1]] == [False, False]


def test_a_crash_at_start_names_the_log_and_shows_its_end(engine):
    crashing = engine("crash")
    crashing.start()
    with pytest.raises(EngineStartError, match="exited with status 3") as caught:
        crashing.wait_ready(30)
    assert caught.value.log_path == crashing.log_path
    assert "no such model" in caught.value.tail
    assert str(crashing.log_path) in str(caught.value)
    assert "no such model" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert not crashing.alive()


def test_the_deadline_is_an_error_too(engine):
    hanging = engine("hang")
    hanging.start()
    with pytest.raises(EngineStartError, match="not ready after"):
        hanging.wait_ready(0.5)


def test_orphans_of_a_dead_server_end_as_well(engine):
    orphaning = engine("orphan")
    orphaning.start()
    with pytest.raises(EngineStartError, match="status 4") as caught:
        orphaning.wait_ready(30)
    assert not runs(int(caught.value.tail.split()[-1]))


def test_a_port_that_is_busy_at_start_is_replaced(engine):
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        busy = squatter.getsockname()[1]
        moved = engine("serve", port=busy)
        moved.start()
        moved.wait_ready(30)
        assert moved.port != busy
        assert httpx.get(f"{moved.url}/ready", trust_env=False).is_success


@pytest.mark.parametrize("mode", ["port-taken-late", "port-taken-late-hang"])
def test_a_port_that_is_lost_while_the_model_loads_is_replaced(engine, mode):
    late = engine(mode)
    first = late.port
    late.start()
    late.wait_ready(30)
    assert (late.port != first, late.restarts_for_port) == (True, 1)


@pytest.mark.parametrize("mode", ["port-taken-late", "port-taken-late-hang"])
def test_port_attempts_end(engine, mode):
    late = engine(mode, port_attempts=0)
    late.start()
    with pytest.raises(EngineStartError, match="already in use"):
        late.wait_ready(30)


def test_stand_ins_are_for_the_engine_only():
    environment = cpu_environment({"PYTHONPATH": "/mine", "HOME": "/h"})
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ENGINE_PATH), "/mine"]
    assert environment["SGLANG_USE_CPU_ENGINE"] == environment["HF_HUB_OFFLINE"] == "1"
    assert environment["HOME"] == "/h"
    assert str(ENGINE_PATH) not in sys.path
    assert not ENGINE_PATH.name.isidentifier(), "no import statement can reach into the folder"


STAND_IN_CHECK = """
import importlib.metadata
import triton, triton.language as tl
from triton.runtime.jit import JITFunction
from triton.language.extra import libdevice
import sgl_kernel, torchvision.transforms as transforms
@triton.autotune(configs=[triton.Config({"B": 1}, num_warps=2)], key=["n"])
@triton.jit
def kernel(n: tl.constexpr): ...
def fails(call, error):
    try: call()
    except error: return True
    raise SystemExit(f"{call} did not raise {error}")
fails(lambda: kernel[(1,)](3), NotImplementedError)
fails(lambda: kernel(3), NotImplementedError)
fails(lambda: sgl_kernel.anything_cpu(), NotImplementedError)
fails(lambda: sgl_kernel.fused_moe, AttributeError)
fails(lambda: transforms.Compose([]), NotImplementedError)
fails(lambda: transforms.functional_resize(1), NotImplementedError)
fails(lambda: triton.runtime.driver.active.get_current_target().backend, AttributeError)
assert (triton.cdiv(7, 2), triton.next_power_of_2(5), tl.constexpr(4).value) == (4, 8, 4)
assert issubclass(type("Mine", (JITFunction,), {}), JITFunction)
names = [point.name for point in importlib.metadata.entry_points(group="sglang.srt.plugins")]
assert names.count("lorafsm_cpu_profile") == 1, names
"""


def test_stand_ins_resolve_and_refuse_to_run(tmp_path):
    command = [sys.executable, "-c", STAND_IN_CHECK]
    done = subprocess.run(command, env=cpu_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout


OWNER = """
import os, subprocess, sys
child = [sys.executable, "-c", "import lorafsm_sglang_owner_watch as w, time; w.activate(); print(1); time.sleep(600)"]
environment = {**os.environ, "LORAFSM_ENGINE_OWNER": str(os.getpid())}
engine = subprocess.Popen(child, env=environment, start_new_session=True)
print(engine.pid, flush=True)
engine.wait()
"""


def test_an_engine_ends_when_its_owner_is_killed(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], env=cpu_environment(), stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    engine = int(owner.stdout.readline())
    try:
        assert runs(engine)
        owner.kill()
        owner.wait()
        deadline = time.monotonic() + 20
        while runs(engine) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not runs(engine)
    finally:
        owner.kill()
        owner.stdout.close()
        if runs(engine):
            os.kill(engine, signal.SIGKILL)


def test_import_needs_neither_torch_nor_sglang():
    """The package, its port and its log reader load with httpx and attrs; torch comes with the tiny model."""
    check = (
        "import sys, lorafsm_sglang, lorafsm_sglang.cpu_profile, lorafsm_sglang.tiny_model;"
        "heavy = {'torch', 'sglang', 'transformers', 'psutil', 'safetensors'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    adapters = Path(ENGINE_PATH).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(adapters)}
    done = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_flags_refuse_a_single_slot():
    assert cpu_flags("/m", lora_slots=4).count("4") == 2
    with pytest.raises(ValueError, match="lora_slots=1"):
        cpu_flags("/m", lora_slots=1)
