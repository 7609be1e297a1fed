"""Each rule finds its trap, and nothing in a manifest without faults or beside the trap."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lint_cases import SAFE, TRAPS, Break

from trimtab.engine.model_config import ModelConfig
from trimtab.lint.finding import ORDER, Options, Severity
from trimtab.lint.rules import RULES

#: told also of the Deployment without faults: nothing that exists today cures it
ALWAYS = {"TT054"}


def _ids(reports: list[Any]) -> set[str]:
    return {f.id for r in reports for f in r.findings}


def _each(table: Any) -> list[Any]:
    return [pytest.param(i, b, id=f"{i}-{n}") for i, breaks in table.items() for n, b in enumerate(breaks)]


def test_every_rule_has_a_trap() -> None:
    assert set(TRAPS) == set(RULES)


def test_ids_and_names_are_one_each_and_texts_are_there() -> None:
    assert [r.id for r in RULES.values()] == list(RULES)
    assert len({r.name for r in RULES.values()}) == len(RULES)
    assert all(r.trap.endswith(".") and r.fix.endswith((".", ")", "?")) for r in RULES.values())


@pytest.mark.parametrize(("rule", "change"), _each(TRAPS))
def test_the_trap_is_found(rule: str, change: Break, healthy: Any, lint_of: Any) -> None:
    others = change(healthy) or []
    reports = lint_of(healthy, *others)
    found = [f for r in reports for f in r.findings if f.id == rule]
    assert len(found) == 1, _ids(reports)
    (finding,) = found
    assert finding.message.rstrip().endswith((".", "?")) and finding.fix and finding.line
    assert ORDER[finding.severity] >= ORDER[RULES[rule].severity]


def test_the_example_has_no_fault(healthy: Any, lint_of: Any) -> None:
    assert _ids(lint_of(healthy)) == ALWAYS


@pytest.mark.parametrize(("rule", "change"), _each(SAFE))
def test_beside_the_trap_nothing_is_found(rule: str, change: Break, healthy: Any, lint_of: Any) -> None:
    others = change(healthy) or []
    assert rule not in _ids(lint_of(healthy, *others))


@pytest.mark.parametrize("change", TRAPS["TT070"])
def test_no_secret_is_ever_said(change: Break, healthy: Any, lint_of: Any) -> None:
    from trimtab.lint.as_json import as_json
    from trimtab.lint.as_text import as_text
    from trimtab.lint.sarif import as_sarif

    change(healthy)
    reports = lint_of(healthy)
    said = as_text(reports) + str(as_json(reports, [])) + str(as_sarif(reports, []))
    assert "sk-1" not in said


def test_a_glued_secret_is_not_said(healthy: Any, lint_of: Any) -> None:
    from trimtab.lint.as_json import as_json

    healthy["spec"]["template"]["spec"]["containers"][0]["args"].append("--api-key sk-1")
    reports = lint_of(healthy)
    assert {"TT010", "TT070"} <= _ids(reports)
    assert "sk-1" not in str(as_json(reports, []))


def test_a_removed_flag_is_an_error_only_where_the_version_is_known(healthy: Any, lint_of: Any) -> None:
    engine = healthy["spec"]["template"]["spec"]["containers"][0]
    engine["args"].append("--swap-space=4")
    for image, severity in (("v0.32.0", Severity.ERROR), ("latest", Severity.WARNING)):
        engine["image"] = f"vllm/vllm-openai:{image}"
        (found,) = [f for r in lint_of(healthy) for f in r.findings if f.id == "TT014"]
        assert found.severity is severity
    (given,) = lint_of(healthy, options=Options(engine_version="0.9.1"))
    assert given.target.version == "0.9.1" and "TT014" not in {f.id for f in given.findings}


def test_the_near_miss_is_named(healthy: Any, lint_of: Any) -> None:
    healthy["spec"]["template"]["spec"]["containers"][0]["args"].append("--gpu-memory-utilisation=0.9")
    (found,) = [f for r in lint_of(healthy) for f in r.findings if f.id == "TT013"]
    assert "--gpu-memory-utilization" in found.fix


def test_the_slow_start_is_an_option(healthy: Any, lint_of: Any) -> None:
    """The example's startupProbe waits 1200 s."""
    assert "TT044" in _ids(lint_of(healthy, options=Options(slow_start_seconds=1201)))


def test_the_cache_size_is_an_option(healthy: Any, lint_of: Any) -> None:
    """The example's max_model_len is 8192."""
    assert "TT025" in _ids(lint_of(healthy, options=Options(kv_cache_size_tokens=8191)))
    assert "TT025" not in _ids(lint_of(healthy, options=Options(kv_cache_size_tokens=8192)))


@pytest.mark.parametrize(("gib", "fits"), [(1, False), (2, True)])
def test_a_model_config_tells_how_many_tokens_fit(gib: int, fits: bool, healthy: Any, lint_of: Any) -> None:
    """Llama-3 8B: 131,072 bytes per token in 16 bits, so 8192 tokens are 1 GiB; one block is kept back."""
    engine = healthy["spec"]["template"]["spec"]["containers"][0]
    engine["args"] += [f"--kv-cache-memory-bytes={gib * 2**30 - 2**21}", "--dtype=bfloat16"]
    model = ModelConfig.uniform(32, 8, 128)
    assert ("TT025" not in _ids(lint_of(healthy, options=Options(model_config=model)))) is fits
    assert "TT025" not in _ids(lint_of(healthy))


@pytest.mark.parametrize("kind", ["Job", "CronJob"])
def test_batch_workloads_need_no_probes_and_no_drain(kind: str, healthy: Any, lint_of: Any) -> None:
    template = {"metadata": {}, "spec": {"containers": [{"name": "e", "image": "vllm/vllm-openai:v0.32.0"}]}}
    spec = {"template": template} if kind == "Job" else {"jobTemplate": {"spec": {"template": template}}}
    job = {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    assert _ids(lint_of(job)) == {"TT041", "TT076", "TT077"}
