"""How large the world of a search of the composed system is."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen
from immutables import Map

from lorafsm.records import Config

FAULTS: Mapping[str, str] = {
    "lose": "an order or an answer is lost",
    "duplicate": "an order or an answer arrives twice, the second time as late as it likes",
    "crash": "an engine's process ends and an empty successor starts",
    "dead": "an engine is declared dead, with evidence, before its successor reports",
    "publisher": "the publisher forgets its token; a successor takes over",
    "load": "a load or a probe fails",
    "bucket": "a posted receive fails without a cause that anybody knows",
    "slow": "an unload returns while the adapter is still observed",
    "count": "an engine's own count of requests is negative",
    "silence": "a driver or the reclaimer waits in vain for an answer",
    "lost": "an engine counts as silent",
    "deadline": "the publisher gives an attempt up",
    "owner": "the owner's process ends while its requests run on",
    "doubt": "the reply that admits a request is lost",
    "reserve": "a late copy of a reserve arrives",
    "bind": "a late copy of a session's first bind arrives",
    "inventory": "an engine's inventory is taken for no reason, and may arrive late",
    "rollback": "an operator rolls back",
    "retry": "the trainer reserves a failed version again",
    "corrupt": "the bytes that an engine is about to load are not the version's",
}
"""What a budget is for.  `inventory`, `rollback` and `retry` are no faults, and are bounded in the same way."""

_CONFIG = Config(base_fingerprint="base", repair_backoff=0)


@frozen(kw_only=True)
class SystemBox:
    """A small world.  `published` versions are there, proved on every engine, before the search starts."""

    engines: int = 1
    versions: int = 1
    sessions: int = 0
    requests: int = 1  # a session sends at most so many
    buckets: int = 0
    published: int = 0
    bound: int = 0  # sessions that are bound to the last of them
    budgets: Map[str, int] = field(default=Map(), converter=Map)
    config: Config = _CONFIG
    stored_late: bool = False  # a version's bytes are stored in an action of its own, not with the reserve
    opens_first: bool = False  # a session opens in an action of its own, before it binds
    foreign: bool = False  # messages of another deployment's epoch are on their way
    late_decisions: bool = False  # commit, abort, claims and repairs travel as messages, and may be lost or doubled

    def __attrs_post_init__(self) -> None:
        for kind in self.budgets:
            if kind not in FAULTS:
                raise ValueError(f"budgets: there is no fault {kind!r}; take one of {', '.join(FAULTS)}")

    def engine_ids(self) -> tuple[str, ...]:
        """e0, e1, ..."""
        return tuple(f"e{n}" for n in range(self.engines))
