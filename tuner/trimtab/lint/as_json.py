"""The report as JSON for programs; docs/lint.md has its fields. Secrets are `(not shown)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from trimtab.engine.flags import Flag
from trimtab.engine.values import read_integer, read_value
from trimtab.errors import InputError
from trimtab.lint.finding import Finding
from trimtab.lint.report import Report
from trimtab.lint.target import BY_FLAG, Target, is_secret
from trimtab.lint.values import INTEGERS

NOT_SHOWN: Final = "(not shown)"


def as_json(reports: Sequence[Report], errors: Sequence[InputError]) -> dict[str, Any]:
    return {"targets": [_row(r) for r in reports], "errors": [_error(e) for e in errors]}


def _error(error: InputError) -> dict[str, str]:
    return {"field": error.field, "problem": error.problem, "fix": error.fix}


def _row(report: Report) -> dict[str, Any]:
    target = report.target
    command = target.command if target else None
    return {
        "file": report.file,
        "kind": report.kind,
        "name": report.name,
        "namespace": report.namespace or None,
        "container": report.container,
        "shape": target.shape if target else None,
        "flags": flag_values(target) if target else {},
        "spellings": spellings(target) if target else {},
        "version": target.version if target else None,
        "port": target.port if target else None,
        "owner": asdict(report.owner) if report.owner else None,
        "multi_node": command.multi_node if command else None,
        "lora": command.lora if command else None,
        "api_key": command.api_key_used if command else None,
        "obstacle": report.obstacle or None,
        "findings": [finding_json(f) for f in report.findings],
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "name": finding.name,
        "severity": finding.severity.value,
        "message": finding.message,
        "fix": finding.fix,
        "where": {"path": finding.path, "line": finding.line, "column": finding.column},
    }


def canonical(flag: Flag) -> str:
    """`--max-num-seqs` -> max_num_seqs; `--x.key` -> x.key; `-O3` -> optimization_level."""
    return flag.name.lstrip("-").replace("-", "_") + (f".{flag.path}" if flag.path else "")


def _counting(target: Target) -> list[Flag]:
    return [flag for flag in target.flags if flag.wins]


def flag_values(target: Target) -> dict[str, Any]:
    """What counts, by canonical name: numbers where a number is meant and can be read, else the text that vLLM gets."""
    found: dict[str, Any] = {}
    for flag in _counting(target):
        name = canonical(flag)
        value = _value(target, flag)
        if name in found and isinstance(found[name], list) and isinstance(value, list):
            value = found[name] + value
        found[name] = value
    if "model" not in found and target.command is not None and target.command.model is not None:
        found["model"] = target.command.model  # vllm serve MODEL
    return found


def _value(target: Target, flag: Flag) -> Any:
    if is_secret(flag):
        return NOT_SHOWN
    texts = target.texts(flag)
    if flag.spelling.startswith("-O"):
        return _typed(flag.name, flag.spelling.removeprefix("-O").removeprefix("=") or "".join(texts))
    if flag.kind in ("boolean", "switch"):
        return None if flag.joined else not flag.negated  # with a value vLLM stops, and the value may be a key
    if flag.kind == "many" or flag.name == "--middleware":
        return texts
    if not texts:
        return None
    return texts[0] if flag.path or flag.opaque else _typed(flag.name, texts[0])


def _typed(name: str, text: str) -> Any:
    try:
        if name in BY_FLAG:
            return read_value(BY_FLAG[name], text)
        return read_integer(text, suffixes=False) if name in INTEGERS else text
    except ValueError:
        return text


def spellings(target: Target) -> dict[str, str]:
    """How each flag that counts is written in the manifest, without its value."""
    return {canonical(flag): flag.spelling for flag in _counting(target)}
