"""The in-engine reader: the same numbers as the trainer's, and no file that can break an engine."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import math
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.middleware import quantile_model
from trimtab.middleware.quantile_model import (
    DENSE_NAMES,
    MAX_FILE_BYTES,
    PredictorError,
    at_level,
    canonical,
    load,
    load_or_problem,
    moments,
    parse,
)
from trimtab.predict.fitted import Fitted, to_bytes
from trimtab.predict.samples import Sample, arrays

sys.path.insert(0, str(Path(__file__).parent))
from predict_world import rows

from conftest import made_by_hand

Json = dict[str, Any]
FILE = to_bytes(made_by_hand(), {})
MODEL = parse(FILE)


def test_the_engine_computes_what_the_trainer_computed(fitted: Fitted) -> None:
    log = rows(200, caps=True)
    samples = arrays([Sample(r["at"], r, r["output_tokens"], r["ending"], r["cap_tokens"]) for r in log], 64, 128)
    theirs = fitted.tokens(samples)
    ours = [MODEL.quantiles(row) for row in log]
    assert np.allclose(ours, theirs, rtol=1e-6)
    assert len(set(ours)) > 100


odd = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.one_of(st.integers(), st.none())),
    st.integers(10**400, 10**401),
)  # fmt: skip
NAMES = ["route", "prompt_tokens", "prompt_chars", "messages", "max_tokens", "temperature", "top_p", "n", "stream",
         "stop", "tools", "structured", "thinking_tokens", "hashes", "min_tokens", "unknown"]  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), odd))
def test_any_row_gives_ascending_quantiles_within_bounds(row: Json) -> None:
    tokens = MODEL.quantiles(row)
    assert len(tokens) == len(MODEL.levels)
    assert list(tokens) == sorted(tokens)
    assert tokens[0] >= 1 and tokens[-1] <= MODEL.max_tokens


def test_calibration_cannot_make_quantiles_cross() -> None:
    """Offsets that would: each level is at least the one below, in the engine as in the trainer."""
    steep = made_by_hand(offsets=(4.0, -4.0, 1.0, -4.0, 0.0))
    log = rows(50)
    samples = arrays([Sample(r["at"], r, r["output_tokens"], r["ending"], None) for r in log], 64, 128)
    ours = np.array([parse(to_bytes(steep, {})).quantiles(row) for row in log])
    assert (np.diff(ours, axis=1) >= 0).all() and (np.diff(ours, axis=1) == 0).any()
    assert np.allclose(ours, steep.tokens(samples), rtol=1e-6)


def resigned(change: Callable[[Json], object]) -> bytes:
    """The file with a change and a matching hash: a writer's mistake rather than a damaged file."""
    body = json.loads(FILE)
    change(body)
    body["sha256"] = hashlib.sha256(canonical(body)).hexdigest()
    return json.dumps(body).encode()


def floats(*values: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not-json"),
    "half written": (FILE[: len(FILE) // 2], "not-json"),
    "binary": (bytes(range(256)) * 10, "not-json"),
    "deep": (b"[" * 100_000, "not-json"),
    "huge": (b" " * (MAX_FILE_BYTES + 1), "too-large"),
    "a list": (b"[]", "wrong-format"),
    "other json": (b'{"format": "x"}', "wrong-format"),
    "newer": (resigned(lambda b: b.update(version=2)), "wrong-version"),
    "one weight changed": (FILE.replace(b'"max_tokens": 4000', b'"max_tokens": 4001'), "hash"),
    "no hash": (FILE.replace(b'"sha256"', b'"sha255"'), "hash"),
    "infinite": (FILE.replace(b'"max_tokens": 4000', b'"max_tokens": 1e999'), "content"),
    "unknown feature": (resigned(lambda b: b["features"]["dense"].__setitem__(0, "moon_phase")), "content"),
    "features missing": (resigned(lambda b: b.pop("features")), "content"),
    "mean too short": (resigned(lambda b: b["features"]["mean"].pop()), "content"),
    "mean of texts": (resigned(lambda b: b["features"]["mean"].__setitem__(0, "1")), "content"),
    "no buckets": (resigned(lambda b: b["features"].update(buckets=0)), "content"),
    "other buckets": (resigned(lambda b: b["features"].update(buckets=65)), "content"),
    "levels cross": (resigned(lambda b: b.update(levels=[0.5, 0.9, 0.75, 0.95, 0.99])), "content"),
    "level of one": (resigned(lambda b: b.update(levels=[0.5, 0.75, 0.9, 0.95, 1.0])), "content"),
    "offsets missing": (resigned(lambda b: b.pop("offsets")), "content"),
    "no layers": (resigned(lambda b: [b["tensors"].pop(f"weight.{n}") for n in range(3)]), "content"),
    "bias missing": (resigned(lambda b: b["tensors"].pop("bias.1")), "content"),
    "shape lies": (resigned(lambda b: b["tensors"]["bias.0"].update(shape=[31, 1])), "content"),
    "shape of zero": (resigned(lambda b: b["tensors"]["bias.0"].update(shape=[0, 1])), "content"),
    "shape immense": (resigned(lambda b: b["tensors"]["bias.0"].update(shape=[1 << 40, 1 << 40])), "content"),
    "no base64": (resigned(lambda b: b["tensors"]["bias.0"].update(f32="*")), "content"),
    "NaN": (resigned(lambda b: b["tensors"]["bias.2"].update(f32=floats(*[math.nan] * 5))), "content"),
    "immense weight": (resigned(lambda b: b["tensors"]["bias.2"].update(f32=floats(*[1e30] * 5))), "content"),
    "tensors missing": (resigned(lambda b: b.pop("tensors")), "content"),
    "a tensor is a text": (resigned(lambda b: b["tensors"].update(embedding="x")), "content"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    data, reason = BROKEN[name]
    path = tmp_path / "p.json"
    path.write_bytes(data)
    model, problem = load_or_problem(str(path))
    assert model is None and problem is not None
    assert problem.reason == reason
    assert str(path) in str(problem)


@pytest.mark.parametrize("path", ["absent.json", ".", "a\0b"])
def test_what_cannot_be_read_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(PredictorError) as caught:
        load(str(tmp_path / path))
    assert caught.value.reason == "unreadable"


@given(st.data())
def test_no_damage_escapes_as_another_error(data: st.DataObject) -> None:
    """Bytes changed, cut or doubled anywhere."""
    at = data.draw(st.integers(0, len(FILE) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "double"]))
    flipped = FILE[:at] + bytes([FILE[at] ^ data.draw(st.integers(1, 255))]) + FILE[at + 1 :]
    damaged = {"flip": flipped, "cut": FILE[:at], "double": FILE[:at] + FILE}[kind]
    try:
        parse(damaged)
    except PredictorError:
        return
    assert json.loads(damaged) == json.loads(FILE)  # only space between the values


def test_a_sane_file_says_the_same_after_a_round_trip(fitted: Fitted) -> None:
    assert to_bytes(fitted, {}) == FILE
    assert len(FILE) < 20_000
    assert tuple(json.loads(FILE)["features"]["dense"]) == DENSE_NAMES


def test_between_levels_it_interpolates_and_beyond_it_holds() -> None:
    levels, tokens = (0.5, 0.9), (100.0, 400.0)
    assert at_level(levels, tokens, 0.1) == 100
    assert at_level(levels, tokens, 0.7) == pytest.approx(200)
    assert at_level(levels, tokens, 0.9) == pytest.approx(400)
    assert at_level(levels, tokens, 0.999) == 400


def test_moments_of_a_uniform_length() -> None:
    """Uniform on 0..1000 has a linear quantile function: exact but for the cut tail."""
    levels = (0.5, 0.75, 0.9, 0.95, 0.99)
    mean, variance = moments(levels, [1000 * q for q in levels])
    assert mean == pytest.approx(500, rel=0.001)
    assert math.sqrt(variance) == pytest.approx(1000 / math.sqrt(12), rel=0.005)


def test_it_needs_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(quantile_model.__file__).read_text())
    names = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names)
