"""`trimtab rewrite --set NAME=VALUE FILE...`: the manifests with just that edit, or the reason why not.

stdout holds the manifests (or the diff, JSON, patch) and nothing else; what changed and warnings go to stderr.
Exit codes: 0 done, also when there was nothing to do; 2 bad input; 3 refused.
"""

from __future__ import annotations

import difflib
import io
import json
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from trimtab.cli.console import errors
from trimtab.cli.files import STDIN, TextFile, read_files, write_files
from trimtab.engine.patch import json_patch
from trimtab.engine.settings import SETTINGS, Value
from trimtab.errors import EngineError, EngineNotFound, InputError, RewriteRefused
from trimtab.manifests.rewriting import Rewritten, Source, Target, rewrite_manifests
from trimtab.manifests.workload import Unreadable, Workload
from trimtab.plan.object_patch import object_patch
from trimtab.tune.options import parse_value

REFUSED: Final = 3
#: the errors' own hints speak of the operator's spec; here the options are meant
_HINTS: Final = {
    EngineNotFound.hint: "Name the container with --container; docs/targets.md lists the command lines that are read.",
    RewriteRefused.hint: "Make this change by hand; docs/targets.md lists what is refused, and why.",
}
_RECOMMEND: Final = re.compile(r"or use mode Recommend(?: and change the script by hand)?")


class Output(StrEnum):
    YAML = "yaml"
    JSON = "json"
    PATCH = "patch"


FilesArgument = Annotated[list[str], typer.Argument(metavar="FILE...", help="Manifests in YAML or JSON; - is stdin.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting and its new value: max_num_seqs=48. Several times."),
]
UnsetOption = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="NAME", help="Take a setting's flag out, so that vLLM decides. Several times."),
]
ContainerOption = Annotated[str | None, typer.Option(help="The container that runs vLLM, where more than one does.")]
TargetOption = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="KIND/NAME", help="Only this workload. Default: all that run vLLM."),
]
InPlaceOption = Annotated[bool, typer.Option("--in-place", "-i", help="Write the files instead of printing them.")]
DiffOption = Annotated[bool, typer.Option("--diff", help="Print what changes as a unified diff.")]
OutputOption = Annotated[
    Output,
    typer.Option(
        "--output",
        "-o",
        help="yaml: the manifests as they were written; json: a report; patch: a JSON patch (RFC 6902).",
    ),
]


def rewrite(
    files: FilesArgument,
    set_: SetOption = None,
    unset: UnsetOption = None,
    container: ContainerOption = None,
    target: TargetOption = None,
    in_place: InPlaceOption = False,
    diff: DiffOption = False,
    output: OutputOption = Output.YAML,
) -> None:
    """Change vLLM's settings in manifests. Order, comments and every other byte stay.

    Example: trimtab rewrite --set max_num_seqs=48 deployment.yaml
    """
    with errors():
        if in_place and STDIN in files:
            raise InputError("--in-place", "standard input cannot be written", "Leave out -i: stdout has the result.")
        if diff and output is not Output.YAML:
            raise InputError("--diff", f"goes not together with -o {output}", "Leave out one of them.")
        changes = read_changes(set_ or (), unset or ())
        read = read_files(files)
        sources = [Source(file.name, file.text) for file in read]
        try:
            done = rewrite_manifests(sources, changes, container=container, picks=target or ())
        except EngineNotFound as error:
            if output is Output.JSON:
                print(json.dumps({"targets": [], **_error_json(error)}, indent=1))
            print(refusal(error), file=sys.stderr)
            raise typer.Exit(REFUSED) from None
        if output is Output.PATCH and (operations := _patch_of_custom(done.targets, changes, container)) is not None:
            print(json.dumps(operations, indent=1))
            return
        _report(done)
        _deliver(done, read, output, diff=diff, in_place=in_place)
        if done.refused:
            raise typer.Exit(REFUSED)


app = rewrite


def read_changes(sets: Sequence[str], unsets: Sequence[str]) -> dict[str, Value | None]:
    """Setting -> value, None to remove. Raises `InputError` naming the option."""
    changes: dict[str, Value | None] = {}
    pairs = [(text.partition("="), "--set") for text in sets] + [((text, "", ""), "--unset") for text in unsets]
    for (spelling, equals, text), option in pairs:
        if option == "--set" and not (equals and text.strip()):
            raise InputError(option, f"{spelling!r} has no value", "Write NAME=VALUE, such as max_num_seqs=48.")
        name = setting_name(spelling, option)
        if name in changes:
            raise InputError(option, f"{name} is given twice", "Give each setting once.")
        changes[name] = parse_value(name, text.strip(), option) if option == "--set" else None
    if not changes:
        raise InputError("--set", "nothing to change was given", "Write --set NAME=VALUE or --unset NAME.")
    return changes


def setting_name(spelling: str, option: str) -> str:
    """vLLM's own name from `max_num_seqs`, `--max-num-seqs`, `max-num-seqs` or `maxNumSeqs`."""
    text = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", spelling.strip()).lower()
    name = text.removeprefix("--").replace("-", "_")
    if name not in SETTINGS:
        fix = f"Use one of {', '.join(SETTINGS)}."
        raise InputError(option, f"{spelling.strip()!r} is not a setting that Trimtab writes", fix)
    return name


# --- stderr -----------------------------------------------------------------------------------------------------------
def _report(done: Rewritten) -> None:
    for target in done.targets:
        where = f"{target.title} ({target.source})"
        for owner in target.owners:
            if not owner.refuses:
                print(f"warning: {where}: {owner.title} owns it ({owner.evidence}). {owner.advice}", file=sys.stderr)
        if target.error is not None:
            print(f"{where}: {refusal(target.error)}", file=sys.stderr)
        elif not done.refused:
            print(f"{where}: {_changes_text(target)}", file=sys.stderr)
    if done.refused and len(done.targets) > 1:
        print("Nothing was changed. To change only some targets, name them with --target.", file=sys.stderr)


def refusal(error: EngineError) -> str:
    return f"refused: {reason_of(error)}: {error}\n{hint_of(error)}"


def reason_of(error: EngineError) -> str:
    """The stable name of why: the code of a refusal, else the error's own."""
    return error.code if isinstance(error, RewriteRefused) else error.reason


def hint_of(error: EngineError) -> str:
    return _HINTS.get(error.hint) or _RECOMMEND.sub("or make the change by hand", error.hint)


def _changes_text(target: Target) -> str:
    parts = [
        f"{name} {_shown(target.before[name])} -> {_shown(value)}"
        for name, value in target.after.items()
        if target.before[name] != value
    ]
    same = [f"{name} is {_shown(value)}" for name, value in target.after.items() if target.before[name] == value]
    return ", ".join(parts) if parts else f"nothing to change ({', '.join(same)})"


def _shown(value: Value | None) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# --- stdout -----------------------------------------------------------------------------------------------------------
def _deliver(done: Rewritten, files: Sequence[TextFile], output: Output, *, diff: bool, in_place: bool) -> None:
    if output is Output.JSON:
        print(json.dumps({"targets": [_target_json(t) for t in done.targets]}, indent=1))
    if done.refused:
        return
    if output is Output.PATCH:
        print(json.dumps(_patch(done.targets), indent=1))
    elif diff:
        sys.stdout.write("".join(_diff(file, text) for file, text in zip(files, done.texts, strict=True)))
    elif output is Output.YAML and not in_place:
        sys.stdout.flush()
        sys.stdout.buffer.write(_joined(files, done.texts))
        sys.stdout.buffer.flush()
    if in_place:
        write_files([(file, text) for file, text in zip(files, done.texts, strict=True) if text != file.text])


def _joined(files: Sequence[TextFile], texts: Sequence[str]) -> bytes:
    """One file: its own bytes. Several: one stream of documents in UTF-8."""
    if len(files) == 1:
        return files[0].to_bytes(texts[0])
    out = ""
    for text in texts:
        if out and not out.endswith("\n"):
            out += "\n"
        out += text if not out or text.startswith("---") else f"---\n{text}"
    return out.encode()


def _diff(file: TextFile, text: str) -> str:
    before, after = (io.StringIO(t, newline="").readlines() for t in (file.text, text))
    name = file.name.lstrip("/")
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _patch(targets: Sequence[Target]) -> list[dict[str, Any]]:
    """The operations for `kubectl patch --type=json --patch-file`, which takes one object."""
    if len(targets) > 1:
        problem = f"a patch is for one object, and {len(targets)} run vLLM"
        raise InputError("--output", problem, f"Name one with --target: {', '.join(t.title for t in targets)}.")
    target = targets[0]
    if not isinstance(target.origin, Workload) or target.template_before is None or target.template_after is None:
        return []
    return json_patch(target.template_before, target.template_after, target.origin.pointer)


def _patch_of_custom(
    targets: Sequence[Target], changes: dict[str, Value | None], container: str | None
) -> list[dict[str, Any]] | None:
    """The patch of the one custom resource (KServe, production stack, Ray) that the input or --target names."""
    if len(targets) != 1 or not isinstance(targets[0].origin, Unreadable):
        return None
    found: Any = targets[0].origin.document.data
    for key in targets[0].origin.path:
        found = found[key]
    return object_patch(found, changes, container)


def _target_json(target: Target) -> dict[str, Any]:
    return {
        "file": target.source,
        "kind": target.origin.kind,
        "name": target.origin.name,
        "namespace": target.origin.namespace or None,
        "container": target.container or None,
        "changed": target.changed,
        "before": dict(target.before),
        "after": dict(target.after),
        "owners": [{"kind": o.kind, "name": o.name, "evidence": o.evidence, "advice": o.advice} for o in target.owners],
        **_error_json(target.error),
    }


def _error_json(error: EngineError | None) -> dict[str, str | None]:
    if error is None:
        return {"reason": None, "message": None, "hint": None}
    return {"reason": reason_of(error), "message": str(error), "hint": hint_of(error)}
