"""The public reports of `field_reports`: the right cause leads, and no wrong conclusion of theirs is drawn."""

from __future__ import annotations

import json

import pytest
from field_reports import REPORTS, Report

from trimtab.diagnose.finding import Role
from trimtab.diagnose.report_file import read_report
from trimtab.diagnose.rules import examine

_NOTHING = ("Healthy", "ArrivalBound")


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: r.name)
def test_field_report(report: Report) -> None:
    findings = examine(read_report(json.dumps(report.report)))
    names = {f.name for f in findings}
    main = [f for f in findings if f.role is Role.MAIN]
    if report.main in _NOTHING:
        assert main == [] and report.main in names
    else:
        assert [(f.name, f.tunable) for f in main] == [(report.main, report.tunable)]
    assert report.besides <= names
    assert findings[0].name not in report.wrong
    if not report.tunable:
        assert not any(f.tunable for f in findings if f.role is not Role.CONTEXT)
