"""The report for people: a block per engine, worst first, two lines per finding, totals at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trimtab.lint.finding import ORDER, Finding, Severity
from trimtab.lint.report import Report

_WIDTH = max(len(s) for s in Severity)


def as_text(reports: Sequence[Report]) -> str:
    blocks = [_block(report) for report in reports]
    return "\n\n".join([*blocks, _totals(reports)])


def _block(report: Report) -> str:
    return "\n".join([_head(report), *(line for f in report.findings for line in _lines(f))])


def _head(report: Report) -> str:
    name = f"{report.namespace}/{report.name}" if report.namespace else report.name
    container = f", container {report.container}" if report.container else ""
    facts = []
    if report.target:
        shape, version = report.target.shape, report.target.version
        facts = [
            f"shape {shape}" if shape else "not readable",
            f"vLLM {version}" if version else "vLLM version unknown",
        ]
    ending = "" if report.findings else ": nothing found"
    known = f" ({', '.join(facts)})" if facts else ""
    return f"{report.file}: {report.kind} {name}{container}{known}{ending}"


def _lines(finding: Finding) -> tuple[str, str]:
    line = f"line {finding.line}" if finding.line is not None else finding.path
    head = f"  {finding.severity:<{_WIDTH}} {finding.id} {finding.name} ({line}): {finding.message}"
    return head, f"  {'':<{_WIDTH}} Fix: {finding.fix}"


def _totals(reports: Sequence[Report]) -> str:
    counted = Counter(f.severity for r in reports for f in r.findings)
    parts = [f"{counted[s]} {s}{'s' if s is not Severity.INFO and counted[s] != 1 else ''}" for s in ORDER]
    return f"{len(reports)} engine{'s' if len(reports) != 1 else ''}: {', '.join(parts)}."
