"""`trimtab report -f FILE`: what a tuner did, as one HTML page for people who were not there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.console import errors
from trimtab.cli.files import read_files
from trimtab.load.shape import require_positive

FileOption = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="FILE", show_default=False,
                 help="--state or --json of `trimtab tune`, or `kubectl get vllmtuners,tuningtrials -o json`, or -."),
]  # fmt: skip
OutOption = Annotated[Path, typer.Option("--output", "-o", help="The page to write.")]
TunerOption = Annotated[str | None, typer.Option(help="Which tuner, where the file holds several.")]
GpusOption = Annotated[float | None, typer.Option(help="GPUs of one replica, for GPU-hours.")]
PriceOption = Annotated[float | None, typer.Option("--gpu-price", help="Price of one GPU-hour, for money.")]
CurrencyOption = Annotated[str, typer.Option(help="What stands before an amount of money.")]


def report(
    file: FileOption = None,
    output: OutOption = Path("trimtab-report.html"),
    tuner: TunerOption = None,
    gpus: GpusOption = None,
    gpu_price: PriceOption = None,
    currency: CurrencyOption = "$",
) -> None:
    """Write one HTML page: what was wrong, what changed, what it gained, how sure that is, and what it cost.

    Example: kubectl get vllmtuners,tuningtrials -n prod -o json | trimtab report -f - -o report.html --gpu-price 2.5
    """
    with errors():
        from trimtab.errors import InputError
        from trimtab.report.html import Price, render, save
        from trimtab.report.read import parse

        for name, value in (("--gpus", gpus), ("--gpu-price", gpu_price)):
            require_positive(name, value)
        if file is None:
            raise InputError("--file", "is missing", "Name a file, or - for stdin.")
        (found,) = read_files([file], "--file")
        page = render(parse(found.text, found.name, tuner), Price(gpus, gpu_price, currency))
        save(page, output)
        typer.echo(f"Wrote {output}")


app = report
