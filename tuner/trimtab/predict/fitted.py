"""A trained and calibrated predictor as arrays: many predictions at once, and the file for the engine out and in."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.errors import InputError
from trimtab.middleware.quantile_model import (
    DENSE_NAMES,
    FORMAT,
    MAX_FILE_BYTES,
    VERSION,
    PredictorError,
    canonical,
    load,
)
from trimtab.predict.censored import quantile
from trimtab.predict.samples import Floats, Samples

Tensors = Mapping[str, Floats]


@dataclass(frozen=True)
class Fitted:
    """tensors: as in the file format. mean, scale: of the dense features. offsets: log tokens to add, one per level.

    open_levels: those whose calibration the limits of the requests hide; they promise no coverage.
    """

    levels: tuple[float, ...]
    tensors: Tensors
    mean: Floats
    scale: Floats
    max_hashes: int
    offsets: tuple[float, ...]
    max_tokens: int
    open_levels: tuple[float, ...] = ()

    @property
    def buckets(self) -> int:
        return len(self.tensors["embedding"])

    def log_tokens(self, samples: Samples) -> Floats:
        """N x levels, before calibration: the engine's arithmetic by numpy."""
        inverse = np.divide(1.0, self.scale, out=np.zeros_like(self.scale), where=self.scale > 1e-6)
        counts = np.diff(samples.starts)
        sums = np.zeros((len(samples), self.tensors["embedding"].shape[1]))
        np.add.at(sums, np.repeat(np.arange(len(samples)), counts), self.tensors["embedding"][samples.hashes])
        x = np.concatenate([(samples.dense - self.mean) * inverse, sums / np.maximum(1, counts)[:, None]], axis=1)
        last = sum(name.startswith("weight.") for name in self.tensors) - 1
        for number in range(last + 1):
            x = x @ self.tensors[f"weight.{number}"].T + self.tensors[f"bias.{number}"][:, 0]
            if number < last:
                x = np.maximum(x, 0.0)
        return np.asarray(np.cumsum(np.concatenate([x[:, :1], np.logaddexp(0.0, x[:, 1:])], axis=1), axis=1))

    def tokens(self, samples: Samples) -> Floats:
        """N x levels: calibrated output tokens, ascending in a row."""
        logs = np.maximum.accumulate(self.log_tokens(samples) + np.array(self.offsets), axis=1)
        return np.asarray(np.minimum(np.exp(np.clip(logs, 0.0, 20.0)), self.max_tokens))


def calibrated(fitted: Fitted, held_out: Samples) -> Fitted:
    """With offsets under which each level covers its share of the held-out requests (split conformal, one-sided).

    Source: Romano, Patterson and Candes 2019, with the product-limit quantile where limits cut lengths (then the
    promise needs limits that do not depend on how long the answer would have been, given the features).
    """
    missed = np.log(held_out.output_tokens)[:, None] - fitted.log_tokens(held_out)
    offsets, hidden = [], []
    for number, level in enumerate(fitted.levels):
        found = quantile(missed[:, number], held_out.natural, level, conservative=True)
        if found is None:
            hidden.append(level)
            found = float(missed[:, number].max())
        offsets.append(found)
    return Fitted(
        fitted.levels, fitted.tensors, fitted.mean, fitted.scale, fitted.max_hashes, tuple(offsets), fitted.max_tokens,
        tuple(hidden),
    )  # fmt: skip


def to_bytes(fitted: Fitted, summary: Mapping[str, Any]) -> bytes:
    """The file. The same model and summary give the same bytes."""
    body: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "features": {
            "dense": list(DENSE_NAMES),
            "mean": [float(v) for v in fitted.mean],
            "scale": [float(v) for v in fitted.scale],
            "buckets": fitted.buckets,
            "max_hashes": fitted.max_hashes,
        },
        "levels": list(fitted.levels),
        "offsets": list(fitted.offsets),
        "max_tokens": fitted.max_tokens,
        "tensors": {name: _packed(values) for name, values in fitted.tensors.items()},
        "summary": {**summary, "open_levels": list(fitted.open_levels)},
    }
    body["sha256"] = hashlib.sha256(canonical(body)).hexdigest()
    data = json.dumps(body, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"
    if len(data) > MAX_FILE_BYTES:
        fix = "Use fewer buckets."
        raise InputError("--buckets", f"the file would have {len(data)} bytes, at most {MAX_FILE_BYTES}", fix)
    return data


def _packed(values: Floats) -> dict[str, Any]:
    return {"shape": list(values.shape), "f32": base64.b64encode(values.astype("<f4").tobytes()).decode()}


def write(path: Path, data: bytes) -> None:
    """Whole or not at all: an engine may read it at any moment. InputError where it cannot be written."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        fix = "Name a file in a folder you can write to."
        raise InputError("--output", f"{path} cannot be written ({error.strerror})", fix) from error


def read(path: Path) -> tuple[Fitted, Mapping[str, Any]]:
    """(model, summary) of a file. InputError for one that the engine would refuse."""
    try:
        checked = load(str(path))
        body = json.loads(path.read_bytes())
    except PredictorError as error:
        raise InputError("MODEL", str(error), "Export it again with trimtab predict train.") from error
    features = body["features"]
    if features["dense"] != list(DENSE_NAMES):
        raise InputError("MODEL", f"{path}: has other features than this version", "Train it again with this version.")
    tensors = {
        name: np.frombuffer(base64.b64decode(t["f32"]), dtype="<f4").astype(np.float64).reshape(t["shape"])
        for name, t in body["tensors"].items()
    }
    hidden = tuple(checked.summary.get("open_levels", ()))
    fitted = Fitted(
        checked.levels, tensors, np.array(features["mean"], dtype=float), np.array(features["scale"], dtype=float),
        features["max_hashes"], tuple(body["offsets"]), checked.max_tokens, hidden,
    )  # fmt: skip
    return fitted, checked.summary
