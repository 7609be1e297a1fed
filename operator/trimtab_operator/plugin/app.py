"""`kubectl trimtab VERB`: the verbs and their options. Everything heavy is loaded by the verb that needs it."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from trimtab.errors import InputError, TrimtabError
from trimtab_operator.plugin import actions, show
from trimtab_operator.plugin.kubectl import Access, Kubectl
from trimtab_operator.plugin.objects import Json, Tuner, table, text, trial, tuners
from trimtab_operator.plugin.terminal import Line, colourful, line, shown

app = typer.Typer(
    name="kubectl trimtab", no_args_is_help=True, add_completion=False, rich_markup_mode=None,
    pretty_exceptions_enable=False, help="See and steer Trimtab's tuners. Uses kubectl's context and rights.",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


NameArgument = Annotated[str, typer.Argument(metavar="TUNER", help="A VLLMTuner, or one of its TuningTrials.")]
MaybeName = Annotated[
    str | None, typer.Argument(metavar="TUNER", help="A VLLMTuner; all of them without.", show_default=False)
]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Default: the context's own.")]
EverywhereOption = Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")]
ContextOption = Annotated[str | None, typer.Option("--context", help="Of the kubeconfig.")]
ConfigOption = Annotated[str | None, typer.Option("--kubeconfig", help="Path of the kubeconfig.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text for people, json or yaml for programs.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
WaitOption = Annotated[bool, typer.Option(help="Wait until it is done.")]
TimeoutOption = Annotated[float, typer.Option(help="Seconds to wait at most.")]

#: made here so that tests can put a recorded cluster in its place
connect: Callable[[Access], Kubectl] = Kubectl


def _api(namespace: str | None, context: str | None, kubeconfig: str | None, everywhere: bool = False) -> Kubectl:
    return connect(Access(namespace, context, kubeconfig, everywhere))


def _print(data: Any, lines: Callable[[], Sequence[Line]], output: Output) -> None:
    if output is Output.TEXT:
        print(shown(lines(), colour=colourful()))
    elif output is Output.JSON:
        print(json.dumps(data, indent=1))
    else:
        import yaml

        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")


def _width() -> int | None:
    """None where nothing is cut: off a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def look(api: Kubectl, name: str | None) -> list[Tuner]:
    """Tuners with trials; for one, also its Deployment and pods, asked at the same time."""
    if name is None:
        return tuners(api.get(actions.KINDS))
    with ThreadPoolExecutor(2) as pool:
        around = pool.submit(_around, api)
        objects = api.get(actions.KINDS)
        found, problem = around.result()
    named = [t for t in tuners(objects, found, problem) if name in (t.name, *(x.name for x in t.trials))]
    if not named:
        known = ", ".join(sorted({t.name for t in tuners(objects)})) or "none in this namespace"
        raise InputError("TUNER", f"there is no VLLMTuner {text(name, 80)}", f"VLLMTuners: {known}.")
    return named


def _around(api: Kubectl) -> tuple[list[Json], str]:
    """Deployments and pods, or why they cannot be seen: the tuner itself is still worth showing."""
    try:
        return api.get("deployments,pods"), ""
    except TrimtabError as error:
        return [], text(error, 160)


@app.command()
def status(
    name: MaybeName = None, namespace: NamespaceOption = None, all_namespaces: EverywhereOption = False,
    output: OutputOption = Output.TEXT, context: ContextOption = None, kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """All tuners in a list; or one as a tree: target, pods, canary, trial, budget, why it waits, what to do next."""
    found = look(_api(namespace, context, kubeconfig, all_namespaces), name)
    data = [t.to_json() for t in found]
    _print(data if name is None else data[0], lambda: _status(found, name), output)


def _status(found: Sequence[Tuner], name: str | None) -> list[Line]:
    now = time.time()
    if name is None:
        return show.fleet(found, now, _width())
    return [row for t in found for row in show.tree(t, now)]


@app.command()
def watch(
    name: MaybeName = None, namespace: NamespaceOption = None, all_namespaces: EverywhereOption = False,
    context: ContextOption = None, kubeconfig: ConfigOption = None,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks.")] = 2.0,
) -> None:  # fmt: skip
    """Status, live until Ctrl-C. Without a terminal: one line whenever something changes."""
    from trimtab_operator.plugin.live import follow

    api = _api(namespace, context, kubeconfig, all_namespaces)
    follow(lambda: look(api, name), lambda found: _status(found, name), every)


@app.command()
def diff(
    name: NameArgument, namespace: NamespaceOption = None, output: OutputOption = Output.TEXT,
    context: ContextOption = None, kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """Each setting: as found, now, recommended, on trial; and the patch that applies what is recommended."""
    tuner, trials = actions.find(_api(namespace, context, kubeconfig), name)
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
def explain(
    name: NameArgument, namespace: NamespaceOption = None, context: ContextOption = None,
    kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """Findings in full: what was seen, what to do, what to leave alone; and every condition."""
    tuner, _ = actions.find(_api(namespace, context, kubeconfig), name)
    print(shown(show.explain(tuner), colour=colourful()))


@app.command()
def history(
    name: NameArgument, namespace: NamespaceOption = None, output: OutputOption = Output.TEXT,
    context: ContextOption = None, kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """Every trial with verdict and interval; with a trial's name, its phases."""
    tuner, trials = actions.find(_api(namespace, context, kubeconfig), name)
    one = next((o for o in trials if table(o.get("metadata")).get("name") == name), None)
    (found,) = tuners([tuner, *trials])
    if one is None:
        _print(found.to_json()["trials"], lambda: show.history(found, _width()), output)
        return
    steps = actions.phases(one)
    data = [{"at": at, "phase": phase, "message": message} for at, phase, message in steps]
    _print(data, lambda: [line(f"{at}  {phase:<16}  {message}") for at, phase, message in steps], output)


@app.command()
def approve(
    name: NameArgument, namespace: NamespaceOption = None, context: ContextOption = None,
    kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """Let the trial that waits begin (mode Approve)."""
    from trimtab_operator.wishes import APPROVE_ANNOTATION

    told = actions.decide(_api(namespace, context, kubeconfig), name, APPROVE_ANNOTATION)
    print(f"Approved {told}. It starts with one canary; follow it: kubectl trimtab watch {name}")


@app.command()
def reject(
    name: NameArgument, namespace: NamespaceOption = None, context: ContextOption = None,
    kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """Refuse the trial that waits; its configuration is not proposed again."""
    from trimtab_operator.wishes import REJECT_ANNOTATION

    print(f"Rejected {actions.decide(_api(namespace, context, kubeconfig), name, REJECT_ANNOTATION)}.")


@app.command()
def pause(
    name: NameArgument, namespace: NamespaceOption = None, context: ContextOption = None,
    kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """Stop the tuner (spec.suspend). A trial in flight is rolled back at once."""
    changed, active = actions.suspend(_api(namespace, context, kubeconfig), name, True)
    rolled = f" {active.name} is rolled back." if active is not None else ""
    print(f"Paused {name}.{rolled}" if changed else f"{name} was paused already.")


@app.command()
def resume(
    name: NameArgument, namespace: NamespaceOption = None, context: ContextOption = None,
    kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """Let a paused tuner go on."""
    changed, _ = actions.suspend(_api(namespace, context, kubeconfig), name, False)
    print(f"{name} goes on." if changed else f"{name} was not paused.")


@app.command()
def rollback(
    name: NameArgument, yes: YesOption = False, wait: WaitOption = True, timeout: TimeoutOption = 600.0,
    namespace: NamespaceOption = None, context: ContextOption = None, kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """End the trial in flight; or, where none is, restore the target to before the last trial that was kept.

    The tuner is paused by it: else it would try again.
    """
    api = _api(namespace, context, kubeconfig)
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
        _ask(
            yes,
            f"Restart every pod of {target} as before {trial(kept).name} ({told}), and pause {own}?",
        )
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
    if not typer.confirm(question):
        raise typer.Exit(1)


@app.command()
def report(
    name: NameArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("trimtab-report.html"),
    gpus: Annotated[float | None, typer.Option(min=0, help="GPUs of one pod; default: its limits.")] = None,
    gpu_price: Annotated[float | None, typer.Option(min=0, help="Price of one GPU-hour, for money.")] = None,
    namespace: NamespaceOption = None, context: ContextOption = None, kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """Write one HTML page: what was wrong, what changed, what it gained, how sure, what it cost."""
    from trimtab.report.html import Price, render, save
    from trimtab.report.read import read

    tuner, trials = actions.find(_api(namespace, context, kubeconfig), name)
    save(render(read({"kind": "List", "items": [tuner, *trials]}), Price(gpus, gpu_price)), output)
    print(f"Wrote {output}")


@app.command()
def doctor(
    name: MaybeName = None, namespace: NamespaceOption = None, all_namespaces: EverywhereOption = False,
    output: OutputOption = Output.TEXT, context: ContextOption = None, kubeconfig: ConfigOption = None,
) -> None:  # fmt: skip
    """Check what must be right: versions, CRDs, the operator, rights, metrics, how the target's pods start and end.

    Exit code 1 where something is wrong.
    """
    from trimtab_operator.plugin import doctor as checks

    api = _api(namespace, context, kubeconfig, all_namespaces)
    try:
        seen = [actions.find(api, name)[0]] if name is not None else api.get(actions.TUNERS)
    except TrimtabError:
        if name is not None:
            raise
        seen = []  # no CRDs: one of the checks says so
    found = checks.examine(api, seen)
    _print([c.to_json() for c in found], lambda: checks.lines(found), output)
    if any(c.state is checks.State.FAIL for c in found):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from trimtab import __version__

        print(__version__)
        raise typer.Exit()


def main() -> None:
    """Entry point of kubectl-trimtab. Code 2 for bad input, 1 for anything else that went wrong."""
    try:
        app()
    except TrimtabError as error:
        print(f"error: {error.told}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except BrokenPipeError:
        sys.exit(0)  # `| head` has seen enough
