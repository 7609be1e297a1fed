"""Writes the tables of docs/metrics.md from trimtab/engine/metrics.toml and from what an Observation reads.

python hack/engine/metric_page.py        rewrites the page between its markers; a test asks for it
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from trimtab.engine.metric_table import METRICS, OTHERS, READ, Metric, metric_of, version_text
from trimtab.observe.metrics import sources
from trimtab.observe.observation import Observation

PAGE = Path(__file__).resolve().parents[2] / "docs/metrics.md"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join([_row(head), "|" + "---|" * len(head), *map(_row, rows)])


def _versions(metric: Metric) -> str:
    shown = [f"{engine} {span}" for engine, span in metric.shown.items()]
    return ", ".join([*shown, *(f"{engine} hidden {span}" for engine, span in metric.hidden.items())])


def _metric(metric: Metric) -> list[str]:
    names = f"`{metric.name}`" + "".join(f" {{{label}}}" for label in metric.labels if metric.kind != "info")
    renamed = f"now `{metric.renamed_to}`. " if metric.renamed_to else ""
    when = f" Only there: {metric.when}." if metric.when else ""
    cannot = f" Cannot tell {metric.cannot_tell}." if metric.cannot_tell else ""
    return [names, metric.kind, metric.unit, _versions(metric), f"{renamed}Tells {metric.tells}.{cannot}{when}"]


def _field(name: str) -> list[str]:
    found = dict.fromkeys(m for series in sources(name) if (m := metric_of(series)) is not None)
    since = version_text(min(m.since for m in found))
    return [f"`{name}`", ", else ".join(f"`{m.name}`" for m in found), since]


def metrics_table() -> str:
    """Every metric of the table."""
    return _table(["metric", "kind", "unit", "versions", "what it tells"], [_metric(m) for m in METRICS.values()])


def fields_table() -> str:
    """Every field of an Observation that is read."""
    names = [f.name for f in fields(Observation) if f.name not in ("pods", "window_seconds")]
    return _table(["field", "read from", "since"], [_field(n) for n in names])


def others_table() -> str:
    """Families that are not read."""
    return _table(["names begin with", "about"], [[f"`{prefix}`", about] for prefix, about in OTHERS.items()])


def render(page: str) -> str:
    """The page with its three tables anew. Raises ValueError when a marker is missing."""
    versions = f"{version_text(READ[0])} to {version_text(READ[-1])}, {len(READ)} of them"
    for marker, table in (
        ("fields", fields_table()), ("metrics", metrics_table()), ("others", others_table()), ("versions", versions)
    ):  # fmt: skip
        begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
