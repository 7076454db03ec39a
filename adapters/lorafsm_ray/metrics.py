"""The numbers of `lorafsm status --registry` for Prometheus (extra `metrics`).

Everything is read from one `Live` at each scrape; nothing is counted here.  Labels name what the registry holds now,
versions only while they hold a slot, so their number stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lorafsm.errors import InvalidField
from lorafsm.status import Status
from lorafsm_ray.live import Live

_SINGLE: tuple[tuple[str, str, Callable[[Status], float]], ...] = (
    ("lorafsm_default_revision", "How often the default has moved.", lambda s: s.revision),
    ("lorafsm_capacity_slots", "Logical versions that may hold a slot.", lambda s: s.capacity),
    ("lorafsm_used_slots", "Logical versions that hold a slot.", lambda s: s.slots_used),
    ("lorafsm_live_owners", "Processes that hold sessions under a lease.", lambda s: s.live_owners),
    ("lorafsm_live_sessions", "Sessions of live owners that are not closed.", lambda s: s.live_sessions),
    ("lorafsm_attempt_unresolved", "1 while an attempt is open or not clean.", lambda s: s.attempt is not None),
    ("lorafsm_reserve_refused", "1 if a reserve of a new version would be refused.", lambda s: bool(s.next_reserve)),
)
_Labels = tuple[str, ...]


def families(live: Live) -> Iterator[Metric]:
    """All metric families of one moment."""
    s = live.status
    for name, text, of in _SINGLE:
        yield GaugeMetricFamily(name, text, value=of(s))
    yield GaugeMetricFamily("lorafsm_journal_rows", "Rows of the journal.", value=live.rows)
    yield from _of_versions(s)
    yield from _of_engines(s)
    yield _gauge(
        "lorafsm_reclaim_age_seconds",
        "How long an open reclaim has waited.",
        ("reclaim", "version"),
        [((c.reclaim_id, str(c.key)), c.age / 1000) for c in s.reclaims],
    )
    events = CounterMetricFamily(
        "lorafsm_events", "Events since the actor's process began, by outcome.", labels=("event", "code")
    )
    for event, code, count in live.counts:
        events.add_metric((event, code), count)
    yield events
    yield CounterMetricFamily("lorafsm_hook_errors", "Calls of on_event that raised.", value=live.hook_errors)


def _of_versions(s: Status) -> Iterator[Metric]:
    held = [v for v in s.versions if v.holds_slot]
    yield _gauge(
        "lorafsm_version_state",
        "1 for the state of each version that holds a slot.",
        ("version", "state"),
        [((str(v.key), str(v.state)), 1) for v in held],
    )
    for name, text, of in (
        ("lorafsm_version_session_refs", "Sessions that hold the version.", lambda v: v.session_refs),
        ("lorafsm_version_oldest_seconds", "How long its oldest session has held it.", lambda v: v.oldest_age / 1000),
        ("lorafsm_version_routable_engines", "Engines that may serve the version.", lambda v: len(v.routable)),
    ):
        yield _gauge(name, text, ("version",), [((str(v.key),), of(v)) for v in held])


def _of_engines(s: Status) -> Iterator[Metric]:
    yield _gauge(
        "lorafsm_engine_state",
        "1 for the state of each member of the fleet.",
        ("engine", "state"),
        [((e.engine, str(e.state)), 1) for e in s.engines],
    )
    for name, text, of in (
        ("lorafsm_engine_incarnation", "Which incarnation is the live one.", lambda e: e.incarnation),
        ("lorafsm_engine_residents", "Versions that the engine proved to hold.", lambda e: len(e.residents)),
        ("lorafsm_engine_strays", "Managed adapters that should not be there.", lambda e: len(e.strays)),
    ):
        yield _gauge(name, text, ("engine",), [((e.engine,), of(e)) for e in s.engines])


def _gauge(name: str, text: str, labels: _Labels, values: list[tuple[_Labels, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label, value in values:
        family.add_metric(label, value)
    return family


class LiveCollector(Collector):
    """What `prometheus_client` scrapes; `live` is asked each time.  Use it to serve the numbers your own way."""

    def __init__(self, live: Callable[[], Live]) -> None:
        self._live = live

    def collect(self) -> Iterator[Metric]:
        """All families of this moment."""
        yield from families(self._live())

    def describe(self) -> Iterator[Metric]:
        """Nothing: the families are known when asked."""
        yield from ()


class MetricsServer:
    """An HTTP server for Prometheus in a thread of this process; raises InvalidField when it cannot listen."""

    def __init__(self, live: Callable[[], Live], host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(LiveCollector(live))
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise InvalidField("metrics_port", f"cannot listen on {host}:{port}: {error}") from error
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop listening; may be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
