"""Files that a report is made of."""

from __future__ import annotations

from typing import Any

import pytest
from report_files import NOW, result, trial, verdict

from trimtab.engine.settings import Configuration
from trimtab.judge.verdict import Kind
from trimtab.plan.record import Phase
from trimtab.report.html import render
from trimtab.report.read import read


@pytest.fixture(name="kept", scope="session")
def a_kept_trial() -> dict[str, Any]:
    """One kept, one worse; with SLO and guardrail."""
    worse = trial(2, Phase.ROLLED_BACK, verdict(Kind.WORSE, -0.3), configuration=Configuration.of(max_num_seqs=8))
    spec = {
        "objective": {"slo": {"ttft_seconds": 5.0, "tpot_seconds": 0.075}},
        "guardrails": {"max_latency_ratio": 3.0},
    }
    return result(trial(1, found=verdict(Kind.BETTER, 1.2), confirm_from=NOW), worse, spec=spec)


@pytest.fixture(name="text", scope="session")
def its_page(kept: dict[str, Any]) -> str:
    """Drawn once: pictures take a second."""
    return render(read(kept))
