"""Which process of `pytest -n 4 --dist loadgroup` runs what: four groups of about the same length, each in its order.

The tests mostly wait, so four of them share two cores. Without pytest-xdist the groups mean nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
#: file, or file::part of a test's name -> its group; the longest match counts, "first" where there is none
GROUPS: Final = {
    "test_operator.py": "second",
    "test_operator.py::too_few_slots": "first",
    "test_operator.py::columns": "first",
    "test_operator.py::cannot_start": "first",
    "test_operator.py::recommend_writes": "first",
    "test_operator.py::approve_waits": "first",
    "test_switchback.py": "third",
    "test_kill_matrix.py": "fourth",
    "test_faults.py": "first",
    "test_rights.py": "second",
    "test_kill.py": "second",
    "test_kill.py::on_the_way_to_promotion": "fourth",
    "test_kill.py::while_rolling_back": "fourth",
    "test_middleware.py": "third",
    "test_middleware.py::does_not_load_it": "fourth",
}


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.xdist_group(_group(item.path.name, item.name)))


def _group(file: str, name: str) -> str:
    fits = [key for key in GROUPS if key == file or (key.startswith(f"{file}::") and key.split("::")[1] in name)]
    return GROUPS[max(fits, key=len)] if fits else "first"
