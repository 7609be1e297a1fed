"""The `trimtab-operator` command: run the operator, roll back what is in flight before an uninstall, check access."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from trimtab import __version__
from trimtab.errors import TrimtabError
from trimtab.text import plain

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="The Kubernetes operator of Trimtab.",
    pretty_exceptions_enable=False,
)

Namespaces = Annotated[
    list[str] | None,
    typer.Option("--namespace", "-n", envvar="TRIMTAB_NAMESPACES", help="Watch this namespace; repeatable."),
]
Everywhere = Annotated[
    bool, typer.Option("--all-namespaces", "-A", envvar="TRIMTAB_ALL_NAMESPACES", help="Watch the whole cluster.")
]


class _JsonLines(logging.Formatter):
    """One JSON object per line. Text from outside (logs of a crashed pod, API messages) cannot break out of a JSON
    string.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": plain(record.getMessage(), _MOST_LOGGED, lines=True),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _TextLines(logging.Formatter):
    """One line per message: text from outside cannot begin a line of its own, nor draw on the terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = plain(record.message, _MOST_LOGGED)
        return super().formatMessage(record)


#: characters of one message in a log line
_MOST_LOGGED: Final = 10_000


def _log_to_stderr(style: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines() if style == "json" else _TextLines("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)


def _scope(namespaces: list[str] | None, everywhere: bool) -> list[str]:
    names = [n for entry in namespaces or [] for n in entry.split(",") if n]
    if everywhere == bool(names):
        raise typer.BadParameter("give either --all-namespaces or one or more --namespace")
    return names


@app.command()
def run(
    namespace: Namespaces = None,
    all_namespaces: Everywhere = False,
    lease_namespace: Annotated[
        str, typer.Option(envvar="TRIMTAB_LEASE_NAMESPACE", help="Namespace of the coordination Lease.")
    ] = "default",
    data_dir: Annotated[
        Path, typer.Option(envvar="TRIMTAB_DATA_DIR", help="Folder of the Optuna studies (memory, may be lost).")
    ] = Path("/data"),
    health_port: Annotated[int, typer.Option(envvar="TRIMTAB_HEALTH_PORT", help="Port of /healthz; 0: none.")] = 8080,
    metrics_port: Annotated[int, typer.Option(envvar="TRIMTAB_METRICS_PORT", help="Port of /metrics; 0: none.")] = 9090,
    log_format: Annotated[str, typer.Option(envvar="TRIMTAB_LOG_FORMAT", help="json or text.")] = "text",
    concurrent_trials: Annotated[
        int, typer.Option(envvar="TRIMTAB_CONCURRENT_TRIALS", min=0, help="Trials at the same time; 0: no limit.")
    ] = 0,
    restarts_per_namespace_per_day: Annotated[
        int,
        typer.Option(
            envvar="TRIMTAB_RESTARTS_PER_NAMESPACE_PER_DAY",
            min=0,
            help="Pods that trials of one namespace may restart in 24 h; 0: no limit.",
        ),
    ] = 0,
) -> None:
    """Watch VLLMTuners and tune their targets until stopped."""
    from trimtab.plan.budgets import Limits
    from trimtab_operator import app as operator

    _log_to_stderr(log_format)
    names = _scope(namespace, all_namespaces)
    limits = Limits(concurrent_trials, restarts_per_namespace_per_day)
    operator.run(operator.Options(names, lease_namespace, data_dir, health_port, metrics_port, limits))


@app.command()
def release(
    namespace: Namespaces = None,
    all_namespaces: Everywhere = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the rollbacks.")] = 300.0,
) -> None:
    """Suspend every VLLMTuner with a trial in flight and wait until it is rolled back: no target stays paused after
    an uninstall.
    """
    from trimtab_operator.cluster import Cluster
    from trimtab_operator.release import release_all

    _log_to_stderr("text")
    left = release_all(Cluster.connect(), _scope(namespace, all_namespaces), timeout, time.monotonic, time.sleep)
    if left:
        raise TrimtabError(
            f"still in flight after {timeout:.0f} s: {', '.join(left)}",
            hint="Look at: kubectl get tt -A; then run this again.",
        )


@app.command()
def check(namespace: Namespaces = None, all_namespaces: Everywhere = False) -> None:
    """Check that the API server answers, the CRDs are there and this account may read what it must."""
    from trimtab_operator.app import check_crds
    from trimtab_operator.cluster import Cluster

    cluster = Cluster.connect()
    check_crds(cluster)
    scopes: list[str | None] = [*_scope(namespace, all_namespaces)] or [None]
    for scope in scopes:
        for kind in ("VLLMTuner", "TuningTrial", "Deployment", "ReplicaSet", "Pod"):
            count = len(cluster.list(kind, scope))
            typer.echo(f"ok: {kind} in {scope or 'all namespaces'}: {count}")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit()


def main() -> None:
    """Entry point: Trimtab's own errors end with a message and a hint, not with a traceback."""
    try:
        app()
    except TrimtabError as error:
        typer.echo(f"error: {error}\n{error.hint}", err=True)
        sys.exit(1)
