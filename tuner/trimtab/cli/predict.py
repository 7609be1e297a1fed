"""`trimtab predict`: learn output lengths from the middleware's log, test the result, export it for the engine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from trimtab.errors import InputError, TrimtabError
from trimtab.predict.evaluate import NoBetter, Report, evaluate
from trimtab.predict.fitted import read, to_bytes, write
from trimtab.predict.network import Recipe, torch_module
from trimtab.predict.pipeline import learn
from trimtab.predict.samples import endings_of, read_samples

#: exit status of `train` and `evaluate` when the percentile policy does as well
NO_BETTER: Final = 3

SourceArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", help="The middleware's log (FILE, may be .gz), azure:FILE or mooncake:FILE.")
]
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A file that `train` wrote.")]
OutputOption = Annotated[Path, typer.Option("--output", "-o", help="Where the predictor is written.")]
SeedOption = Annotated[int, typer.Option(help="Same seed, same predictor.")]
EpochsOption = Annotated[int, typer.Option(min=1, help="At most this many passes; it stops early.")]
BucketsOption = Annotated[int, typer.Option(min=1, help="Buckets that hashed n-grams fall into.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The figures as JSON on stdout.")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True, help=__doc__)


@app.command()
def train(
    source: SourceArgument,
    output: OutputOption = Path("predictor.json"),
    seed: SeedOption = 0,
    epochs: EpochsOption = Recipe.epochs,
    buckets: BucketsOption = Recipe.buckets,
    as_json: JsonOption = False,
) -> None:
    """Learn quantiles of the output length, calibrate and test them on later requests, and write the file.

    Exit status 3, and no file, when that does no better than the percentile policy.

    Example: trimtab predict train lengths.jsonl -o predictor.json
    """
    torch_module()
    console = Console(stderr=as_json)
    recipe = Recipe(seed=seed, epochs=epochs, buckets=buckets)
    started = time.monotonic()
    samples = read_samples(source, recipe.buckets, recipe.max_hashes)
    console.print(f"{len(samples)} requests: {_endings(endings_of(samples))}", highlight=False)
    with console.status("learning") as status:
        outcome = learn(samples, recipe, lambda epoch, loss: status.update(f"epoch {epoch}: loss {loss:.4f}"))
    seconds = time.monotonic() - started
    _show(console, outcome.report, as_json)
    if outcome.fitted.open_levels:
        hidden = ", ".join(f"p{100 * q:g}" for q in outcome.fitted.open_levels)
        console.print(f"Limits of the requests hide {hidden}: take it as a lower bound, or raise the limits.")
    outcome.report.require_better()  # else nothing is written
    data = to_bytes(outcome.fitted, outcome.summary)
    write(output, data)
    done = f"{output}: {len(data) / 1000:.0f} kB, {outcome.summary['epochs']} epochs, {seconds:.0f} s"
    console.print(done, highlight=False)


@app.command("evaluate")
def evaluate_(model: ModelArgument, source: SourceArgument, as_json: JsonOption = False) -> None:
    """Compare a predictor with the percentile policy it was trained beside, on all requests of a source.

    Exit status 3 when it does no better. Example: trimtab predict evaluate predictor.json today.jsonl
    """
    fitted, summary = read(model)
    samples = read_samples(source, fitted.buckets, fitted.max_hashes)
    report = evaluate(samples, fitted.tokens(samples), _baseline(model, fitted.levels, summary), fitted.levels)
    _show(Console(stderr=as_json), report, as_json)
    report.require_better()


def _baseline(model: Path, levels: tuple[float, ...], summary: Mapping[str, Any]) -> Any:
    known = summary.get("percentiles")
    if not isinstance(known, list) or len(known) != len(levels):
        raise InputError("MODEL", f"{model}: its summary holds no percentiles", "Train it again.")
    return np.array(known, dtype=float)


@app.command()
def show(model: ModelArgument) -> None:
    """Print what a predictor was made from and how it did."""
    _, summary = read(model)
    print(json.dumps(summary, indent=1))


def _endings(counts: Mapping[str, int]) -> str:
    words = {"stop": "ended by themselves", "length": "cut by their limit", "left": "left by their client"}
    return ", ".join(f"{counts[k]} {words[k]}" for k in words if k in counts)


def _show(console: Console, report: Report, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.as_json(), indent=1))
        return
    table = Table(title=f"{report.requests} requests to test on; loss in tokens a request", title_justify="left")
    for name in ("level", "loss", "percentile policy", "covers", "of short", "of long", "percentile covers",
                 "mean tokens", "percentile tokens"):  # fmt: skip
        table.add_column(name, justify="right")
    for r in report.levels:
        table.add_row(
            f"p{100 * r.level:g}", f"{r.loss:.1f}", f"{r.percentile_loss:.1f}", f"{r.coverage:.1%}",
            f"{r.coverage_short:.1%}", f"{r.coverage_long:.1%}", f"{r.percentile_coverage:.1%}",
            f"{r.mean_tokens:.0f}", f"{r.percentile_tokens:.0f}",
        )  # fmt: skip
    console.print(table)
    interval = f"{report.skill_low:.1%} to {report.skill_high:.1%}"
    console.print(f"Loss saved against the percentile policy: {report.skill:.1%} ({interval})", highlight=False)


def run(args: list[str]) -> None:
    """Trimtab's own errors end with a message and a hint; NO_BETTER where the predictor is refused."""
    try:
        app(args=args, prog_name="trimtab predict")
    except TrimtabError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint not in str(error):
            print(error.hint, file=sys.stderr)
        raise SystemExit(NO_BETTER if isinstance(error, NoBetter) else 1) from None
