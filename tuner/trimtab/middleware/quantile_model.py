"""The exported length predictor inside the engine: reads the file, gives quantiles of a request's output length.

Standard library only (Python >= 3.9), relative imports only, no torch, no pickle: a model file is data and never runs.
A file that is not whole and sane is refused as a `PredictorError`; `load_or_problem` never raises.

File, version 1: one JSON object, UTF-8, at most 1 MiB.
  format    "trimtab-length-predictor"          version   1
  features  {"dense": [names of DENSE or "route=NAME"], "mean": [...], "scale": [...], "buckets": B, "max_hashes": H}
  levels    quantile levels, ascending in (0, 1)
  offsets   one per level, added to the predicted log length (conformal calibration on held-out requests)
  tensors   name -> {"shape": [rows, columns], "f32": base64 of little-endian float32}: "embedding" (B x E) and, for
            layer i = 0.., "weight.i" (out x in), "bias.i" (out x 1); first in: len(dense) + E, last out: levels
  max_tokens  predictions are cut to 1..max_tokens
  summary   figures of the training for people (any object)
  sha256    of the canonical JSON of everything else (`canonical`)
Network: dense features standardised, mean of the embeddings of the hashes, ReLU layers. Output 0 is the log of the
lowest quantile, each further one the softplus of what is added to get the next: quantiles cannot cross.

A request (`Row`) is a mapping that holds what is known before the engine sees it, nothing else; a missing or odd value
counts as unknown:
  route (str: completions | chat | responses | messages), prompt_tokens (int, where known exactly), prompt_chars (int),
  messages (int), max_tokens (int, as the client asked), min_tokens (int), temperature, top_p (float), n (int),
  stream (bool), stop (int: stop sequences), tools (int), structured (bool: grammar or JSON asked for),
  thinking_tokens (int: thinking budget asked for), hashes (list of int >= 0: hashed n-grams of the prompt).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from operator import mul
from pathlib import Path
from typing import Any, Callable

FORMAT = "trimtab-length-predictor"
VERSION = 1
MAX_FILE_BYTES = 1 << 20
#: bounds of a file's arithmetic, so that no file makes a request wait: about 10 x what `trimtab predict train` exports
MAX_PARAMETERS = 200_000
MAX_HIDDEN = 256
_MAX_LAYERS = 4
#: sizes within which no layer overflows; a smaller scale means a feature that did not vary in training and is left out
_MAX_WEIGHT, _LEAST_SCALE = 1e6, 1e-6
#: exp of more is no token count
_MAX_LOG = 20.0

Row = Mapping[str, Any]
Matrix = list[list[float]]
Layer = tuple[Matrix, list[float]]


class PredictorError(ValueError):
    """The file cannot be used.

    `reason`, a label: unreadable, too-large, not-json, wrong-format, wrong-version, hash, content.
    """

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason


def _number(row: Row, name: str) -> float | None:
    """A finite number, or None. Booleans count as 0 and 1."""
    value = row.get(name)
    if isinstance(value, (int, float)) and abs(value) < 1e15:  # not NaN either: it compares false
        return float(value)
    return None


def _plain(name: str, default: float = 0.0) -> Callable[[Row], float]:
    def read(row: Row) -> float:
        value = _number(row, name)
        return default if value is None else max(-1e6, min(1e6, value))

    return read


def _log(name: str) -> Callable[[Row], float]:
    return lambda row: math.log1p(max(0.0, _number(row, name) or 0.0))


def _known(name: str) -> Callable[[Row], float]:
    return lambda row: 0.0 if _number(row, name) is None else 1.0


#: feature name -> its value from a row. Names are part of the file format: give a changed feature a new name.
DENSE: Mapping[str, Callable[[Row], float]] = {
    "log_prompt_tokens": _log("prompt_tokens"),
    "has_prompt_tokens": _known("prompt_tokens"),
    "log_prompt_chars": _log("prompt_chars"),
    "log_messages": _log("messages"),
    "log_max_tokens": _log("max_tokens"),
    "has_max_tokens": _known("max_tokens"),
    "log_min_tokens": _log("min_tokens"),
    "temperature": _plain("temperature", 1.0),
    "top_p": _plain("top_p", 1.0),
    "log_n": _log("n"),
    "stream": _plain("stream"),
    "log_stop": _log("stop"),
    "log_tools": _log("tools"),
    "structured": _plain("structured"),
    "log_thinking_tokens": _log("thinking_tokens"),
    "has_thinking_tokens": _known("thinking_tokens"),
}
ROUTES = ("completions", "chat", "responses", "messages")
#: what `trimtab predict train` uses
DENSE_NAMES = tuple(DENSE) + tuple("route=" + name for name in ROUTES)


def dense_reader(name: str) -> Callable[[Row], float]:
    """The function behind a dense feature's name; PredictorError for a name this version does not know."""
    if name.startswith("route="):
        route = name[len("route=") :]
        return lambda row: 1.0 if row.get("route") == route else 0.0
    if name not in DENSE:
        raise PredictorError("content", f"features.dense: {name!r} is not known; the file is from a newer version")
    return DENSE[name]


def buckets_of(row: Row, buckets: int, max_hashes: int) -> list[int]:
    """Embedding rows of a request: its first `max_hashes` hashes modulo `buckets`; odd values are left out."""
    hashes = row.get("hashes")
    if not isinstance(hashes, (list, tuple)) or buckets < 1:
        return []
    return [h % buckets for h in hashes[:max_hashes] if type(h) is int]


def canonical(body: Mapping[str, Any]) -> bytes:
    """The bytes that `sha256` covers: everything but itself, keys sorted, no spaces."""
    rest = {key: value for key, value in body.items() if key != "sha256"}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


class QuantileModel:
    """A loaded predictor. Read-only after construction, so threads may share it."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        """From a parsed file; PredictorError names the field that is wrong."""
        features = _field(body, "features", dict)
        names = _field(features, "dense", list, "features.")
        self._readers = [dense_reader(str(name)) for name in names]
        self._mean = _floats(features, "mean", len(names), "features.")
        self._scale = [
            1.0 / s if s > _LEAST_SCALE else 0.0 for s in _floats(features, "scale", len(names), "features.")
        ]
        self._buckets = _whole(features, "buckets", 1, MAX_PARAMETERS, "features.")
        self._max_hashes = _whole(features, "max_hashes", 0, 4096, "features.")
        levels = _field(body, "levels", list)
        self.levels = tuple(_floats(body, "levels", len(levels)))
        if not levels or any(not 0 < q < 1 for q in levels) or list(levels) != sorted(set(levels)):
            raise PredictorError("content", "levels: must ascend within 0 and 1")
        self._offsets = _floats(body, "offsets", len(levels))
        self.max_tokens = _whole(body, "max_tokens", 1, 1 << 31)
        self.summary: Mapping[str, Any] = _field(body, "summary", dict)
        self.sha256 = str(body.get("sha256"))
        self._embedding, self._layers = self._network(_field(body, "tensors", dict), len(names))

    def _network(self, tensors: Mapping[str, Any], dense: int) -> tuple[Matrix, list[Layer]]:
        embedding = _matrix(tensors, "embedding")
        if len(embedding) != self._buckets:
            raise PredictorError("content", f"tensors.embedding: {len(embedding)} rows, not {self._buckets}")
        width, layers = dense + len(embedding[0]), list[Layer]()
        while f"weight.{len(layers)}" in tensors:
            number = len(layers)
            weight = _matrix(tensors, f"weight.{number}")
            bias = [row[0] for row in _matrix(tensors, f"bias.{number}")]
            if len(weight[0]) != width or len(bias) != len(weight) or len(weight) > MAX_HIDDEN:
                raise PredictorError("content", f"tensors.weight.{number}: shape does not fit its neighbours")
            layers.append((weight, bias))
            width = len(weight)
        if not 1 <= len(layers) <= _MAX_LAYERS or width != len(self.levels):
            raise PredictorError("content", f"tensors: the last layer has not the {len(self.levels)} levels as output")
        return embedding, layers

    def quantiles(self, row: Row) -> tuple[float, ...]:
        """Output tokens at each of `levels`, ascending, within 1..max_tokens. About 0.1 ms of one core."""
        x = [(read(row) - m) * s for read, m, s in zip(self._readers, self._mean, self._scale)]
        found = buckets_of(row, self._buckets, self._max_hashes)
        if found:
            rows = [self._embedding[b] for b in found]
            x += [sum(column) / len(rows) for column in zip(*rows)]
        else:
            x += [0.0] * len(self._embedding[0])
        last = len(self._layers) - 1
        for number, (weight, bias) in enumerate(self._layers):
            x = [b + sum(map(mul, w, x)) for w, b in zip(weight, bias)]
            if number < last:
                x = [v if v > 0.0 else 0.0 for v in x]
        return self._tokens(x)

    def _tokens(self, outputs: Sequence[float]) -> tuple[float, ...]:
        level, highest, out = 0.0, -math.inf, []
        for number, (value, offset) in enumerate(zip(outputs, self._offsets)):
            level = value if number == 0 else level + _softplus(value)
            highest = max(highest, level + offset)
            tokens = math.exp(max(0.0, min(_MAX_LOG, highest)))
            out.append(min(tokens, float(self.max_tokens)))
        return tuple(out)


def _softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def at_level(levels: Sequence[float], tokens: Sequence[float], level: float) -> float:
    """Tokens at any level from those of a prediction: log-linear between two levels, held beyond the ends.

    Below the lowest and above the highest level nothing was learned, so nothing is extrapolated.
    """
    if level <= levels[0]:
        return tokens[0]
    for low, high, a, b in zip(levels, levels[1:], tokens, tokens[1:]):
        if level <= high:
            share = (level - low) / (high - low)
            return math.exp(math.log(a) + share * (math.log(b) - math.log(a)))
    return tokens[-1]


def moments(levels: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    """(mean, variance) of a predicted length, for sums over running requests: sum of means + z sqrt(sum of variances).

    The quantile function is taken as linear in the level: from 0 tokens at level 0 through the given points, held
    beyond the last. The tail above the last level is left out: give the sum a margin where the last level is low.
    """
    first = second = 0.0
    low, a = 0.0, 0.0
    for high, b in [*zip(levels, tokens), (1.0, tokens[-1])]:
        weight = high - low
        first += weight * (a + b) / 2
        second += weight * (a * a + a * b + b * b) / 3
        low, a = high, b
    return first, max(0.0, second - first * first)


# --- the file ---------------------------------------------------------------------------------------------------------
def load(path: str) -> QuantileModel:
    """Read and check a file. PredictorError with what is wrong; nothing else escapes for any content of the file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise PredictorError("unreadable", f"{path}: cannot be read ({error})") from error
    try:
        return parse(data)
    except PredictorError as error:
        raise PredictorError(error.reason, f"{path}: {error}") from error


def load_or_problem(path: str) -> tuple[QuantileModel | None, PredictorError | None]:
    """(model, None), or (None, why): for the engine, which serves on without a predictor."""
    try:
        return load(path), None
    except PredictorError as error:
        return None, error


def parse(data: bytes) -> QuantileModel:
    """From a file's bytes; PredictorError."""
    if len(data) > MAX_FILE_BYTES:
        raise PredictorError("too-large", f"more than {MAX_FILE_BYTES} bytes")
    try:
        body = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # half-written, binary, or nested without end
        raise PredictorError("not-json", f"not JSON ({error})") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise PredictorError("wrong-format", f"no {FORMAT} file")
    if body.get("version") != VERSION:
        raise PredictorError("wrong-version", f"version {body.get('version')!r}; this engine reads version {VERSION}")
    try:
        digest = hashlib.sha256(canonical(body)).hexdigest()
    except (ValueError, RecursionError) as error:  # NaN and Infinity are no JSON
        raise PredictorError("content", f"holds a value that is no JSON ({error})") from error
    if body.get("sha256") != digest:
        raise PredictorError("hash", "sha256 does not match: the file was changed or cut")
    return QuantileModel(body)


def _field(body: Mapping[str, Any], name: str, kind: type, prefix: str = "") -> Any:
    value = body.get(name)
    if not isinstance(value, kind):
        raise PredictorError("content", f"{prefix}{name}: {type(value).__name__} where {kind.__name__} is needed")
    return value


def _whole(body: Mapping[str, Any], name: str, least: int, most: int, prefix: str = "") -> int:
    value = body.get(name)
    if type(value) is not int or not least <= value <= most:
        raise PredictorError("content", f"{prefix}{name}: must be a whole number from {least} to {most}")
    return value


def _floats(body: Mapping[str, Any], name: str, count: int, prefix: str = "") -> list[float]:
    values = _field(body, name, list, prefix)
    if len(values) != count or any(type(v) not in (int, float) or not abs(v) <= _MAX_WEIGHT for v in values):
        raise PredictorError("content", f"{prefix}{name}: {count} finite numbers are needed")
    return [float(v) for v in values]


def _matrix(tensors: Mapping[str, Any], name: str) -> Matrix:
    tensor = _field(tensors, name, dict, "tensors.")
    shape = tensor.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or any(type(n) is not int or n < 1 for n in shape):
        raise PredictorError("content", f"tensors.{name}.shape: two whole numbers above 0 are needed")
    rows, columns = shape
    if rows * columns > MAX_PARAMETERS:
        raise PredictorError("content", f"tensors.{name}: more than {MAX_PARAMETERS} numbers")
    try:
        raw = base64.b64decode(_field(tensor, "f32", str, f"tensors.{name}."), validate=True)
    except ValueError as error:
        raise PredictorError("content", f"tensors.{name}.f32: not base64") from error
    if len(raw) != 4 * rows * columns:
        raise PredictorError("content", f"tensors.{name}.f32: {len(raw)} bytes for {rows} x {columns} numbers")
    values = array("f", raw)
    if sys.byteorder == "big":
        values.byteswap()
    if not all(abs(v) <= _MAX_WEIGHT for v in values):  # NaN compares false
        raise PredictorError("content", f"tensors.{name}: holds a number that is not finite or above {_MAX_WEIGHT:g}")
    return [list(values[start : start + columns]) for start in range(0, rows * columns, columns)]
