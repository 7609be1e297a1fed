"""`trimtab lint FILE...`: known traps in manifests, with an exit code for CI.

stdout holds the report and nothing else. Exit codes: 0 nothing at or above the threshold; 1 findings; 2 bad usage, a
file that cannot be read, or no engine with --require-engine. A bad file does not keep the others from being linted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.console import errors, read_model_config
from trimtab.cli.files import STDIN, read_files
from trimtab.engine.versions import parse
from trimtab.errors import InputError
from trimtab.lint.as_json import as_json
from trimtab.lint.as_text import as_text
from trimtab.lint.finding import ORDER, SLOW_START_SECONDS, Options, Severity
from trimtab.lint.report import Report, lint
from trimtab.lint.rules import RULES
from trimtab.lint.sarif import as_sarif
from trimtab.manifests.documents import Document, read_documents

_ENDINGS = (".yaml", ".yml", ".json")


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE...", help="Manifests in YAML or JSON, folders of them, or - for stdin.", show_default=False
    ),
]
ThresholdOption = Annotated[Severity, typer.Option(help="Exit 1 from this severity on.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="text for people, json or sarif for programs.")]
VersionOption = Annotated[str | None, typer.Option(help="vLLM's version, where the image does not tell: 0.9.1.")]
DisableOption = Annotated[
    list[str] | None, typer.Option(metavar="RULE", help="Leave out a rule, by id or name. Several times.")
]
SlowOption = Annotated[
    int,
    typer.Option(
        min=1, help="How long an engine may take to start. The default is Kubernetes' progressDeadlineSeconds."
    ),
]
CacheOption = Annotated[
    int | None, typer.Option(min=1, help="The KV cache in tokens, as vLLM logs it at start, to check --max-model-len.")
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="CONFIG", help="config.json of the model, to know the cache by --kv-cache-memory-bytes or blocks."
    ),
]
RequireOption = Annotated[bool, typer.Option(help="Exit 2 if the files hold no vLLM at all.")]
RulesOption = Annotated[bool, typer.Option("--rules", help="List the rules and exit.")]


def app(
    files: FilesArgument = None,
    severity_threshold: ThresholdOption = Severity.ERROR,
    output: OutputOption = Output.TEXT,
    engine_version: VersionOption = None,
    disable: DisableOption = None,
    slow_start_seconds: SlowOption = SLOW_START_SECONDS,
    kv_cache_size_tokens: CacheOption = None,
    model_config: ConfigOption = None,
    require_engine: RequireOption = False,
    rules: RulesOption = False,
) -> None:
    """Find known traps in the manifests of vLLM. docs/lint.md explains each rule.

    Examples: trimtab lint deploy/   helm template my-chart | trimtab lint -o sarif -
    """
    with errors():
        if rules:
            print(rule_list())
            return
        if not files:
            raise InputError("FILE", "none is given", "Name manifests, a folder, or - for stdin.")
        if engine_version is not None and parse(engine_version) is None:
            raise InputError("--engine-version", f"{engine_version!r} is no version", "Write it like 0.9.1.")
        model = read_model_config(model_config, "--model-config") if model_config else None
        options = Options(slow_start_seconds, kv_cache_size_tokens, engine_version, model)
        disabled = rule_ids(disable or ())
        documents, faults = read(files)
        reports = lint(documents, options, disabled)
    show(reports, faults, output)
    if not reports:
        print("No container of these files runs vLLM in a form that Trimtab knows.", file=sys.stderr)
    raise typer.Exit(exit_code(reports, faults, severity_threshold, require_engine=require_engine))


def rule_list() -> str:
    return "\n".join(f"{r.id} {r.severity:<7} {r.name}: {r.trap}" for r in RULES.values())


def rule_ids(names: Sequence[str]) -> frozenset[str]:
    """Ids of rules given by id or name, several in one text by commas."""
    by_name = {r.name.lower(): r.id for r in RULES.values()} | {i.lower(): i for i in RULES}
    found = set()
    for name in (part.strip() for text in names for part in text.split(",")):
        if name.lower() not in by_name:
            raise InputError("--disable", f"{name!r} is no rule", "See trimtab lint --rules.")
        found.add(by_name[name.lower()])
    return frozenset(found)


def read(names: Sequence[str]) -> tuple[list[Document], list[InputError]]:
    """The documents of all files that can be read, and what is wrong with the others."""
    documents: list[Document] = []
    faults: list[InputError] = []
    if names.count(STDIN) > 1:
        raise InputError("FILE", "- is given twice", "Name standard input once.")
    for name in dict.fromkeys(n for given in names for n in _expanded(given, faults)):
        try:
            (file,) = read_files([name])
            documents += read_documents(file.text, file.name)
        except InputError as error:
            faults.append(error)
    return documents, faults


def _expanded(name: str, faults: list[InputError]) -> list[str]:
    """A folder's manifests, in order. Hidden folders (.git, .github) and Helm's templates are passed over."""
    folder = Path(name)
    if name == STDIN or not folder.is_dir():
        return [name]
    found = [
        p for p in sorted(folder.rglob("*")) if p.suffix.lower() in _ENDINGS and p.is_file() and _wanted(p, folder)
    ]
    charts = sorted({p for p in folder.rglob("templates") if _is_chart(p.parent)} - {folder})
    for chart in charts:
        print(f"{chart} is passed over: render it, helm template {chart.parent} | trimtab lint -", file=sys.stderr)
    if not found and not charts:
        faults.append(InputError("FILE", f"{name} holds no {', '.join(_ENDINGS)} file", "Name a folder of manifests."))
    return [str(path) for path in found]


def _wanted(path: Path, folder: Path) -> bool:
    if any(part.startswith(".") for part in path.relative_to(folder).parts):
        return False
    above = [p for p in path.parents if p == folder or p.is_relative_to(folder)]
    in_templates = any(p.name == "templates" and _is_chart(p.parent) for p in above)
    return not in_templates and not _is_chart(path.parent)


def _is_chart(folder: Path) -> bool:
    """Chart.yaml and values.yaml are no manifests either."""
    return (folder / "Chart.yaml").is_file()


def show(reports: Sequence[Report], faults: Sequence[InputError], output: Output) -> None:
    """The report to stdout; what could not be read also to stderr."""
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    if output is Output.TEXT:
        if reports:
            print(as_text(reports))
        return
    data = as_json(reports, faults) if output is Output.JSON else as_sarif(reports, faults)
    print(json.dumps(data, indent=1, ensure_ascii=False))


def exit_code(
    reports: Sequence[Report], faults: Sequence[InputError], threshold: Severity, *, require_engine: bool
) -> int:
    if faults or (require_engine and not reports):
        return 2
    return int(any(ORDER[f.severity] <= ORDER[threshold] for r in reports for f in r.findings))
