"""Logs and traces in: what is read, what is refused and where."""

from __future__ import annotations

import gzip
import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.errors import InputError, TraceError
from trimtab.middleware.features import row_of
from trimtab.middleware.metrics import ENDINGS
from trimtab.middleware.quantile_model import DENSE_NAMES
from trimtab.middleware.wire import understand
from trimtab.predict.samples import endings_of, read_samples
from trimtab.predict.split import MIN_REQUESTS, by_time

sys.path.insert(0, str(Path(__file__).parent))
from predict_world import rows, write_log

GOOD: dict[str, Any] = {"at": 5.0, "output_tokens": 7, "ending": "stop", "cap_tokens": None, "hashes": [1, 70]}


def test_a_log_becomes_arrays_in_order_of_time(tmp_path: Path) -> None:
    log = [
        GOOD,
        {**GOOD, "at": 1.0, "ending": "length", "output_tokens": 64, "cap_tokens": 64, "hashes": [3]},
        {**GOOD, "at": 3.0, "ending": "client_cancel", "output_tokens": 0, "cap_tokens": 90, "hashes": []},
        {**GOOD, "at": 2.0, "ending": "error"},
        {**GOOD, "at": 2.5, "ending": "rejected", "output_tokens": 0},
    ]
    got = read_samples(str(write_log(tmp_path / "log.jsonl", log)), 64, 128)
    assert got.at_seconds.tolist() == [1, 3, 5]
    assert got.output_tokens.tolist() == [64, 1, 7]
    assert got.cap_tokens.tolist() == [64, 90, np.inf]
    assert got.natural.tolist() == [False, False, True] and got.left.tolist() == [False, True, False]
    assert got.hashes.tolist() == [3, 1, 6] and got.starts.tolist() == [0, 1, 1, 3]
    assert endings_of(got) == {"length": 1, "left": 1, "stop": 1}
    part = got.chosen(got.natural)
    assert (part.hashes.tolist(), part.starts.tolist(), len(part)) == ([1, 6], [0, 2], 1)


def test_every_ending_that_the_middleware_logs_is_known(tmp_path: Path) -> None:
    log = [{**GOOD, "ending": ending} for ending in ENDINGS]
    got = read_samples(str(write_log(tmp_path / "log.jsonl", log)), 64, 128)
    assert endings_of(got) == {"stop": 2, "length": 1, "left": 2}


def test_features_of_the_middleware_are_those_that_are_learned(tmp_path: Path) -> None:
    """A request that sets everything: each feature of the row moves its column."""
    body = {
        "messages": [{"role": "user", "content": "Write a line"}] * 2, "max_tokens": 9, "min_tokens": 2, "top_p": 0.5,
        "temperature": 0.5, "n": 2, "stream": True, "stop": ["a"], "tools": [{}], "thinking_token_budget": 5,
        "response_format": {"type": "json_object"},
    }  # fmt: skip
    empty: dict[str, Any] = {"messages": []}
    made = [understand("chat", body), understand("completions", {"prompt": [1, 2, 3]}), understand("responses", empty)]
    log = [{**GOOD, **row_of(request)} for request in made if request is not None]
    got = read_samples(str(write_log(tmp_path / "log.jsonl", log)), 64, 128)
    still = {DENSE_NAMES[n] for n in np.flatnonzero(got.dense.std(axis=0) == 0)}
    assert still == {"route=messages"}
    assert np.diff(got.starts)[0] == 10, "three words and two pairs, of the last and of the first message"


def test_a_packed_log_reads_the_same(tmp_path: Path) -> None:
    log = rows(50, caps=True)
    plain = read_samples(str(write_log(tmp_path / "log.jsonl", log)), 64, 16)
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress((tmp_path / "log.jsonl").read_bytes()))
    got = read_samples(f"log:{packed}", 64, 16)
    assert np.array_equal(got.dense, plain.dense) and np.array_equal(got.hashes, plain.hashes)
    assert max(np.diff(got.starts)) == 16


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ending": "eos"}, "ending"),
        ({"ending": None}, "ending"),
        ({"at": "noon"}, "at"),
        ({"at": True}, "at"),
        ({"at": -1}, "at"),
        ({"output_tokens": 7.5}, "output_tokens"),
        ({"output_tokens": -1}, "output_tokens"),
        ({"cap_tokens": 0}, "cap_tokens"),
        ({"hashes": [1, "a"]}, "hashes"),
        ({"hashes": [-1]}, "hashes"),
        ({"hashes": 3}, "hashes"),
    ],
)
def test_a_bad_line_is_named(change: dict[str, Any], field: str, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl", [GOOD, {**GOOD, **change}])
    with pytest.raises(TraceError) as caught:
        read_samples(str(path), 64, 128)
    assert caught.value.field == f"{path}:2 {field}"
    assert caught.value.fix


@pytest.mark.parametrize(("line", "word"), [("{nope}", "JSON"), ("[1]", "list"), ("\udcff", "JSON")])
def test_a_line_that_is_no_object_is_named(line: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(f"{json.dumps(GOOD)}\n{line}\n".encode("utf-8", "surrogateescape"))
    with pytest.raises(TraceError, match=word) as caught:
        read_samples(str(path), 64, 128)
    assert caught.value.field == f"{path}:2 line"


def test_a_last_line_cut_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD)[:20])
    assert len(read_samples(str(path), 64, 128)) == 1


@pytest.mark.parametrize("data", [None, b"", b"\n\n", b"\x1f\x8bnot gzip", gzip.compress(b"x" * 999, mtime=0)[:-9]])
def test_a_file_without_requests_is_refused(data: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError):
        read_samples(str(path), 64, 128)


def test_a_trace_gives_lengths_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:50,9,1\n")
    got = read_samples(f"azure:{path}", 64, 128)
    assert got.output_tokens.tolist() == [44, 1] and got.natural.all() and np.isinf(got.cap_tokens).all()
    known = {DENSE_NAMES[n] for n in np.flatnonzero(got.dense.std(axis=0) > 0)}
    assert known == {"log_prompt_tokens"}


@pytest.mark.skipif(not os.environ.get("TRIMTAB_DATA"), reason="TRIMTAB_DATA names no folder with public traces")
def test_the_public_traces_are_read() -> None:
    folder = Path(os.environ["TRIMTAB_DATA"]) / "traces"
    assert len(read_samples(f"azure:{folder}/azure-2023-conv.csv", 64, 128)) == 19366
    assert len(read_samples(f"mooncake:{folder}/mooncake-synthetic.jsonl.gz", 64, 128)) == 3993


def test_parts_follow_each_other_in_time(tmp_path: Path) -> None:
    log = rows(MIN_REQUESTS)
    samples = read_samples(str(write_log(tmp_path / "log.jsonl", log)), 64, 128)
    parts = by_time(samples)
    ordered = (parts.train, parts.validation, parts.calibration, parts.test)
    assert sum(map(len, ordered)) == MIN_REQUESTS
    assert all(a.at_seconds[-1] < b.at_seconds[0] for a, b in pairwise(ordered))
    with pytest.raises(InputError, match="too few"):
        by_time(samples.part(0, MIN_REQUESTS - 1))
