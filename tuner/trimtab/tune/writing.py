"""A configuration as the pod template that has it; and which settings the spec lets the search change. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.engine.command import parse_template
from trimtab.engine.constraints import check_configuration
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Configuration
from trimtab.errors import EngineError, InputError
from trimtab.plan.preconditions import FleetView
from trimtab.plan.spec import TunerSpec
from trimtab.search.space import Space

Json = dict[str, Any]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Proposed:
    """A configuration to try and the pod template that has it."""

    configuration: Configuration
    template: Json
    origin: str


def rewritten(spec: TunerSpec, template: Mapping[str, Any], fleet: FleetView, wanted: Configuration) -> Json | None:
    """The template with `wanted`, or None where it cannot be written or vLLM would refuse it."""
    try:
        written = _written(spec, template, fleet, wanted)
    except (EngineError, InputError) as error:
        _log.info("not proposed: %s: %s", wanted, error)
        return None
    return written if written != template else None


def _written(spec: TunerSpec, template: Mapping[str, Any], fleet: FleetView, wanted: Configuration) -> Json:
    """The template with `wanted`. EngineError or InputError where it cannot be written or vLLM would refuse it."""
    current = fleet.configuration or Configuration.of()
    check_configuration(wanted, fleet.engine_version)
    written = rewrite(template, current.changes_to(wanted), spec.target_ref.container, version=fleet.engine_version)
    parse_template(written, spec.target_ref.container)
    return written


def refused_candidates(spec: TunerSpec, template: Mapping[str, Any], fleet: FleetView) -> list[str]:
    """Which of the person's own candidates are never tried, and why."""
    current = fleet.configuration or Configuration.of()
    problems: list[str] = []
    for number, changes in enumerate(spec.search.candidates):
        try:
            _written(spec, template, fleet, current.with_(dict(Configuration.from_camel(changes))))
        except (EngineError, InputError) as error:
            problems.append(f"spec.search.candidates[{number}] is not tried: {error}")
    return problems


def space_of(spec: TunerSpec) -> Space:
    """What the spec lets the search change."""
    hot = spec.token_policy.method == "Percentile"  # then trials of the policy look for the cap, without restarts
    ranges: dict[str, tuple[int, int]] = {}
    for name, found in (
        ("max_num_seqs", spec.search.max_num_seqs),
        ("max_num_batched_tokens", spec.search.max_num_batched_tokens),
        ("max_new_tokens", None if hot else spec.token_policy.max_new_tokens),
    ):
        if found is not None:
            ranges[name] = (found.min, found.max)
    return Space(ranges, tune_prefix_caching=spec.search.prefix_caching == "Tune")
