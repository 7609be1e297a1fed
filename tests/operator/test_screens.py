"""What a person sees of a tuner, in every state: safe or not, in one word; how to stop it; at every width."""

from __future__ import annotations

import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from trimtab_operator.plugin import live, show, terminal
from trimtab_operator.plugin.objects import tuners
from trimtab_operator.plugin.safety import URGENCY, safety
from trimtab_operator.plugin.terminal import LOOKS, Part, line, wrapped

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hack/docs"))
import screens

del sys.path[0]

ROOT = Path(__file__).resolve().parents[2]
#: what a person must be told first
SAFE = {
    "observing": "OK", "on-trial": "OK", "rolling-back": "OK", "converged": "OK", "cannot-help": "OK",
    "recommended": "OK", "asking": "ASKS", "unwatched": "LOOK", "degraded": "LOOK", "broken": "LOOK",
}  # fmt: skip
#: backgrounds that people have: white, black, a dark editor's, Solarized light and dark
PAPERS = ("#ffffff", "#000000", "#1e1e1e", "#fdf6e3", "#002b36")


def text(state: str, width: int | None) -> str:
    return terminal.shown(screens.lines(state, width), colour=False)


@pytest.mark.parametrize("state", screens.STATES)
def test_the_states_are_such_as_the_api_server_takes(state: str) -> None:
    for o in screens.STATES[state]():
        plural = {"VLLMTuner": "vllmtuners", "TuningTrial": "tuningtrials"}.get(o["kind"])
        if plural is not None:
            crd = yaml.safe_load((ROOT / f"crds/{plural}.trimtab.dev.yaml").read_text())
            schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            jsonschema.Draft4Validator(schema).validate(o)  # OpenAPI 3.0 has its exclusiveMinimum
            assert o["status"].keys() <= schema["properties"]["status"]["properties"].keys()


@pytest.mark.parametrize("state", screens.STATES)
def test_the_second_line_says_whether_it_is_safe(state: str) -> None:
    assert text(state, 80).splitlines()[1].startswith(f"[{SAFE[state]}] ")


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("state", ["fleet", *screens.STATES])
def test_no_line_is_longer_than_the_window_and_a_page_fits_24_lines(state: str, width: int) -> None:
    lines = text(state, width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 22  # two are the foot of `watch`


@pytest.mark.parametrize("state", screens.STATES)
def test_off_a_terminal_nothing_is_broken_or_cut(state: str) -> None:
    whole = text(state, None)
    assert "…" not in whole
    assert all(row[0] in "p[├└│" for row in whole.splitlines())  # no line that goes on from the one before


@pytest.mark.parametrize("state", sorted(set(screens.STATES) - {"recommended"}))
def test_the_last_line_says_how_to_stop_it(state: str) -> None:
    assert text(state, None).splitlines()[-1].startswith("└─ stop     kubectl trimtab ")


def test_a_canary_that_nobody_watches_is_told() -> None:
    shown = text("unwatched", None)
    assert "Nobody watches chat-3: the operator has not looked for 15m" in shown and "kubectl trimtab doctor" in shown
    (one,) = tuners(screens.on_trial())
    assert safety(one, screens.NOW + 100).word == "OK"  # within the gap and what a new process needs
    assert safety(one, screens.NOW + 130).word == "LOOK"


def test_a_pod_that_restarts_for_a_rollback_is_no_alarm_but_two_are() -> None:
    objects = screens.rolling_back()
    (one,) = tuners(objects, objects)
    assert safety(one, screens.NOW).word == "OK"
    deployment = next(o for o in objects if o["kind"] == "Deployment")
    deployment["status"]["readyReplicas"] = 10
    (two,) = tuners(objects, objects)
    assert safety(two, screens.NOW).word == "LOOK" and "2 of 12 pods are not ready" in safety(two, screens.NOW).text


def test_pods_that_may_not_be_seen_are_not_called_safe() -> None:
    (one,) = tuners(screens.observing(), problem="pods is forbidden")
    assert safety(one, screens.NOW).word == "UNKNOWN"


def test_a_switchback_says_what_all_pods_run() -> None:
    objects = screens.on_trial()
    objects[1]["spec"]["strategy"] = "Switchback"
    (one,) = tuners(objects, objects)
    assert "The pods run the settings tried" in safety(one, screens.NOW).text


def test_twelve_pods_are_two_lines() -> None:
    shown = text("on-trial", None)
    assert "canary pod chat-5f4876bbb9-6hm6h  ready" in shown and "control 11 pods  all ready" in shown


def test_those_that_need_somebody_come_first() -> None:
    words = [w for row in text("fleet", 200).splitlines()[1:] for w in URGENCY if f"[{w}]" in row]
    assert words == sorted(words, key=URGENCY.index) and len(words) == 6


@pytest.mark.parametrize("width", [80, 120, None])
def test_the_history_fits_the_window_and_leaves_nothing_out(width: int | None) -> None:
    (one,) = tuners(screens.converged())
    shown = terminal.shown(show.history(one, width), colour=False)
    assert width is None or max(map(len, shown.splitlines())) <= width
    for part in ("chat-3", "Promoted", "Better", "+18.3%", "GoodputBetter", "+9.1% to +28.0%", "max_num_seqs=96"):
        assert part in shown


def test_a_command_is_never_broken() -> None:
    command = "kubectl trimtab rollback chat -n a-long-name-of-a-namespace"
    broken = wrapped(line("stop ", Part(command, "command"), "  and some words"), 30)
    assert [Part(command, "command")] in broken


def _luminance(colour: str) -> float:
    """Of WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("look", LOOKS)
def test_every_colour_can_be_read_on_dark_and_on_light(look: str) -> None:
    ink, ground, bold = LOOKS[look]
    if ink is not None and ground is not None:
        assert _contrast(screens.colour(ink), screens.colour(ground)) >= 4.5
    elif ink is not None:
        assert bold or look == "dim"
        assert min(_contrast(screens.colour(ink), paper) for paper in PAPERS) >= 3.5


def test_watch_keeps_the_last_page_when_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "10")
    page = live._page("\n".join(f"row {i}" for i in range(30)), "gone", "foot")
    rows = page.split("\n")
    assert "row 0" in rows[0] and "more lines" in page and "Not seen now, this is older: gone" in page
    assert len(rows) == 10 and "foot" in rows[-1]


@pytest.mark.parametrize("name", screens.pictures())
def test_the_pictures_in_the_docs_are_what_is_shown(name: str) -> None:
    assert (screens.PICTURES / name).read_text() == screens.pictures()[name], "run: python hack/docs/screens.py"
