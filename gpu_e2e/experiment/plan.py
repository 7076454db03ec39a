"""The fixed plan of a run (RFC 7.2: "before the formal run, fix ..."), and the refusal to start when reality differs.

`read_plan` reads a TOML file; every field is required and every unknown key is refused, so that nothing is left to a
default that could change.  `check_before` compares packages, model, fixtures and memory with this machine,
`check_engine` what a running engine says of itself.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import attrs
from attrs import frozen

from lorafsm.errors import InvalidField, LoraFsmError

PLANS = Path(__file__).parents[1] / "plans"
"""The plans that come with the project: ``cpu.toml`` and ``cuda.toml``."""


class PlanMismatch(LoraFsmError):
    """The plan and reality differ in `field`; the run does not start."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__("PLAN_MISMATCH", message, field)

    def __reduce__(self) -> tuple[type[PlanMismatch], tuple[str, str]]:
        return type(self), (self.field or "", self.message)


@frozen
class Code:
    """Versions of the packages that compute: distribution name -> exact version."""

    packages: Mapping[str, str]


@frozen
class Model:
    """The base model.  `fingerprint` is the SHA-256 over its folder (`guard.fingerprint`); `config` are entries of its
    ``config.json`` that must be equal.  `source` says where the revision comes from."""

    name: str
    source: str
    revision: str
    fingerprint: str
    vocab_size: int
    config: Mapping[str, Any]


@frozen
class Fixtures:
    """The LoRA versions: rank, scaling numerator, standard deviation of both factors, dtype, digest by letter."""

    rank: int
    scale: float
    dtype: str
    digests: Mapping[str, str]


@frozen
class Engine:
    """How every engine is started, and what it must then say of itself (`settings`, from ``/server_info``)."""

    count: int
    device: str
    dtype: str
    flags: tuple[str, ...]
    memory_gib: float
    settings: Mapping[str, Any]


@frozen
class SamplingPlan:
    """Sampling of every generation; `temperature` 0 is greedy."""

    temperature: float
    top_p: float
    top_k: int


@frozen
class SessionPlan:
    """One session of 7.2: under which version, and its fixed token ids: `opening`, then each turn's answer and tool.

    Turn k is scored after ``opening + turns[0] + ... + turns[k - 1]``: its own full prefix.
    """

    name: str
    version: str
    opening: tuple[int, ...]
    turns: tuple[tuple[int, ...], ...]

    def prefixes(self) -> tuple[tuple[int, ...], ...]:
        """The full prefix of every turn, the first one the opening alone."""
        grown = [self.opening]
        for turn in self.turns:
            grown.append((*grown[-1], *turn))
        return tuple(grown)


@frozen
class Numeric:
    """7.2: `epsilon` in nats; A and B must differ by `separation` epsilons at a position that is used.

    A position is a prefix and one of `scored_tokens`; each prefix needs `least_positions` of them.  A baseline is
    scored `repeats` times before it is trusted; with `witness` transformers must agree with it (float32 only).
    """

    epsilon: float
    separation: float
    repeats: int
    least_positions: int
    witness: bool
    scored_tokens: tuple[int, ...]
    sessions: tuple[SessionPlan, ...]


@frozen
class Kv:
    """KV isolation: one prefix a round of each direction on each engine; `least_cached` tokens count as a hit."""

    prefixes: tuple[tuple[int, ...], ...]
    least_cached: int
    repeats: int


@frozen
class Load:
    """7.3: sessions arrive at `arrival_per_s`, take `turns` tool turns of `new_tokens` tokens."""

    sessions: int
    requests: int
    arrival_per_s: float
    turns: int
    prompt_tokens: int
    tool_tokens: int
    new_tokens: int
    publications: int
    windows: int


@frozen
class Transport:
    """Backend of torch.distributed, the cap of a bucket in bytes, and the trainer's ranks."""

    backend: str
    bucket_cap: int
    source_ranks: int


@frozen
class Deadlines:
    """How long each phase may take, in seconds."""

    start_s: float
    begin_s: float
    bucket_s: float
    end_s: float
    publication_s: float
    reclaim_s: float
    request_s: float


@frozen
class Limits:
    """Largest interval, in ms, in which an engine with work makes no progress (RFC 7.3).

    `gap_ratio_cores`: with fewer cores, engines, driver and registry wait for each other, and `gap_p99_ratio` says how
    long; it is then measured and not judged.
    """

    no_progress_ms: float
    gap_ratio_cores: int


@frozen
class Plan:
    """Everything that is fixed before a run; `sha256` is of the file's bytes."""

    profile: Literal["cpu", "cuda"]
    code: Code
    model: Model
    fixtures: Fixtures
    engine: Engine
    sampling: SamplingPlan
    numeric: Numeric
    kv: Kv
    load: Load
    transport: Transport
    deadlines: Deadlines
    limits: Limits
    sha256: str = ""

    @property
    def engine_names(self) -> tuple[str, ...]:
        """E0, E1, ..."""
        return tuple(f"E{index}" for index in range(self.engine.count))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON, for the report."""
        return cast(dict[str, Any], _plain(attrs.asdict(self, recurse=True)))


def read_plan(path: Path) -> Plan:
    """The plan of a TOML file; InvalidField names the first field that is missing, unknown or of the wrong type."""
    try:
        raw = path.read_bytes()
        data = tomllib.loads(raw.decode())
    except (OSError, ValueError) as error:
        raise InvalidField("plan", f"{path} cannot be read: {error}") from error
    plan: Plan = _record(Plan, {**data, "sha256": hashlib.sha256(raw).hexdigest()}, "")
    _consistent(plan)
    return plan


def with_publications(plan: Plan, publications: int) -> Plan:
    """The plan with so many publications in a row, each with a window of its own: a soak, or a shorter look.

    `sha256` gets a + behind it: it is not the file's plan any more.  InvalidField below 1.
    """
    if publications < 1:
        raise InvalidField("load.publications", "must be 1 or more")
    load = attrs.evolve(plan.load, publications=publications, windows=publications)
    return attrs.evolve(plan, load=load, sha256=f"{plan.sha256}+")


def _consistent(plan: Plan) -> None:
    n = plan.numeric
    if plan.engine.count < 2:
        raise InvalidField("engine.count", "must be 2 or more: with one engine nothing can be half published")
    if not n.epsilon > 0 or n.separation < 10:
        raise InvalidField("numeric.separation", "epsilon must be above 0 and separation at least 10 (RFC 7.2)")
    if n.repeats < 2 or plan.kv.repeats < 1:
        raise InvalidField("numeric.repeats", "2 or more show that a baseline is stable; kv.repeats is 1 or more")
    wanted = {"S_old": "A", "S_mid": "A", "S_new": "B"}
    if {session.name: session.version for session in n.sessions} != wanted:
        raise InvalidField("numeric.sessions", "are S_old and S_mid under A and S_new under B (RFC 3.4)")
    if any(len(session.turns) < 5 for session in n.sessions):
        raise InvalidField("numeric.sessions.turns", "five or more: before, during and after B, a retry, a resume")
    if len(plan.kv.prefixes) < plan.engine.count:
        raise InvalidField("kv.prefixes", "one for each direction that an engine shows: as many as engines")
    if not {"A", "B", "C", "D"} <= set(plan.fixtures.digests):
        raise InvalidField("fixtures.digests", "name A, B, C and D")
    _vocabulary(plan)


def _vocabulary(plan: Plan) -> None:
    ids = {"numeric.scored_tokens": plan.numeric.scored_tokens}
    ids |= {f"kv.prefixes[{i}]": prefix for i, prefix in enumerate(plan.kv.prefixes)}
    ids |= {f"numeric.sessions.{s.name}": s.prefixes()[-1] for s in plan.numeric.sessions}
    for name, tokens in ids.items():
        if not tokens or any(not 0 <= token < plan.model.vocab_size for token in tokens):
            raise InvalidField(name, f"needs token ids in [0, {plan.model.vocab_size}), at least one")


@frozen
class Reality:
    """What this machine has of what a plan fixes, before any engine is started; memory in GiB for one engine."""

    packages: Mapping[str, str]
    config: Mapping[str, Any]
    fingerprint: str
    digests: Mapping[str, str]
    devices: int
    memory_gib: float


def check_before(plan: Plan, found: Reality) -> None:
    """Compare a plan with this machine; PlanMismatch names the first field that differs and what was found."""
    _same("code.packages", plan.code.packages, found.packages)
    _same("model.config", plan.model.config, found.config)
    _same("model", {"fingerprint": plan.model.fingerprint}, {"fingerprint": found.fingerprint})
    _same("fixtures.digests", plan.fixtures.digests, found.digests)
    if plan.engine.device != "cpu" and found.devices < plan.engine.count:
        raise PlanMismatch("engine.count", f"{found.devices} devices are here, {plan.engine.count} are needed")
    needed = plan.engine.memory_gib * (plan.engine.count if plan.engine.device == "cpu" else 1)
    if found.memory_gib < needed:
        raise PlanMismatch("engine.memory_gib", f"{found.memory_gib:.1f} GiB are free, {needed:.1f} are needed")


def _same(where: str, planned: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name, value in planned.items():
        here = found.get(name)
        if here != value:
            raise PlanMismatch(f"{where}.{name}", f"here it is {here!r}, in the plan {value!r}")


def check_engine(plan: Plan, name: str, said: Mapping[str, Any]) -> None:
    """Compare what a running engine says of itself with the plan; PlanMismatch names the setting."""
    expected = {**plan.engine.settings, "dtype": plan.engine.dtype, "version": plan.code.packages["sglang"]}
    for setting, value in expected.items():
        if setting not in said:
            raise PlanMismatch(f"engine.settings.{setting}", f"{name} does not say it; the plan has {value!r}")
        if said[setting] != value:
            raise PlanMismatch(f"engine.settings.{setting}", f"{name} has {said[setting]!r}, the plan {value!r}")


def _record(kind: Any, data: object, where: str) -> Any:
    """An attrs record from a table; every field is required, every other key refused."""
    if not isinstance(data, Mapping):
        raise InvalidField(where, f"must be a table, not {type(data).__name__}")
    hints = get_type_hints(kind)
    if odd := sorted(set(data) - set(hints)):
        raise InvalidField(_path(where, odd[0]), "is not a field of a plan; take it out")
    for name in hints:
        if name not in data:
            raise InvalidField(_path(where, name), "is missing; a plan fixes everything")
    return kind(**{name: _value(hint, data[name], _path(where, name)) for name, hint in hints.items()})


def _value(hint: Any, data: object, where: str) -> Any:
    origin, of = get_origin(hint), get_args(hint)
    if attrs.has(hint):
        return _record(hint, data, where)
    if origin is Literal:
        if data not in of:
            raise InvalidField(where, f"must be one of {', '.join(map(str, of))}, not {data!r}")
        return data
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise InvalidField(where, "must be a list")
        return tuple(_value(of[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise InvalidField(where, "must be a table")
        return MappingProxyType({key: _value(of[1], item, f"{where}.{key}") for key, item in data.items()})
    if hint is Any:
        return data
    if hint is float and type(data) is int:
        return float(data)
    if type(data) is not hint:
        raise InvalidField(where, f"must be {hint.__name__}, not {data!r:.60}")
    return data


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


__all__ = ["PLANS", "Plan", "PlanMismatch", "check_engine", "read_plan", "with_publications"]
