"""The configured length predictor, loaded lazily and again when its file changes; without one the engine serves on."""

from __future__ import annotations

import os
from collections.abc import Callable

from . import quantile_model
from .features import row_of
from .guard import log
from .wire import Request

#: a predictor changes far more rarely than the policy
RESTAT_SECONDS = 2.0


class Loaded:
    """`ask(request)` gives the quantiles, or None. `on_state(up, reason)` hears of each load; no reason: it worked."""

    def __init__(self, on_state: Callable[[bool, str], None]) -> None:
        self._on_state = on_state
        self._path = ""
        self._identity: object = None
        self._next = float("-inf")
        self._model: quantile_model.QuantileModel | None = None

    @property
    def up(self) -> bool:
        return self._model is not None

    def use(self, path: str, now: float) -> None:
        """Keep the file at `path` loaded; an empty path unloads."""
        if path == self._path and now < self._next:
            return
        self._next = now + RESTAT_SECONDS
        identity = _identity(path) if path else None
        if path == self._path and identity == self._identity:
            return
        self._path, self._identity = path, identity
        if not path:
            self._model = None
            self._on_state(False, "")
            return
        model, problem = quantile_model.load_or_problem(path)
        if problem is not None:
            kept = "; the one loaded before stays" if self._model is not None else ""
            log.warning("trimtab: predictor not taken%s: %s", kept, problem)
            self._on_state(self.up, problem.reason)
            return
        self._model = model
        self._on_state(True, "")

    def ask(self, request: Request) -> Prediction | None:
        if self._model is None:
            return None
        return Prediction(self._model.levels, self._model.quantiles(row_of(request)))


class Prediction:
    """Output tokens of one sequence at the model's quantile levels."""

    __slots__ = ("levels", "tokens")

    def __init__(self, levels: tuple[float, ...], tokens: tuple[float, ...]) -> None:
        self.levels, self.tokens = levels, tokens

    def at(self, level: float) -> float:
        return quantile_model.at_level(self.levels, self.tokens, level)

    def moments(self) -> tuple[float, float]:
        """(mean, variance)"""
        return quantile_model.moments(self.levels, self.tokens)


def _identity(path: str) -> object:
    try:
        stat = os.stat(path)  # noqa: PTH116
    except OSError as error:
        return error.errno
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
