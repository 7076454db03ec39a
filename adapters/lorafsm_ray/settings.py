"""What a registry actor is started with; every field is checked before an actor is made."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from attrs import Factory, frozen

from lorafsm.errors import InvalidField
from lorafsm.identity import fault_in_epoch
from lorafsm.records import Config
from lorafsm_journal import Level
from lorafsm_ray.live import Hook

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_HOOK = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


@frozen(kw_only=True)
class RegistrySettings:
    """One registry: its name in the cluster, what it keeps to, where its journal lies.  Raises InvalidField."""

    name: str
    epoch: str
    journal: str  # absolute path on a local disk of the node where the actor runs
    config: Config = Factory(Config)
    level: Level = Level.PROCESS
    epochs: str | None = None  # absolute path of the file of epochs used, where several journals share one
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None  # None: no metrics; 0: a free port
    on_event: str | None = None  # "module:function", called after every event (see EventHook)

    def __attrs_post_init__(self) -> None:
        require_name(self.name)
        if fault := fault_in_epoch(self.epoch):
            raise InvalidField("epoch", fault)
        if type(self.journal) is not str or not Path(self.journal).is_absolute():
            raise InvalidField("journal", "must be an absolute path; the actor's working folder is another")
        if self.epochs is not None and (type(self.epochs) is not str or not Path(self.epochs).is_absolute()):
            raise InvalidField("epochs", "must be an absolute path, or None for a file beside the journal")
        if type(self.config) is not Config:
            raise InvalidField("config", "must be a lorafsm.records.Config")
        if type(self.level) is not Level:
            raise InvalidField("level", f"must be one of {', '.join(Level)}")
        if type(self.metrics_host) is not str or not self.metrics_host:
            raise InvalidField("metrics_host", "must be an address to listen on, such as 127.0.0.1")
        port = self.metrics_port
        if port is not None and (type(port) is not int or not 0 <= port <= 65535):
            raise InvalidField("metrics_port", "must be 0 to 65535, or None for no metrics")
        if self.on_event is not None and (type(self.on_event) is not str or not _HOOK.match(self.on_event)):
            raise InvalidField("on_event", "must be written module:function")


def require_name(name: object) -> str:
    """The name of a registry; raises InvalidField."""
    if type(name) is not str or not _NAME.match(name):
        raise InvalidField("name", "must be 1 to 64 characters of A-Z a-z 0-9 _ . -, the first a letter or digit")
    return name


def load_hook(path: str | None) -> Hook | None:
    """The function that `on_event` names; InvalidField when there is none to call."""
    if path is None:
        return None
    module, _, function = path.partition(":")
    try:
        found: Any = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidField("on_event", f"{path} cannot be imported: {error}") from error
    if not callable(found):
        raise InvalidField("on_event", f"{path} cannot be called")
    hook: Hook = found
    return hook
