"""What the page says: the headline, how sure it is, what it cost, what random search would have found."""

from __future__ import annotations

import math
from typing import Any

import pytest
from report_files import NOW, result, trial, verdict
from typer.testing import CliRunner

from trimtab.engine.settings import Configuration
from trimtab.judge.verdict import Kind
from trimtab.plan.record import Phase
from trimtab.report import control, costs, words
from trimtab.report.costs import Price
from trimtab.report.read import read
from trimtab.report.story import simulated_gain
from trimtab.search.prospects import Prospect

WORSE = trial(1, Phase.ROLLED_BACK, verdict(Kind.WORSE, -0.2))


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        ([], "Nothing was tried yet"),
        ([trial(1, Phase.MEASURING, finished_at=None)], "The first trial is still running"),
        ([WORSE], "Nothing better was found in 1 trial; everything is as it was"),
        ([trial(1, Phase.CANCELLED)], "No trial could be measured; the configuration stays as it was found"),
        ([trial(1, found=verdict(Kind.BETTER, 0.01, reason="LatencyBetter"))],
         "Lower latency at equal goodput (TTFT -50.0%), by enable_prefix_caching = true, max_num_seqs = 32"),
        ([trial(1, found=verdict(Kind.BETTER, 30.0))],
         "over ten times the goodput (interval +2990% to +3010%), by --enable-prefix-caching and --max-num-seqs 32"),
    ],
)  # fmt: skip
def test_the_headline(trials: list[Any], said: str) -> None:
    assert words.headline(read(result(*trials))) == said


def test_two_promotions_are_one_chained_gain() -> None:
    first = trial(1, found=verdict(Kind.BETTER, 0.5))
    second = trial(2, found=verdict(Kind.BETTER, 0.2), baseline=first.configuration,
                   configuration=Configuration.of(max_num_seqs=48, enable_prefix_caching=True))  # fmt: skip
    found = read(result(first, second))
    assert words.headline(found) == "+80% goodput, by --enable-prefix-caching and --max-num-seqs 48"
    assert [t for t in words.sure(found) if t.startswith("Trial 2: +20.0% (+10.0% to +30.0%) over 8 windows")]


def test_a_confirmed_trial_says_so_and_an_unconfirmed_one_does_not() -> None:
    for confirmed in (None, NOW):
        said = words.sure(read(result(trial(1, found=verdict(Kind.BETTER, 0.5), confirm_from=confirmed))))
        assert any("second time" in s for s in said) is (confirmed is not None)


def test_costs_with_gpus_and_price() -> None:
    found = read(
        result(trial(1, found=verdict(Kind.BETTER, 1.0)), trial(2, Phase.ROLLED_BACK, verdict(Kind.WORSE, -0.1)))
    )
    lines = {line.name: line.value for line in costs.cost_lines(found, Price(gpus=2, per_hour=3.0))}
    # two trials of 240 s on one replica of 2 GPUs
    assert lines == {"Restarts": "4", "Time with a canary": "8.0 min", "Time on worse settings": "4.0 min",
                     "GPU-hours on canaries": "0.27", "Money on canaries": "$0.80"}  # fmt: skip
    assert costs.waste_lines(found, Price(gpus=2, per_hour=3.0)) == [
        ("Generated tokens that nobody received", "25.0%", "10.0%"),
        ("... in tokens per hour, whole target", "360,000", "144,000"),
        ("... in GPU-hours per day", "24.0", "9.6"),
        ("... in money per day", "$72.00", "$28.80"),
    ]
    assert "50% less engine time" in costs.saved(found, Price()) and "48.0 GPU-hours" in costs.saved(
        found, Price(gpus=2)
    )


def test_costs_without_gpus_are_not_known() -> None:
    lines = costs.cost_lines(read(result(WORSE)), Price(per_hour=3.0))
    assert (lines[-1].name, lines[-1].value) == ("GPU-hours on canaries", "not known")


def test_waste_is_unknown_without_both_counts() -> None:
    found = read(result(WORSE, before={"useful_tokens_per_second": 5.0}, after=None))
    assert costs.waste_lines(found, Price()) == []


def test_random_search_stands_beside_the_gain_or_is_not_known() -> None:
    kept = trial(1, found=verdict(Kind.BETTER, 0.4))
    assert "not known" in control.beside(read(result(kept)))
    screen = [{"configuration": {"max_num_seqs": n}, "predicted_gain": g} for n, g in ((8, -0.2), (16, 0.4), (32, 0.1))]
    said = control.beside(read(result(kept, screen=screen)))
    # one of three: 0 (it keeps what ran), 0.4, 0.1
    assert "1 of 3 configurations would have gained +16.7% on average" in said and said.endswith("in 33% of cases.")


@pytest.mark.parametrize(("log", "share"), [(math.log(1.12), 0.12), (math.log(0.7), -0.3), (math.log(5), 4.0)])
def test_a_trials_origin_tells_what_was_simulated(log: float, share: float) -> None:
    forecast = Prospect(Configuration.of(max_num_seqs=8), log, 0.05, log, 1.0, 0.1, 0.0, simulated=True)
    assert simulated_gain(trial(1, origin=f"{forecast}, after 2 trials")) == pytest.approx(share)
    assert simulated_gain(trial(1)) is None


def test_findings_that_no_setting_mends_are_told_apart() -> None:
    rows = [{"cause": "A", "tunable": True, "role": "main", "message": "m"}, {"cause": "B", "tunable": False},
            {"name": "C"}]  # fmt: skip
    found = read(result(findings=rows)).findings
    assert [f.name for f in words.helpless(found)] == ["B"]
    main = words.main_cause(found)
    assert main is not None and main.name == "A"


def test_what_a_trial_came_to_is_told_without_colour() -> None:
    shown = [words.outcome(t)[0] for t in (
        trial(1), WORSE, trial(3, Phase.ROLLED_BACK, verdict(Kind.ERROR, None)), trial(4, Phase.CANCELLED),
        trial(5, Phase.ROLLED_BACK, verdict(Kind.INCONCLUSIVE, 0.0)), trial(6, Phase.WARMING_UP),
        trial(7, Phase.ROLLED_BACK, verdict(Kind.BETTER, 0.2, reason="Reverted")),
    )]  # fmt: skip
    assert shown == ["✓ kept", "▼ worse", "✕ failed", "– not tried to the end", "= unclear", "… WarmingUp",
                     "– not tried to the end"]  # fmt: skip


def test_the_command(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    import typer

    from trimtab.cli.report import report

    monkeypatch.setattr("trimtab.report.charts.available", lambda: False)
    app = typer.Typer()
    app.command()(report)
    file, page = tmp_path / "t.json", tmp_path / "r.html"
    file.write_text(json.dumps(result(WORSE)))
    run = CliRunner().invoke
    done = run(app, ["-f", str(file), "-o", str(page), "--gpus", "2", "--gpu-price", "3", "--currency", "€"])
    assert done.exit_code == 0 and "at €3 per GPU-hour" in page.read_text()
    assert run(app, []).exit_code == 2
    assert run(app, ["-f", str(file), "--gpus", "-1"]).exit_code == 2
    assert run(app, ["-f", str(tmp_path / "none")]).exit_code == 2
