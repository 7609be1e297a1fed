"""The emulator's page names every variable and every fault that there is, and no other."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from tests.docs.reading import names, section

from trimtab.emulate.environment import OTHER_VARIABLES, STEP_VARIABLES
from trimtab.emulate.faults import Faults

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "emulator.md").read_text()


def test_every_variable_and_every_fault_is_on_the_page() -> None:
    assert sorted(names(section(PAGE, "Variables"))) == sorted([*STEP_VARIABLES, *OTHER_VARIABLES])
    assert sorted(names(section(PAGE, "Faults on command"))) == sorted(f.name for f in fields(Faults))
