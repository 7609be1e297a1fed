"""`trimtab COMMAND ...`: a table from command to module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from trimtab import __version__

#: command -> (module, one line of help). A module has `app`, a function that typer makes a command of, or `run(args)`.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "tune": ("trimtab.cli.tune", "Tune a vLLM on this machine, no Kubernetes: trimtab tune -- vllm serve MODEL ..."),
    "load": ("trimtab.cli.load", "Replay a trace or a generated load against a server and say what users got."),
    "emulate": (
        "trimtab.cli.emulate",
        "Serve like vLLM without a GPU: same flags, API and metrics, a modelled scheduler.",
    ),
    "predict": ("trimtab.cli.predict", "Learn output lengths, test and export a predictor: train, evaluate, show."),
    "rewrite": ("trimtab.cli.rewrite", "Change vLLM's settings in manifests; every other byte stays."),
    "diagnose": (
        "trimtab.cli.diagnose",
        "Tell what holds an engine back, from a report, /metrics or Prometheus; changes nothing.",
    ),
    "lint": ("trimtab.cli.lint", "Find known traps in manifests of vLLM, with an exit code for CI, SARIF or JSON."),
    "calibrate": (
        "trimtab.cli.calibrate",
        "Learn an engine's load and step times from its metrics or a request log, for simulate.",
    ),
    "simulate": ("trimtab.cli.simulate", "Simulate the scheduler to the step: what settings or a grid of them give."),
    "sweep": ("trimtab.cli.sweep", "One of many workers that share a simulated sweep through a database."),
    "explain": ("trimtab.cli.explain", "Say what each setting would change and which resource binds, by simulation."),
    "report": (
        "trimtab.cli.report",
        "Write one HTML page of what a tuner did: what changed, what it gained, how sure, what it cost.",
    ),
    "dashboard": ("trimtab.cli.dashboard", "Show the operator's searches in a browser (optuna-dashboard), read-only."),
    "kv": ("trimtab.cli.kv", "KV-cache blocks and bytes: what a block weighs, what requests reserve, use and waste."),
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(["usage: trimtab COMMAND [OPTIONS]", "", "Keeps vLLM deployments well tuned.", "", *lines, "",
                      "  --version  Print the version.", "  trimtab COMMAND --help tells more."])  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return
    if args[0] == "--version":
        print(f"trimtab {__version__}")
        return
    if args[0] not in COMMANDS:
        print(f"trimtab: no command {args[0]!r}. Try: trimtab --help", file=sys.stderr)
        raise SystemExit(2)
    module: Any = importlib.import_module(COMMANDS[args[0]][0])
    run: Callable[[list[str]], None] | None = getattr(module, "run", None)
    if run is not None:
        run(args[1:])
        return
    _typer(module, args)


def _typer(module: Any, args: list[str]) -> None:
    """A function as a typer command; Trimtab's own errors end with a message and a hint instead of a traceback."""
    import typer

    from trimtab.errors import TrimtabError

    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command()(module.app)
    try:
        command(args=args[1:], prog_name=f"trimtab {args[0]}")
    except TrimtabError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint not in str(error):
            print(error.hint, file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
