"""What a person sees, on a terminal and in a log."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from trimtab.engine.settings import Configuration
from trimtab.judge.guardrail import PodHealth
from trimtab.judge.verdict import Kind, Verdict
from trimtab.observe.observation import Observation
from trimtab.plan.record import Phase, PodView, TargetView, Template, TrialRecord
from trimtab.tune.loop import Seen, figures
from trimtab.tune.options import TuneOptions, build_spec
from trimtab.tune.show import Display, gain_text, print_result, result_json
from trimtab.tune.state import State

SPEC = build_spec(TuneOptions(slo_ttft=2.5))
OBSERVED = Observation(pods=2, window_seconds=10.0, useful_tokens=2000.0, preemptions=40.0, finished=20.0)


def pod(name: str, *, ready: bool = True, code: int | None = None) -> PodView:
    return PodView(name, "127.0.0.1", PodHealth(ready, 0, None, None, code, 1.0))


def loop(phase: Phase = Phase.MEASURING) -> Any:
    record = TrialRecord(
        "trial-1", 1, Configuration.of(max_num_seqs=16), Configuration.of(max_num_seqs=256), phase, 1.0, 0.0, 2,
        origin="a guess", message="measuring canary against control",
    )  # fmt: skip
    state = State(["vllm"], 2, {}, [record], before=figures(SPEC, OBSERVED))
    view = TargetView(Template.CANDIDATE, True, True, 2, False, (pod("r-1", ready=False, code=1),), (pod("r-0"),))
    return SimpleNamespace(state=state, seen=Seen(view=view, canary=OBSERVED, control=None))


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_log_gets_a_line_per_change() -> None:
    console, at = Console(file=io.StringIO(), width=200), loop()
    with Display(console, SPEC, "header") as display:
        for _ in range(3):
            display.tick(at)
    lines = shown(console).splitlines()
    assert lines[0] == "header" and len(lines) == 2
    assert "trial-1 Measuring: max_num_seqs=16: measuring canary against control" in lines[1]


def test_a_terminal_shows_replicas_and_trials() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with Display(console, SPEC, "header") as display:
        display.tick(loop())
    text = shown(console)
    assert "r-1 canary ended with 1" in text and "r-0 control ready" in text and "a guess" in text
    assert "canary goodput ? tok/s" in text and "control no data yet" in text


def test_the_end_tells_what_is_known_of_an_interrupted_run() -> None:
    console, state = Console(file=io.StringIO(), width=120), loop().state
    print_result(console, state, "vllm serve m", "The load sent 3 requests: 3 ok.")
    text = shown(console)
    assert "Trials" in text and "before" in text and "3 ok" in text and "Best command" not in text
    assert result_json(state, "vllm serve m", None)["trials"][0]["phase"] == "Measuring"


def test_the_best_command_line_is_paste_ready() -> None:
    console, state = Console(file=io.StringIO(), width=60), loop().state
    verdict = Verdict(Kind.BETTER, "GoodputBetter", "good", 0.5, 0.4, 0.6, 0.4)
    state.put(state.trials[0].to(Phase.PROMOTED, 2.0, "promoted", verdict=verdict))
    command = "vllm serve m " + " ".join(f"--flag-{i} {i}" for i in range(20))
    print_result(console, state, command, "")
    assert command in shown(console).splitlines()
    assert result_json(state, command, None)["best_gain"] == 0.5


def test_figures_are_per_replica_and_unknown_stays_unknown() -> None:
    seen = figures(SPEC, OBSERVED)
    assert seen is not None
    assert (seen["useful_tokens_per_second"], seen["preemptions_per_second"]) == (100.0, 2.0)
    assert seen["goodput_tokens_per_second"] is None and figures(SPEC, None) is None


def test_gains_beyond_all_measure_are_not_spelled_out() -> None:
    assert [gain_text(v) for v in (0.5, 33.0, -1.0, None)] == ["+50.0%", "over +900%", "-100.0%", ""]
