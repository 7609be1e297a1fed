"""Findings as JSON for programs and as text for a person at 3 a.m.: the cause first, then what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Final

from trimtab.diagnose.case import Case
from trimtab.diagnose.finding import Finding, Role
from trimtab.diagnose.metrics_missing import NEEDED

_WIDTH: Final = 100


def as_json(case: Case, findings: Sequence[Finding]) -> dict[str, Any]:
    """`main` is the cause's name, null where nothing holds the target back; `tunable` is the main finding's."""
    main = next((f for f in findings if f.role is Role.MAIN), None)
    return {
        "engine": {"name": case.engine.kind, "version": case.engine.version, "admission": case.engine.admission.value},
        "observations": len(case.points),
        "main": None if main is None else main.name,
        "tunable": main is not None and main.tunable,
        "findings": [finding_json(f) for f in findings],
        "unknown": [name for name in NEEDED if not case.series(name)],
        "context": dict(case.context),
    }


def finding_json(f: Finding) -> dict[str, Any]:
    return {
        "cause": f.name, "role": f.role.value, "severity": f.severity.value, "confidence": round(f.confidence, 3),
        "tunable": f.tunable, "settings": list(f.settings), "message": f.message, "evidence": f.evidence,
        "facts": list(f.said), "advice": f.advice, "avoid": f.avoid,
    }  # fmt: skip


def as_text(case: Case, findings: Sequence[Finding]) -> str:
    seconds, engine = case.seconds(), case.engine
    span = f" over {seconds:.0f} s" if seconds else ""
    version = f" {engine.version}" if engine.version else ""
    lines = [f"{engine.shown}{version}, {len(case.points)} observation{'s' * (len(case.points) != 1)}{span}"]
    if not findings:
        return "\n".join([*lines, "", "Nothing found: too little is known."])
    first, rest = findings[0], findings[1:]
    lines += ["", *_full("CAUSE" if first.role is Role.MAIN else "FOUND", first)]
    for role, title in ((Role.CONSEQUENCE, "Follows from it:"), (Role.CONTEXT, "Also true:")):
        group = [f for f in rest if f.role is role]
        if group:
            lines += [
                "",
                title,
                *(line for f in group for line in _wrapped(f"- {f.name} ({f.confidence:.0%})", f.message)),
            ]
    unknown = [name for name in NEEDED if not case.series(name)]
    if unknown and first.name != "MetricsMissing":
        lines += ["", *_wrapped("Not known:", ", ".join(unknown))]
    return "\n".join(lines)


def _full(title: str, f: Finding) -> list[str]:
    lever = f"setting: {', '.join(f.settings)}" if f.tunable else "no setting mends it" if f.role is Role.MAIN else ""
    lines = [f"{title}  {f.name}, {f.severity.value}, {f.confidence:.0%} sure{f' ({lever})' if lever else ''}"]
    lines += _wrapped("  ", f.message)
    lines += _wrapped("  Do:", f.advice)
    lines += _wrapped("  Don't:", f.avoid) if f.avoid else []
    seen = ", ".join(f"{name} {value:g}" for name, value in f.evidence.items())
    lines += _wrapped("  Seen:", seen) if seen else []
    return lines + [line for said in f.said for line in _wrapped("  Said:", said)]


def _wrapped(head: str, text: str) -> list[str]:
    indent = " " * (len(head) - len(head.lstrip()) + 2)
    return textwrap.wrap(f"{head} {text}", _WIDTH, subsequent_indent=indent, break_long_words=False) if text else []
