"""The page itself: nothing from the file becomes markup, nothing is fetched, everybody can read it."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from pages import Page
from report_files import NOW, result, trial, verdict

from trimtab.engine.settings import Configuration
from trimtab.errors import InputError
from trimtab.judge.verdict import Kind
from trimtab.plan.record import Phase
from trimtab.report.html import Price, render, write_report
from trimtab.report.read import read

Json = dict[str, Any]
HOSTILE = (
    '"><script>alert(1)</script><img src=x onerror=alert(1)>${{7*7}} $\\frac{1}$ </style></title>]]> \u202e{{ 7*7 }}'
)


def page_of(data: Json, price: Price = Price()) -> Page:  # noqa: B008, it is frozen
    return Page(render(read(data), price))


def test_hostile_texts_stay_texts() -> None:
    finding = {"cause": HOSTILE, "severity": HOSTILE, "message": HOSTILE, "advice": HOSTILE, "avoid": HOSTILE,
               "confidence": 0.9, "tunable": False, "evidence": {HOSTILE: 1.0}}  # fmt: skip
    bad = trial(1, found=verdict(Kind.BETTER, 0.4, reason=HOSTILE, message=HOSTILE), origin=HOSTILE, change=HOSTILE,
                message=HOSTILE, confirm_from=NOW)  # fmt: skip
    data = result(bad, trial(2, Phase.MEASURING, change=HOSTILE, finished_at=None), command=HOSTILE, given=HOSTILE,
                  findings=[finding, {**finding, "tunable": True}])  # fmt: skip
    page = page_of(data)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "iframe", "object", "embed", "link", "base"})
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert page.text.count("<script>alert(1)</script>") >= 8 and "49" not in re.sub(r"\d{3,}", "", page.text)
    assert page.open_ == []


def test_nothing_is_fetched(text: str) -> None:
    page = Page(text)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert page.all("src") == [] and all(link.startswith("#") for link in page.all("href") + page.all("xlink:href"))
    assert re.findall(r"@import|url\((?!#)", text) == []
    outside = {u for u in re.findall(r"https?://[^\s\"'<)]+", text) if "www.w3.org" not in u}
    assert outside == set()


def test_ids_are_unique_and_every_reference_finds_one(text: str) -> None:
    page = Page(text)
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    wanted = page.all("aria-labelledby") + [link[1:] for link in page.all("xlink:href")]
    assert set(wanted + re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_a_screen_reader_gets_headings_in_order_and_words_for_pictures(text: str) -> None:
    page = Page(text)
    assert page.levels[0] == 1 and page.levels.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(page.levels, page.levels[1:], strict=False))
    pictures = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(pictures) >= 6  # three, each wide and narrow
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in pictures)
    assert "trial 1 +120.0%" in pictures[2]["aria-label"]
    assert next(a for tag, a in page.tags if tag == "html")["lang"] == "en"
    assert all("scope" in a for tag, a in page.tags if tag == "th")


def test_pictures_take_the_pages_colours(text: str) -> None:
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--canary)" in drawn and "var(--control)" in drawn and "var(--text)" in drawn
    assert re.findall(r"#[0-9a-fA-F]{6}", drawn) == [] and "DejaVu" not in drawn


def contrast(first: str, second: str) -> float:
    """WCAG 2.2: relative luminance."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(first), light(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["light", "dark", "print"])
def test_every_colour_stands_out(mode: int) -> None:
    """4.5 for text (WCAG AA), on the page, on a card and on code."""
    css = files("trimtab.report").joinpath("page.css").read_text()
    block = re.findall(r":root\{([^}]*)\}", css)[mode]
    colours = dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", re.sub(r"#([0-9a-f])([0-9a-f])([0-9a-f])\b(?![0-9a-f])",
                                                                 r"#\1\1\2\2\3\3", block)))  # fmt: skip
    for name in ("text", "muted", "better", "worse", "same", "canary", "control", "limit", "bar"):
        for ground in ("page", "card"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["text"], colours["code"]) >= 4.5


def test_same_report_same_bytes(kept: Json, text: str) -> None:
    assert render(read(kept)) == text


def test_without_matplotlib_the_page_says_so(kept: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.report.charts.available", lambda: False)
    page = page_of(kept)
    assert "trimtab[plot]" in page.text and "+120.0%" in page.text
    assert not [tag for tag, _ in page.tags if tag == "svg"]


def test_it_is_written_whole_or_not_at_all(kept: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.report.charts.available", lambda: False)
    path = tmp_path / "r.html"
    write_report(kept, path)
    assert path.read_text().startswith("<!doctype html>") and [p.name for p in tmp_path.iterdir()] == ["r.html"]
    with pytest.raises(InputError, match=r"r\.html cannot be written"):
        write_report(kept, tmp_path / "absent" / "r.html")


def test_the_kept_settings_and_figures_are_told(text: str) -> None:
    text = " ".join(Page(text).text.split())
    assert "+120% goodput (interval +110% to +130%), by --enable-prefix-caching and --max-num-seqs 32." in text
    assert "As found: 66% of requests were inside the SLO; 1 of 100 waited 4.8 s or more for the first token" in text
    assert "--max-num-seqs 256 32" in text and "--enable-prefix-caching false true" in text
    assert "Goodput, tokens/s per replica 100 220 +120.0% better" in text
    assert "measured a second time" in text and "▼ worse" in text and "✓ kept" in text


def test_settings_are_shared_out_only_with_enough_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.report.charts.available", lambda: False)
    few = " ".join(page_of(result(trial(1, found=verdict(Kind.BETTER, 0.4)))).text.split())
    assert "1 trial was measured; below 5 a share per setting says nothing." in few
    scores = [(8, True, 0.5), (16, False, 0.48), (32, True, 0.1), (64, False, 0), (128, True, -0.3), (200, False, -0.4)]
    many = result(*(
        trial(i, Phase.ROLLED_BACK, verdict(Kind.INCONCLUSIVE, gain),
              configuration=Configuration.of(max_num_seqs=seqs, enable_prefix_caching=on))
        for i, (seqs, on, gain) in enumerate(scores, start=1)
    ))  # fmt: skip
    text = " ".join(page_of(many).text.split())
    shares = {n: int(s) for n, s in re.findall(r"(max_num_seqs|enable_prefix_caching) (\d+)%", text)}
    assert shares["max_num_seqs"] > shares["enable_prefix_caching"] and sum(shares.values()) in (99, 100, 101)


SPREAD = {"ttft": [[0.1, 0.2], [0.5, 0.6], [2.5, 1.0]], "tpot": [[0.01, 0.1], [0.05, 1.0]]}


def test_the_distributions_are_drawn_where_both_are_known(kept: Json) -> None:
    later = {"ttft": [[0.1, 0.7], [0.5, 0.95], [2.5, 1.0]], "tpot": [[0.01, 0.5], [0.05, 1.0]]}
    data = {**kept, "before": {**kept["before"], "shares": SPREAD}, "after": {**kept["after"], "shares": later}}
    labels = [a["aria-label"] for tag, a in page_of(data).tags if tag == "svg"]
    (said, _) = [label for label in labels if label.startswith("All requests by latency")]
    assert "half of the requests by 0.5 before, 0.1 after; 9 of 10 by 2.5 before, 0.5 after" in said
    one_side = {**kept, "before": {**kept["before"], "shares": SPREAD}}
    assert "All requests by latency" not in render(read(one_side))


@pytest.mark.parametrize("bad", [[[2, 0.5], [1, 1.0]], [[1, 0.5]], "no", [[1, "x"], [2, 3]], [[1, 0.5], [2, 7]], None])
def test_a_distribution_that_is_none_is_left_out(kept: Json, bad: Any) -> None:
    data = {**kept, "before": {**kept["before"], "shares": {"ttft": bad}}}
    assert read(data).shares_before == {}


def test_what_scrolls_can_be_reached_by_the_keyboard(text: str) -> None:
    page = Page(text)
    scrollers = [a for _, a in page.tags if "scroll" in a.get("class", "").split()]
    assert len(scrollers) >= 4
    assert all(a["tabindex"] == "0" and a["role"] == "region" and a["aria-labelledby"] for a in scrollers)
    assert all(a["tabindex"] == "0" for tag, a in page.tags if tag == "pre")
