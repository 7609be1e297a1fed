"""The pages say what the code does: commands, links, reasons, phases, manifests. Files only, no cluster."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack/docs"))
import states
from reading import (
    JUDGE,
    PAGES,
    PLAN,
    ROOT,
    Machine,
    anchors,
    block_kinds,
    blocks,
    given,
    links,
    names,
    prose,
    rows,
    said_by_the_search,
    section,
)

from trimtab.diagnose.finding import DO_NOT_TUNE
from trimtab.diagnose.rules import RULES
from trimtab.plan.preconditions import CHECKS
from trimtab.plan.record import ENDED, NO_ROOM, Phase
from trimtab.plan.spec import TunerSpec
from trimtab.plan.summary import TunerPhase
from trimtab.plan.trial import PHASES

PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
REFERENCE = (ROOT / "docs/reference.md").read_text()
SAFETY = (ROOT / "docs/safety.md").read_text()
README = (ROOT / "README.md").read_text()
#: alarms after which nothing is tuned; idleness has a block of its own
ALARMS = DO_NOT_TUNE - {"NoTraffic"}


# --- commands, links, files -------------------------------------------------------------------------------------------
@PAGE
def test_every_make_target_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    text = page.read_text()
    code = re.findall(r"`([^`\n]+)`", prose(text)) + [b for lang in ("sh", "", "yaml") for b in blocks(text, lang)]
    used = {name for c in code for name in re.findall(r"(?<![\w-])make ([a-z][a-z-]*)", c)}
    assert used <= targets


@PAGE
def test_every_internal_link_resolves(page: Path) -> None:
    broken = []
    for link in links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            broken.append(link)
    assert broken == []


@PAGE
def test_every_file_that_is_named_exists(page: Path) -> None:
    """Words in backquotes that begin with one of the tree's folders."""
    tops = "operator|tuner|tests|docs|hack|crds|charts|examples|benchmarks"
    said = re.findall(rf"`((?:{tops})/[\w./*-]+)`", page.read_text())
    missing = [s for s in said if "your_" not in s and not list(ROOT.glob(s.rstrip("/")))]
    assert missing == []


def test_the_first_screen_has_the_demo_and_the_tests() -> None:
    first = README.splitlines()[:25]
    assert any("make demo" in line for line in first) and any("make test " in line for line in first)


def test_the_readme_names_every_column() -> None:
    for plural, heading in (("vllmtuners", "VLLMTuner (`vt`)"), ("tuningtrials", "TuningTrial (`tt`)")):
        crd = yaml.safe_load((ROOT / "crds" / f"{plural}.trimtab.dev.yaml").read_text())
        columns = {c["name"].upper() for c in crd["spec"]["versions"][0]["additionalPrinterColumns"]} - {"AGE"}
        table = rows(README[README.index(f"| {heading}") :].split("\n\n")[0])
        assert {name for row in table[1:] for name in row[0].split(", ")} == columns


# --- manifests --------------------------------------------------------------------------------------------------------
def _tuners(text: str) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all(text) if isinstance(d, dict) and d.get("kind") == "VLLMTuner"]


@PAGE
def test_manifests_in_pages_parse(page: Path) -> None:
    for block in blocks(page.read_text(), "yaml"):
        for tuner in _tuners(block):
            assert tuner["apiVersion"] == "trimtab.dev/v1alpha1"
            TunerSpec.parse(tuner["spec"])


def test_the_readme_shows_a_tuner_that_only_recommends() -> None:
    (block,) = [b for b in blocks(README, "yaml") if "VLLMTuner" in b]
    (tuner,) = _tuners(block)
    assert TunerSpec.parse(tuner["spec"]).mode == "Recommend"
    assert len(block.splitlines()) <= 10


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_examples_parse(path: Path) -> None:
    documents = [d for d in yaml.safe_load_all(path.read_text()) if d]
    assert documents and all(d["apiVersion"] and d["kind"] and d["metadata"]["name"] for d in documents)
    for tuner in _tuners(path.read_text()):
        TunerSpec.parse(tuner["spec"])


# --- reasons ----------------------------------------------------------------------------------------------------------
def _blocks() -> dict[str, bool]:
    return {**block_kinds(), **dict.fromkeys(ALARMS, True)}


@pytest.mark.parametrize(
    ("text", "heading"),
    [(SAFETY, "What must hold before a trial"), (REFERENCE, "Block reasons")],
    ids=["safety", "reference"],
)
def test_block_reasons_are_the_codes(text: str, heading: str) -> None:
    table = rows(section(text, heading))[1:]
    said = {name: row[1] == "hard" for row in table for name in re.findall(r"`(\w+)`", row[0])}
    assert said == _blocks()


def test_preconditions_stand_in_the_order_in_which_they_are_asked() -> None:
    """Each check's reasons are together, the checks in the order of CHECKS, then what all tuners share,
    then what is found when one is due."""
    import inspect

    from trimtab.plan import budgets, way
    from trimtab_operator import reconcile

    order = names(section(SAFETY, "What must hold before a trial"))
    places = []
    for check in (*CHECKS, budgets, reconcile):
        source = inspect.getsource(way if check.__name__ == "_replicas" else check)
        reasons = ALARMS if check.__name__ == "_broken" else {r for r in block_kinds() if f'"{r}"' in source}
        reasons &= set(order)
        places.append(sorted(order.index(r) for r in reasons))
    assert [i for place in places for i in place] == list(range(len(order)))


def _breaches() -> set[str]:
    return given(JUDGE / "guardrail.py", {"Breach": 0, "_crash": 0})


def test_breach_reasons_are_the_codes() -> None:
    assert set(names(section(REFERENCE, "Breach reasons"))) == _breaches()


def test_verdict_reasons_are_the_codes() -> None:
    judged = given(JUDGE / "verdict.py", {"Verdict": 1})
    decided = given(PLAN / "trial.py", {"_verdict": 1, "cancel": 1}) | {NO_ROOM}
    decided |= given(PLAN / "switchback.py", {"Verdict": 1, "cancel": 1}) - {"StartTimedOut"}  # a breach's reason, too
    decided |= given(PLAN / "drift.py", {})
    assert len(judged) > 8 and len(decided) > 8
    decided |= given(PLAN / "accept.py", {}) | given(ROOT / "operator/trimtab_operator/deciding.py", {"Verdict": 1})
    assert set(names(section(REFERENCE, "Verdict reasons"))) == judged | decided


def test_reasons_of_the_condition_middleware_are_the_codes() -> None:
    source = (PLAN / "middleware.py").read_text()
    coded = set(re.findall(r'"((?:Not)?Install\w+|Unsupported)"', source)) - {"Install"}
    table = section(REFERENCE, "The condition Middleware")
    assert {n for row in rows(table)[1:] for n in re.findall(r"^`(\w+)`", row[0])} == coded


def test_findings_are_the_codes() -> None:
    assert set(names(section(REFERENCE, "Findings"))) == {*RULES, "Healthy"}


def test_causes_are_the_codes() -> None:
    table = rows(section((ROOT / "docs/diagnose.md").read_text(), "Causes"))[1:]
    assert {re.sub("`", "", row[0]) for row in table} == {*RULES, "Healthy"}


def test_phases_of_a_tuner_are_the_codes() -> None:
    assert set(names(section(REFERENCE, "Phases of a VLLMTuner"))) == {p.value for p in TunerPhase}


def test_conditions_are_the_codes() -> None:
    source = "".join((ROOT / "operator/trimtab_operator" / f).read_text() for f in ("tuner_status.py", "records.py"))
    kinds = set(re.findall(r'\("([A-Z]\w+)", "(?:True|False|Unknown)", ', source))
    assert {row[1].strip("`") for row in rows(section(REFERENCE, "Conditions"))[1:]} == kinds


def test_events_are_the_codes() -> None:
    said = set(names(section(REFERENCE, "Events")))
    source = "".join(p.read_text() for p in sorted((ROOT / "operator/trimtab_operator").glob("*.py")))
    fixed = set(re.findall(r'recorder\.event\(\w+, "(\w+)"', source)) | said_by_the_search()
    assert said == fixed | {f"Trial{p.value}" for p in Phase if p is not Phase.AWAITING_APPROVAL}


def test_annotations_labels_and_finalizers_are_the_codes() -> None:
    said = set(names(section(REFERENCE, "Annotations, labels, finalizer")))
    files = [*sorted((ROOT / "operator/trimtab_operator").glob("*.py")), PLAN / "around.py"]
    source = "".join(p.read_text() for p in files)
    assert said == set(re.findall(r'"(trimtab\.dev/(?!v1alpha1|operator|crd-version)[\w-]+)"', source))


def test_metrics_are_the_codes() -> None:
    from trimtab_operator.fleet_metrics import FleetMetrics
    from trimtab_operator.telemetry import Telemetry

    registry = Telemetry().registry
    registry.register(FleetMetrics())
    families = {(f.name + ("_total" if f.type == "counter" else "")) for f in registry.collect()}
    assert set(names(section(REFERENCE, "Metrics of the operator"))) == families


def test_errors_are_the_codes() -> None:
    import trimtab.errors as errors

    classes = {n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.TrimtabError)}
    bases = {c.__base__.__name__ for n, c in vars(errors).items() if n in classes}
    said = set(names(section(REFERENCE, "Errors")))
    assert said == (classes - bases) | {"InputError", "Unexpected"}


# --- the state diagram ------------------------------------------------------------------------------------------------
def _coded() -> set[tuple[str, str]]:
    """Every transition that plan/trial.py can make. `outside` is asked first in each phase; what it may do there is
    in its own first lines: before approval nothing is to be rolled back, and a rollback is not begun twice."""
    machine, found = Machine.read(), set()
    outside = {Phase[n] for n in machine.goes_to("outside")}
    assert outside == {Phase.CANCELLED, Phase.ROLLING_BACK}
    for phase, function in PHASES.items():
        reached = {Phase[n] for n in machine.goes_to(function.__name__)} | outside
        if phase in (Phase.AWAITING_APPROVAL, Phase.ROLLING_BACK):
            reached.discard(Phase.ROLLING_BACK)
        found |= {(phase.value, p.value) for p in reached}
    return found


def test_the_state_diagram_is_the_state_machine() -> None:
    drawn = {(a, b) for a, b, _ in states.EDGES}
    assert {(a, b) for a, b in drawn if states.START not in (a, b)} == _coded()
    assert {a for a, b in drawn if b == states.START} == {p.value for p in ENDED}
    assert {b for a, b in drawn if a == states.START} == {"AwaitingApproval", "Starting"}


def test_the_state_diagram_is_drawn_as_the_arrows_say() -> None:
    picture = states.PICTURE.read_text()
    assert picture == states.svg(), "run: python hack/docs/states.py"
    assert "pictures/trial.svg" in (ROOT / "docs/how-it-works.md").read_text() and "docs/pictures/trial.svg" in README
    assert all(name in picture for name in states.PLACES) and "prefers-color-scheme:dark" in picture
    assert not re.search(r"(?:href|url)\(?=?[\"']?https?:", picture)


def test_the_page_says_how_long_each_phase_takes() -> None:
    text = section((ROOT / "docs/how-it-works.md").read_text(), "Phases of a trial")
    timed = {row[0] for row in rows(text)[1:]}
    assert timed == {p.value for p in Phase if p not in ENDED and p is not Phase.AWAITING_APPROVAL}


@PAGE
def test_fields_of_the_spec_that_are_named_exist(page: Path) -> None:
    """`spec.rollout.maxSurge` and the like, also without `spec.`; a TuningTrial's `spec.baseline` is left alone."""
    crd = yaml.safe_load((ROOT / "crds/vllmtuners.trimtab.dev.yaml").read_text())
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    sections = "|".join(root["properties"])
    said = re.findall(rf"`(?:spec\.)?((?:{sections})(?:\.[a-zA-Z]+)+)`", page.read_text())
    for path in said:
        if path.startswith("metrics.") and path.split(".")[1] in ("secrets", "configMaps"):
            continue  # values of the chart
        at = root
        for key in path.split("."):
            assert key in at.get("properties", {}), path
            at = at["properties"][key]
