"""Which of the files that a report can be made of is it? JSON in, `Report` out; `InputError` names the wrong field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trimtab.errors import InputError
from trimtab.report.read_cluster import from_objects
from trimtab.report.read_tune import from_result
from trimtab.report.story import Report

Json = dict[str, Any]
_FIX = "Give what `trimtab tune` wrote (--state or --json), or of `kubectl get vllmtuners,tuningtrials -o json`."


def parse(text: str, name: str, tuner: str | None = None) -> Report:
    """`name`: of the file, for errors. `tuner`: which one, where the file holds several."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(name, f"is no JSON ({error})", _FIX) from None
    return read(data, name, tuner)


def read(data: object, name: str = "result", tuner: str | None = None) -> Report:
    if not isinstance(data, Mapping):
        raise InputError(name, "holds no JSON object", _FIX)
    if data.get("kind") in ("List", "VLLMTuner", "VLLMTunerList", "TuningTrial", "TuningTrialList"):
        return from_objects(data, name, tuner)
    if "trials" in data and "command" in data:
        return from_result(data, name)
    raise InputError(name, "is neither a result of trimtab tune nor a list of VLLMTuners", _FIX)
