"""`trimtab sweep`: one worker of a simulated sweep that many processes or Kubernetes Jobs share through a database."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Annotated, Any, Final

import typer
from pydantic import TypeAdapter
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from trimtab import __version__
from trimtab.cli.console import report_console
from trimtab.cli.simulate import table
from trimtab.cli.simulation import SETTINGS, Asked, configurations, simulating
from trimtab.load.session import open_output
from trimtab.search.shared import Progress, SharedSweep
from trimtab.simulate.config import EngineConfig
from trimtab.simulate.summary import Figures, Study

#: a worker that is silent for a minute is dead: a beat every 20 s leaves room for a database that fails over
LEASE_SECONDS: Final = 60

StorageOption = Annotated[
    str,
    typer.Option(
        "--storage",
        envvar="TRIMTAB_STORAGE_URL",
        help="postgresql://USER:PASSWORD@HOST/DATABASE. Give it by the variable: command lines can be read by others.",
        show_envvar=True,
    ),
]
NameOption = Annotated[str, typer.Option("--study", help="The sweep's name in the database; the same for all workers.")]
LeaseOption = Annotated[int, typer.Option(help="Seconds of silence after which a worker's task is done by another.")]


@simulating
def sweep(
    asked: Asked,
    storage: StorageOption,
    study: NameOption,
    lease: LeaseOption = LEASE_SECONDS,
) -> None:
    """Simulate a grid of configurations together with other workers; start as many as you like, with equal options.

    Each configuration is simulated once; what a worker that dies had begun is done by another. Every worker ends when
    all are done and prints the same table; started again, it prints the table at once.

    Example: trimtab sweep --study a100 --blocks 27000 --set max_num_seqs=64,128,256 --trace azure:conv.csv
    """
    source = asked.source()
    configs = configurations(source.engine, asked.settings or [])
    simulated = Study(source.load, source.times, asked.limits())
    shared = SharedSweep(
        storage, study, [_settings(c) for c in configs], fingerprint(simulated, configs),
        lease_seconds=lease, worker=f"{socket.gethostname()}:{os.getpid()}",
    )  # fmt: skip
    # an evicted pod hands its task back instead of letting the lease run out
    signal.signal(signal.SIGTERM, _ended)
    _run(shared, simulated, configs, asked.json_file)


app = sweep


def fingerprint(study: Study, configs: Sequence[EngineConfig]) -> str:
    """Equal for workers that would get equal figures: load, step times, limits, configurations and version."""
    digest = hashlib.sha256(repr((__version__, study.times, study.limits, list(configs))).encode())
    for column in fields(study.load):
        digest.update(getattr(study.load, column.name).tobytes())
    return digest.hexdigest()[:32]


def _settings(config: EngineConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in SETTINGS}


def _ended(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _run(shared: SharedSweep, study: Study, configs: Sequence[EngineConfig], json_file: str | None) -> None:
    console = report_console(to_stderr=json_file == "-")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    def evaluate(task: int) -> tuple[float, str]:
        figures = study.figures(configs[task])
        return figures.goodput_tokens_per_second, json.dumps(asdict(figures))

    with open_output(json_file, "--json") as out:
        with ProgressBar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            shown = bar.add_task("all workers", total=len(configs))

            def on_progress(now: Progress) -> None:
                bar.update(shown, completed=now.done)

            rng = random.Random(os.getpid())
            here = shared.work(evaluate, wait=time.sleep, rng=rng, on_progress=on_progress)
        texts = shared.results()
        read = TypeAdapter(Figures)
        results = [read.validate_json(texts[i]) for i in range(len(configs)) if i in texts]
        results.sort(key=lambda r: -r.goodput_tokens_per_second)
        console.print(table(results))
        console.print(f"{here} of {len(results)} simulated by this worker.")
        lost = [configs[i] for i in range(len(configs)) if i not in texts]
        if lost:
            console.print(f"{len(lost)} ended their workers every time and have no result, such as {lost[0]}.")
        if out is not None:
            out.write(json.dumps({"results": [asdict(r) for r in results]}, indent=1) + "\n")
        if lost:
            raise typer.Exit(1)
