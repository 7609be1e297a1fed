"""`trimtab simulate`: one configuration or a grid on the scheduler model, for a profile, a trace or a load."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trimtab.cli.console import report_console
from trimtab.cli.load_options import ProcessesOption
from trimtab.cli.plot import RUNS, Drawn, check_plot_file, write_plot
from trimtab.cli.simulation import SETTINGS, Asked, configurations, simulating
from trimtab.load.session import open_output
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.series import Series, series
from trimtab.simulate.summary import Figures, Quantiles, Study, sweep

PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", help="A picture: FILE.html, .svg or .png. KV use and more over time, goodput of a grid."),
]
SeriesOption = Annotated[
    bool, typer.Option("--series", help="Put KV use and more over time into the JSON, for the best few.")
]
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_SPARK_COLUMNS: Final = 72


@simulating
def simulate(
    asked: Asked,
    processes: ProcessesOption = None,
    with_series: SeriesOption = False,
    plot: PlotOption = None,
) -> None:
    """Simulate vLLM's scheduler to the step: goodput, latency, preemptions, KV use and waste of each configuration.

    Example: trimtab simulate --profile target.json --set max_num_seqs=32,64,128 --slo-ttft 2 --plot grid.html
    """
    check_plot_file(plot)
    source = asked.source()
    configs = configurations(source.engine, asked.settings or [])
    study = Study(source.load, source.times, asked.limits())
    _report(study, configs, processes or os.cpu_count() or 1, Wanted(asked.json_file, with_series, plot))


app = simulate


class Wanted:
    """Where results go besides the terminal."""

    def __init__(self, json_file: str | None, with_series: bool, plot: Path | None) -> None:
        self.json_file, self.with_series, self.plot = json_file, with_series, plot


def _report(study: Study, configs: Sequence[EngineConfig], processes: int, wanted: Wanted) -> None:
    console = report_console(to_stderr=wanted.json_file == "-")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with open_output(wanted.json_file, "--json") as out:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("virtual time", total=len(configs))
            results = sweep(study, configs, processes=processes, on_result=lambda: progress.advance(task))
        results.sort(key=lambda r: -r.goodput_tokens_per_second)
        names = names_of(results)
        count = RUNS if wanted.plot is not None or wanted.with_series else 1
        shown = distinct(results)[:count]
        courses = [series(study.load, results[i].config, study.times) for i in shown]
        console.print(table(results))
        console.print(_kv_line(courses[0], names[0] if len(results) > 1 else ""))
        if wanted.plot is not None:
            drawn = [Drawn(names[i], results[i], course) for i, course in zip(shown, courses, strict=True)]
            write_plot(wanted.plot, _title(study), list(zip(names, results, strict=True)), drawn)
            console.print(f"Picture: {wanted.plot}", highlight=False, markup=False)
        if out is not None:
            rows: list[dict[str, Any]] = [asdict(r) for r in results]
            for i, course in zip(shown, courses, strict=True):
                rows[i] |= {"series": course.to_dict()} if wanted.with_series else {}
            out.write(json.dumps({"results": rows}, indent=1) + "\n")


def distinct(results: Sequence[Figures]) -> list[int]:
    """Places of the results that differ in more than their settings: equal courses hide each other in a picture."""
    return list({r.counters: i for i, r in reversed(list(enumerate(results)))}.values())[::-1]


def _title(study: Study) -> str:
    load = study.load
    span = float(load.arrival[-1] - load.arrival[0]) if len(load) else 0.0
    return f"trimtab simulate: {len(load)} requests in {span:.0f} s"


def _kv_line(course: Series, name: str) -> str:
    """KV use over the run as one line of blocks."""
    usage = course.kv_usage
    if not len(usage):
        return ""
    width = min(_SPARK_COLUMNS, len(usage))
    edges = [round(i * len(usage) / width) for i in range(width + 1)]
    cells = [float(usage[a:b].mean()) for a, b in itertools.pairwise(edges)]
    line = "".join(_SPARKS[min(len(_SPARKS) - 1, int(v * len(_SPARKS)))] for v in cells)
    of = f" of {name}" if name else ""
    return f"KV use over {course.at_seconds[-1]:.0f} s{of} (full block: 88% and more)\n{line}"


def names_of(results: Sequence[Figures]) -> list[str]:
    """Each configuration by the settings that differ."""
    differing = _differing(results)
    return [", ".join(f"{n}={_plain(r, n)}" for n in differing) or "as given" for r in results]


def _differing(results: Sequence[Figures]) -> list[str]:
    return [n for n in SETTINGS if len({getattr(r.config, n) for r in results}) > 1]


def _plain(result: Figures, name: str) -> str:
    return str(getattr(result.config, name)).lower()


def table(results: Sequence[Figures]) -> Table:
    """Best first. Settings that do not differ and figures that are zero everywhere get no column."""
    shown = Table(title=f"{len(results)} configurations, best goodput first", title_justify="left", padding=(0, 0))
    columns = {name: [_plain(r, name) for r in results] for name in _differing(results)}
    figures = [_figures(r) for r in results]
    for name in figures[0]:
        values = [row[name] for row in figures]
        if name not in _OFTEN_ZERO or set(values) - {"0", "0%"}:
            columns[name] = values
    for name in columns:
        # a line per word: columns as narrow as their values
        shown.add_column(name.replace("_", " ").replace(" ", "\n"), justify="right", overflow="fold")
    for row in zip(*columns.values(), strict=True):
        shown.add_row(*row)
    return shown


_OFTEN_ZERO: Final = {"preempted", "unused KV", "wasted tok", "not served"}


def _figures(r: Figures) -> dict[str, str]:
    c = r.counters
    return {
        "goodput tok/s": f"{r.goodput_tokens_per_second:.0f}",
        "in SLO": "-" if r.slo_attainment is None else f"{r.slo_attainment:.0%}",
        "TTFT p50/p99 s": _pair(r.ttft, 2),
        "TPOT p50/p99 s": _pair(r.tpot, 3),
        "E2E p50/p99 s": _pair(r.e2e, 1),
        "KV mean/max": f"{c.mean_kv_usage:.0%}/{c.peak_kv_usage:.0%}",
        "preempted": str(c.preemptions),
        "unused KV": f"{c.mean_unused_share:.0%}",
        "wasted tok": str(r.wasted_tokens),
        "not served": str(sum(r.endings.get(name, 0) for name in ("stuck", "rejected", "refused"))),
    }


def _pair(q: Quantiles, digits: int) -> str:
    return "-" if q.p50 is None or q.p99 is None else f"{q.p50:.{digits}f}/{q.p99:.{digits}f}"
