"""The table of metrics against what vLLM's sources define, version by version, and against a real /metrics."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from metric_texts import names_in

from trimtab.engine.metric_table import (
    METRICS,
    OTHERS,
    READ,
    Engine,
    VersionRange,
    engines,
    metric_of,
    parse_version,
    spellings,
    version_range,
    version_text,
)
from trimtab.errors import InputError

DATA = Path(__file__).parent / "data"
HISTORY: dict[str, Any] = json.loads((DATA / "vllm-metric-history.json").read_text())
DEFINED: dict[str, dict[str, Any]] = {
    name: found for name, found in HISTORY["metrics"].items() if not name.startswith(tuple(OTHERS))
}
REAL: str = json.loads(gzip.decompress((DATA / "vllm-0.32-cancelled.json.gz").read_bytes()))["metrics_after"]
OWN_NAMES = {"process_start_time_seconds", "http_requests_total"}


def test_the_table_has_the_metrics_that_the_sources_define_and_no_other() -> None:
    assert set(METRICS) - OWN_NAMES == set(DEFINED)
    assert [version_text(v) for v in READ] == HISTORY["versions"]


@pytest.mark.parametrize("name", sorted(DEFINED))
def test_every_version_shows_what_its_sources_define(name: str) -> None:
    metric = METRICS[name]
    each: tuple[Engine, ...] = ("v0", "v1")
    for engine in each:
        found = DEFINED[name].get(engine, {})
        for version in HISTORY["versions"]:
            expected = (
                "shown" if version in found.get("shown", ()) else "hidden" if version in found.get("hidden", ()) else ""
            )
            standing = metric.standing(parse_version(version), engine)
            assert (standing if standing in ("shown", "hidden") else "") == expected, (version, engine)


@pytest.mark.parametrize("name", sorted(DEFINED))
def test_kind_and_labels_are_those_of_the_sources(name: str) -> None:
    """Some sources give labels by a constant's name or by a dictionary; only words that are labels are compared."""
    metric, found = METRICS[name], list(DEFINED[name].values())
    assert all(f["kind"] in (metric.kind, "gauge" if metric.kind == "info" else metric.kind) for f in found)
    words = {
        w.removeprefix("labelname_").replace("finish_reason", "finished_reason") for f in found for w in f["labels"]
    }
    if metric.kind != "info" and "per_pos" not in name:
        assert {w.replace("finisheded", "finished") for w in words} - {"model_name"} == set(metric.labels)


def test_a_rename_keeps_kind_and_meets_its_older_name() -> None:
    """Both names are shown by one version at least, so nobody's dashboard breaks at once."""
    renamed = [m for m in METRICS.values() if m.renamed_from]
    assert len(renamed) == 4
    for metric in renamed:
        older = METRICS[metric.renamed_from]
        assert (older.kind, older.renamed_to) == (metric.kind, metric.name)
        assert any(metric.standing(v, "v1") == older.standing(v, "v1") == "shown" for v in READ)
        assert spellings(metric.name) == (metric.name, older.name)


def test_every_metric_that_is_read_says_what_it_cannot_tell() -> None:
    from trimtab.observe.metrics import WANTED

    read = {m for series in WANTED if (m := metric_of(series)) is not None}
    assert len(read) > 25
    # shares of a total and steps of a process have no further hazard than the total's
    assert {m.name for m in read if not m.cannot_tell} <= {
        "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total", "vllm:request_params_n",
        "vllm:request_decode_time_seconds",
    }  # fmt: skip


def test_a_real_engine_shows_exactly_what_the_table_says_of_its_version() -> None:
    given = {m.name for series in names_in(REAL) if (m := metric_of(series)) is not None}
    shown = {m.name for m in METRICS.values() if m.standing((0, 32, 0), "v1") == "shown"}
    assert given <= shown
    assert {n for n in shown if not METRICS[n].when} <= given
    assert {n for n in names_in(REAL) if n.startswith("vllm:") and metric_of(n) is None} == set()


def test_the_version_is_told_from_a_real_text() -> None:
    assert str(version_range(names_in(REAL), complete=True)) == "0.32.0 or newer"
    assert version_range({n for n in names_in(REAL) if "waiting_by_reason" in n}) == VersionRange((0, 20, 0), READ[-1])


@pytest.mark.parametrize(
    ("version", "engine"), [(v, e) for v in HISTORY["versions"] for e in engines(parse_version(v))]
)
def test_the_version_is_among_those_guessed_from_its_own_names(version: str, engine: Engine) -> None:
    at = parse_version(version)
    shown = {s for m in METRICS.values() if m.standing(at, engine) == "shown" for s in m.series}
    found = version_range(shown, complete=True)
    assert found is not None and found.low <= at <= found.high
    part = version_range(sorted(shown)[::3])
    assert part is not None and part.low <= found.low and part.high >= found.high


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), None),
        (("python_info", "http_requests_total"), None),
        (("vllm:made_up",), None),
        (("vllm:kv_cache_usage_perc", "vllm:num_requests_swapped"), None),
        (("vllm:num_requests_swapped",), VersionRange((0, 6, 0), (0, 9, 0))),
        (("vllm:tokens_total",), VersionRange((0, 6, 4), (0, 7, 3))),
        (("vllm:gpu_prefix_cache_hits",), VersionRange((0, 7, 3), (0, 11, 2))),
        (("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), VersionRange((0, 9, 2), (0, 11, 2))),
        (("vllm:inter_token_latency_seconds_bucket",), VersionRange((0, 10, 2), READ[-1])),
    ],
)  # fmt: skip
def test_names_narrow_the_version(names: tuple[str, ...], expected: VersionRange | None) -> None:
    assert version_range(names) == expected


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.8.5", (0, 8, 5)), ("v0.6.6.post1", (0, 6, 6)), ("0.32", (0, 32, 0)), ("0.9.1+cpu", (0, 9, 1))],
)
def test_versions_are_read_in_the_spellings_of_tags(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "latest", "nightly", "x0.8"])
def test_what_is_no_version_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="version"):
        parse_version(text)
