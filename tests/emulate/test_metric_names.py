"""The metric families against the text of a real vLLM 0.32 (data/vllm-0.32-metrics.txt)."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from trimtab.emulate.flags import parse_flags
from trimtab.emulate.metric_table import token_buckets
from trimtab.emulate.metrics import EngineMetrics
from trimtab.emulate.web_metrics import WebMetrics

REAL = (Path(__file__).parent / "data" / "vllm-0.32-metrics.txt").read_text()
ARGS = "tiny --max-model-len 2048 --block-size 32 --num-gpu-blocks-override 160"


def emulated_text() -> str:
    registry = CollectorRegistry()
    EngineMetrics(registry, parse_flags(ARGS.split()))
    web = WebMetrics(registry, frozenset({"/v1/completions"}))
    web.record({"method": "POST", "path": "/v1/completions"}, 200, (10, 0), 0.1)
    return generate_latest(registry).decode()


def described(text: str) -> dict[str, list[str]]:
    """Family -> its HELP and TYPE lines."""
    families: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        if line.startswith(("# HELP", "# TYPE")) and "_created" not in line:
            families[line.split()[2]].append(line.rstrip())
    return {name: lines for name, lines in families.items() if name.startswith(("vllm:", "http_"))}


def samples(text: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    found = set()
    for line in text.splitlines():
        match = re.match(r"([a-z_:]+)(?:\{(.*)\})?(?: |$)", line)
        if line.startswith("#") or match is None or "_created" in match[1]:
            continue
        labels = frozenset(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
        found.add((match[1], frozenset(pair for pair in labels if pair[0] != "kv_cache_memory_bytes")))
    return {sample for sample in found if sample[0].startswith(("vllm:", "http_"))}


def test_families_types_and_help_texts_are_vllms() -> None:
    real, emulated = described(REAL), described(emulated_text())
    assert emulated.keys() == real.keys()
    for name, lines in real.items():
        assert emulated[name] == lines


def test_labels_and_bucket_edges_are_vllms() -> None:
    assert samples(emulated_text()) == samples(REAL)


@pytest.mark.parametrize(("length", "last", "count"), [(2048, 2000.0, 11), (4096, 2000.0, 11), (8192, 5000.0, 12)])
def test_token_buckets_follow_the_context_length(length: int, last: float, count: int) -> None:
    buckets = token_buckets(length)
    assert (buckets[-1], len(buckets)) == (last, count)
