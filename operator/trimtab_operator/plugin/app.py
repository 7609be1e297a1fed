"""`kubectl trimtab VERB`: the verbs and their options. Everything heavy is loaded by the verb that needs it."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from trimtab import __version__
from trimtab.errors import InputError, TrimtabError
from trimtab_operator.plugin import actions, show
from trimtab_operator.plugin.kubectl import Access, Kubectl
from trimtab_operator.plugin.objects import Json, Tuner, table, text, trial, tuners
from trimtab_operator.plugin.terminal import Line, colourful, line, shown

TEXT, JSON, YAML = "text", "json", "yaml"

#: made here so that tests can put a recorded cluster in its place
connect: Callable[[Access], Kubectl] = Kubectl

_NAME: Final = click.argument("name", metavar="TUNER")
_MAYBE: Final = click.argument("name", metavar="[TUNER]", required=False)
_EVERYWHERE: Final = click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")
_OUTPUT: Final = click.option(
    "-o",
    "--output",
    type=click.Choice([TEXT, JSON, YAML]),
    default=TEXT,
    help="text is for people.",
)


def _cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Gives the verb its `api`, from the options that every verb has, as kubectl's own."""

    @functools.wraps(command)
    def called(namespace: str | None, context: str | None, kubeconfig: str | None, **given: Any) -> None:
        everywhere = bool(given.pop("all_namespaces", False))
        command(connect(Access(namespace, context, kubeconfig, everywhere)), **given)

    for option in (
        click.option("--kubeconfig", metavar="PATH", help="Path of the kubeconfig."),
        click.option("--context", metavar="NAME", help="Of the kubeconfig."),
        click.option("-n", "--namespace", metavar="NAME", help="Default: the context's own."),
    ):
        called = option(called)
    return called


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(version)s")
def app() -> None:
    """See and steer Trimtab's tuners, with kubectl's context and your own rights."""


def _print(data: Any, lines: Callable[[], Sequence[Line]], output: str) -> None:
    if output == TEXT:
        print(shown(lines(), colour=colourful()))
    elif output == JSON:
        print(json.dumps(data, indent=1))
    else:
        import yaml

        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")


def _width() -> int | None:
    """None where nothing is cut: off a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def look(api: Kubectl, name: str | None) -> list[Tuner]:
    """Tuners with trials and Deployments; for one, also its pods. Asked at the same time."""
    from concurrent.futures import ThreadPoolExecutor  # loads logging, which --help can do without

    with ThreadPoolExecutor(2) as pool:
        around = pool.submit(_around, api, "deployments" if name is None else "deployments,pods")
        objects = api.get(actions.KINDS)
        found, problem = around.result()
    if name is None:
        return tuners(objects, found, problem)
    named = [t for t in tuners(objects, found, problem) if name in (t.name, *(x.name for x in t.trials))]
    if not named:
        known = ", ".join(sorted({t.name for t in tuners(objects)})) or "none in this namespace"
        raise InputError("TUNER", f"there is no VLLMTuner {text(name, 80)}", f"VLLMTuners: {known}.")
    return named


def _around(api: Kubectl, kinds: str) -> tuple[list[Json], str]:
    """Deployments and pods, or why they cannot be seen: the tuner itself is still worth showing."""
    try:
        return api.get(kinds), ""
    except TrimtabError as error:
        return [], text(error, 160)


@app.command()
@_MAYBE
@_EVERYWHERE
@_OUTPUT
@_cluster
def status(api: Kubectl, name: str | None, output: str) -> None:
    """All tuners in a list; or one as a tree: target, pods, canary, trial, budget, why it waits, what to do next."""
    found = look(api, name)
    data = [t.to_json() for t in found]
    _print(data if name is None else data[0], lambda: _status(found, name, everywhere=api.access.everywhere), output)


def _status(found: Sequence[Tuner], name: str | None, *, everywhere: bool) -> list[Line]:
    now = time.time()
    if name is None:
        return show.fleet(found, now, _width(), namespaces=everywhere)
    return [row for t in found for row in show.tree(t, now, _width())]


@app.command()
@_MAYBE
@_EVERYWHERE
@click.option("--every", type=click.FloatRange(min=0.5), default=2.0, help="Seconds between two looks.")
@_cluster
def watch(api: Kubectl, name: str | None, every: float) -> None:
    """Status, live until Ctrl-C. Without a terminal: one line whenever something changes."""
    from trimtab_operator.plugin.live import follow

    everywhere = api.access.everywhere
    follow(lambda: look(api, name), lambda found: _status(found, name, everywhere=everywhere), every)


@app.command()
@_NAME
@_OUTPUT
@_cluster
def diff(api: Kubectl, name: str, output: str) -> None:
    """Each setting: as found, now, recommended, on trial; and the patch that applies what is recommended."""
    tuner, trials = actions.find(api, name)
    found = show.diff(tuner, trials)
    advice = table(table(tuner.get("status")).get("recommendation"))
    data = {"settings": found, "patch": str(advice.get("patch") or ""), "message": str(advice.get("message") or "")}

    def lines() -> list[Line]:
        out = show.diff_lines(found)
        if data["patch"]:
            out += [line(""), line(text(data["message"])), line(text(data["patch"], 20_000))]
        return out

    _print(data, lines, output)


@app.command()
@_NAME
@_cluster
def explain(api: Kubectl, name: str) -> None:
    """Findings in full: what was seen, what to do, what to leave alone; and every condition."""
    tuner, _ = actions.find(api, name)
    print(shown(show.explain(tuner), colour=colourful()))


@app.command()
@_NAME
@_OUTPUT
@_cluster
def history(api: Kubectl, name: str, output: str) -> None:
    """Every trial with verdict and interval; with a trial's name, its phases."""
    tuner, trials = actions.find(api, name)
    one = next((o for o in trials if table(o.get("metadata")).get("name") == name), None)
    (found,) = tuners([tuner, *trials])
    if one is None:
        _print(found.to_json()["trials"], lambda: show.history(found, _width()), output)
        return
    steps = actions.phases(one)
    data = [{"at": at, "phase": phase, "message": message} for at, phase, message in steps]
    _print(data, lambda: [line(f"{at}  {phase:<16}  {message}") for at, phase, message in steps], output)


@app.command()
@_NAME
@_cluster
def approve(api: Kubectl, name: str) -> None:
    """Let the trial that waits begin (mode Approve)."""
    from trimtab_operator.wishes import APPROVE_ANNOTATION

    told = actions.decide(api, name, APPROVE_ANNOTATION)
    print(f"Approved {told}. It starts with one canary; follow it: kubectl trimtab watch {name}")


@app.command()
@_NAME
@_cluster
def reject(api: Kubectl, name: str) -> None:
    """Refuse the trial that waits; its configuration is not proposed again."""
    from trimtab_operator.wishes import REJECT_ANNOTATION

    print(f"Rejected {actions.decide(api, name, REJECT_ANNOTATION)}.")


@app.command()
@_NAME
@_cluster
def pause(api: Kubectl, name: str) -> None:
    """Stop the tuner (spec.suspend). A trial in flight is rolled back at once."""
    changed, active = actions.suspend(api, name, True)
    rolled = f" {active.name} is rolled back." if active is not None else ""
    print(f"Paused {name}.{rolled}" if changed else f"{name} was paused already.")


@app.command()
@_NAME
@_cluster
def resume(api: Kubectl, name: str) -> None:
    """Let a paused tuner go on."""
    changed, _ = actions.suspend(api, name, False)
    print(f"{name} goes on." if changed else f"{name} was not paused.")


@app.command()
@_NAME
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--wait/--no-wait", default=True, help="Wait until a trial in flight has ended.")
@click.option("--timeout", type=click.FloatRange(min=0), default=600.0, help="Seconds to wait at most.")
@_cluster
def rollback(api: Kubectl, name: str, yes: bool, wait: bool, timeout: float) -> None:
    """End the trial in flight; or, where none is, restore the target to before the last trial that was kept.

    The tuner is paused by it: else it would try again.
    """
    tuner, trials = actions.find(api, name)
    own = str(table(tuner.get("metadata")).get("name"))
    active = next((trial(o) for o in trials if not trial(o).ended), None)
    if active is not None:
        _ask(yes, f"End {active.name} ({active.settings}), which is {active.phase}, and pause {own}?")
        actions.suspend(api, own, True)
        if wait:
            done = actions.wait_until_ended(api, active.name, timeout, print)
            print(f"{done.name} ended: {done.phase}. {done.message}")
    else:
        kept = actions.last_kept(trials)
        told = ", ".join(actions.changes(kept))
        target = str(table(table(tuner.get("spec")).get("targetRef")).get("name"))
        _ask(yes, f"Restart every pod of {target} as before {trial(kept).name} ({told}), and pause {own}?")
        actions.suspend(api, own, True)
        (deployment,) = api.get("deployments.apps", target)
        actions.restore(api, kept, deployment)
        print(f"{target} rolls back: {told}. Follow it: kubectl rollout status deployment/{target}")
    print(f"{own} is paused; to go on: kubectl trimtab resume {own}")


def _ask(yes: bool, question: str) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("--yes", "is needed where nobody can be asked", "Add --yes.")
    if not click.confirm(question):
        raise SystemExit(1)


@app.command()
@_NAME
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("trimtab-report.html"), help="The page.")
@click.option("--gpus", type=click.FloatRange(min=0), help="GPUs of one pod; default: its limits.")
@click.option("--gpu-price", type=click.FloatRange(min=0), help="Price of one GPU-hour, for money.")
@_cluster
def report(api: Kubectl, name: str, output: Path, gpus: float | None, gpu_price: float | None) -> None:
    """Write one HTML page: what was wrong, what changed, what it gained, how sure, what it cost."""
    from trimtab.report.html import Price, render, save
    from trimtab.report.read import read

    tuner, trials = actions.find(api, name)
    save(render(read({"kind": "List", "items": [tuner, *trials]}), Price(gpus, gpu_price)), output)
    print(f"Wrote {output}")


@app.command()
@_MAYBE
@_EVERYWHERE
@_OUTPUT
@_cluster
def doctor(api: Kubectl, name: str | None, output: str) -> None:
    """Check what must be right: versions, CRDs, the operator, rights, metrics, how the target's pods start and end.

    Exit code 1 where something is wrong.
    """
    from trimtab_operator.plugin import doctor as checks

    try:
        seen = [actions.find(api, name)[0]] if name is not None else api.get(actions.TUNERS)
    except TrimtabError:
        if name is not None:
            raise
        seen = []  # no CRDs: one of the checks says so
    found = checks.examine(api, seen)
    _print([c.to_json() for c in found], lambda: checks.lines(found), output)
    if any(c.state is checks.State.FAIL for c in found):
        raise SystemExit(1)


def main() -> None:
    """Entry point of kubectl-trimtab. Code 2 for bad input, 1 for anything else that went wrong."""
    try:
        app()
    except TrimtabError as error:
        print(f"error: {error.told}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except BrokenPipeError:
        sys.exit(0)  # `| head` has seen enough
