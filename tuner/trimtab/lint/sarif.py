"""The report as SARIF 2.1.0 (OASIS), which code hosts show beside the changed lines.

Source: OASIS SARIF 2.1.0, sections 3.27 (result) and 3.49 (reportingDescriptor).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from trimtab import __version__
from trimtab.errors import InputError
from trimtab.lint.finding import Finding, Severity
from trimtab.lint.report import Report
from trimtab.lint.rules import RULES

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def as_sarif(reports: Sequence[Report], errors: Sequence[InputError]) -> dict[str, Any]:
    index = {rule_id: at for at, rule_id in enumerate(RULES)}
    results = [_result(r, f, index[f.id]) for r in reports for f in r.findings]
    notifications = [{"level": "error", "message": {"text": str(e)}} for e in errors]
    invocation = {"executionSuccessful": not errors, "toolExecutionNotifications": notifications}
    driver = {"name": "trimtab lint", "version": __version__, "rules": [_rule(rule_id) for rule_id in RULES]}
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule_id: str) -> dict[str, Any]:
    rule = RULES[rule_id]
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.trap},
        "help": {"text": rule.fix},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(report: Report, finding: Finding, index: int) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(report.file)}}
    if finding.line is not None:
        physical["region"] = {"startLine": finding.line, "startColumn": finding.column or 1}
    name = "/".join(part for part in (report.namespace, report.kind, report.name, report.container) if part)
    return {
        "ruleId": finding.id,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message} {finding.fix}"},
        "locations": [
            {"physicalLocation": physical, "logicalLocations": [{"fullyQualifiedName": f"{name}:{finding.path}"}]}
        ],
    }


def _uri(file: str) -> str:
    """A relative URI reference: forward slashes, and what URIs do not take is escaped."""
    return quote(file.replace("\\", "/"), safe="/:._-~+")
