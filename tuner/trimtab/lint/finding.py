"""`Rule`, what a rule returns (`Hit`) and what a report shows (`Finding`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from trimtab.engine.model_config import ModelConfig

if TYPE_CHECKING:
    from trimtab.lint.target import Target

#: from a document's root to one of its values: keys and indexes
Path = tuple[str | int, ...]


class Severity(StrEnum):
    """error: the engine does not start, or does not do what the manifest says, or requests are lost at every rollout.
    warning: it goes wrong sooner or later. info: worth knowing before a tuner is let in."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


#: most severe first
ORDER: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}

#: Kubernetes calls a rollout stuck after this time (default of progressDeadlineSeconds); big models load for longer
SLOW_START_SECONDS: Final = 600


@dataclass(frozen=True)
class Options:
    """What a manifest does not say. slow_start_seconds: how long an engine may take until it serves. engine_version:
    vLLM's, where the image's tag does not tell. kv_cache_size_tokens: as vLLM logs it at start. model_config: the
    model's config.json, from which the cache's size follows."""

    slow_start_seconds: int = SLOW_START_SECONDS
    kv_cache_size_tokens: int | None = None
    engine_version: str | None = None
    model_config: ModelConfig | None = None


@dataclass(frozen=True)
class Hit:
    """What one rule found: `message` says what and what follows, `path` where. offset: characters into the text at
    `path`, for a script. fix and severity replace the rule's own; a rule's severity is its highest."""

    message: str
    path: Path
    offset: int = 0
    fix: str = ""
    severity: Severity | None = None


@dataclass(frozen=True)
class Rule:
    """`id` and `name` are stable. `trap` is one line on what goes wrong, `fix` one line on what to do."""

    id: str
    name: str
    severity: Severity
    trap: str
    fix: str
    check: Callable[[Target, Options], Iterable[Hit]]


@dataclass(frozen=True)
class Finding:
    """A hit with its rule and its place. path: as kubectl writes it (`spec.replicas`); line and column from 1, None
    if unknown."""

    id: str
    name: str
    severity: Severity
    message: str
    fix: str
    path: str
    line: int | None = None
    column: int | None = None


def dotted(path: Path) -> str:
    """`spec.containers[0].args[3]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
