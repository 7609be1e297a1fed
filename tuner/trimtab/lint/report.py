"""Documents to reports: one per engine container, and one for each custom resource that hides its engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.engine.ownership import Owner, owners
from trimtab.lint.finding import ORDER, Finding, Hit, Options, dotted
from trimtab.lint.gather import custom_root, custom_targets, neighbours_of, targets_of
from trimtab.lint.places import place
from trimtab.lint.rules import RULES
from trimtab.lint.target import Target, mapping
from trimtab.manifests.documents import Document
from trimtab.manifests.workload import Unreadable, inventory

IGNORE: Final = "trimtab.dev/lint-ignore"
_HIDDEN: Final = RULES["TT001"]
_ODD_IGNORE: Final = RULES["TT090"]


@dataclass(frozen=True)
class Report:
    """What is known of one engine, and its findings, worst first. container and target are None for a custom resource
    without a pod spec in sight."""

    file: str
    kind: str
    name: str
    namespace: str
    container: str | None
    target: Target | None
    owner: Owner | None
    obstacle: str
    findings: tuple[Finding, ...]


def lint(documents: Sequence[Document], options: Options, disabled: frozenset[str] = frozenset()) -> list[Report]:
    """Reports in the order of the documents. `disabled` holds ids of rules."""
    found = inventory(documents)
    neighbours = neighbours_of(documents, found)
    reports: list[tuple[Document, Report]] = []
    for workload in found.workloads:
        targets = list(targets_of(workload, neighbours, options))
        reports += [(workload.document, _report(target, options, disabled)) for target in targets]
    for custom in found.unreadable:
        targets = list(custom_targets(custom, neighbours, options))
        reports += [(custom.document, _report(target, options, disabled)) for target in targets]
        if not targets:
            reports.append((custom.document, _hidden(custom, disabled)))
    order = {id(document): at for at, document in enumerate(documents)}
    return [report for _, report in sorted(reports, key=lambda row: order[id(row[0])])]


def _report(target: Target, options: Options, disabled: frozenset[str]) -> Report:
    workload = target.workload
    obstacle = target.command.obstacle() if target.command else ""
    return Report(
        file=workload.document.source,
        kind=workload.kind,
        name=workload.name,
        namespace=workload.namespace,
        container=str(target.body.get("name") or ""),
        target=target,
        owner=next(iter(owners(workload.metadata)), None),
        obstacle=str(target.refusal) if target.refusal else obstacle,
        findings=_findings(target, options, disabled),
    )


def _hidden(custom: Unreadable, disabled: frozenset[str]) -> Report:
    root, body = custom_root(custom)
    metadata = mapping(body.get("metadata"))
    findings = []
    if _HIDDEN.id not in disabled | ignored(metadata):
        line, column = place(custom.document, root)
        message = f"Trimtab would not edit this object (SpecElsewhere): {custom.kind}: {custom.reason}."
        findings.append(
            Finding(_HIDDEN.id, _HIDDEN.name, _HIDDEN.severity, message, custom.advice, dotted(root), line, column)
        )
    return Report(
        file=custom.document.source,
        kind=custom.kind,
        name=custom.name,
        namespace=custom.namespace,
        container=None,
        target=None,
        owner=next(iter(owners(metadata)), None),
        obstacle=custom.reason,
        findings=tuple(findings),
    )


def _findings(target: Target, options: Options, disabled: frozenset[str]) -> tuple[Finding, ...]:
    asked = ignored(target.workload.metadata) | ignored(mapping(target.workload.template.get("metadata")))
    found = [
        _finding(target, rule_id, hit)
        for rule_id, rule in RULES.items()
        if rule_id not in disabled | asked
        for hit in rule.check(target, options)
    ]
    if _ODD_IGNORE.id not in disabled | asked:
        found += [_finding(target, _ODD_IGNORE.id, hit) for hit in _odd_ignores(target, asked)]
    return tuple(sorted(found, key=lambda f: (ORDER[f.severity], f.id, f.line or 0)))


def ignored(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Ids in the annotation `trimtab.dev/lint-ignore`, separated by commas."""
    text = str(mapping(metadata.get("annotations")).get(IGNORE) or "")
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def _odd_ignores(target: Target, asked: frozenset[str]) -> Iterator[Hit]:
    for name in sorted(asked - set(RULES)):
        yield Hit(f"{IGNORE} names {name[:20]!r}, which is no rule.", target.of_object("metadata", "annotations"))


def _finding(target: Target, rule_id: str, hit: Hit) -> Finding:
    rule = RULES[rule_id]
    line, column = place(target.workload.document, hit.path, hit.offset)
    severity = max(hit.severity or rule.severity, rule.severity, key=lambda s: ORDER[s])
    return Finding(rule.id, rule.name, severity, hit.message, hit.fix or rule.fix, dotted(hit.path), line, column)
