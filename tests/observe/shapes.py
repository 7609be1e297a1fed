"""Texts of /metrics by version: where they lie, and the Observation of a window that ends with one."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields
from pathlib import Path

from metric_texts import samples

from trimtab.observe.mapping import observe
from trimtab.observe.observation import Observation
from trimtab.observe.samples import Samples

DATA = Path(__file__).parent / "data"


def shape(name: str) -> str:
    """A committed text; of a recorded run the one after it."""
    path = DATA / name
    if path.name.endswith(".json.gz"):
        return str(json.loads(gzip.decompress(path.read_bytes()))["metrics_after"])
    return path.read_text()


def held(text: str) -> Samples:
    """Two samples of one pod: a process that has just begun, and `text` a minute later."""
    start = "".join(x + "\n" for x in text.split("\n") if x.startswith("process_start_time_seconds"))
    return samples((0.0, "vllm:num_requests_running 0\n" + start), (60.0, text))


def observed(text: str) -> Observation:
    found = observe(held(text), "p", 0.0, 60.0)
    assert found is not None
    return found


def missing(seen: Observation) -> set[str]:
    return {f.name for f in fields(Observation) if getattr(seen, f.name) is None}
