"""What holds for the tree as a whole: no package that shadows Python's, no machine's own paths or mirrors in it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: somebody's home, or a checkout's place; each is split so that this file does not find itself
HOMES = re.compile(
    r"(?<![\w.$}~-])/(?:" + "ro" + r"ot|ho" + r"me/[a-z]+|Us" + r"ers/|wo" + r"rk)(?:/|\b(?=[\s\"'`),;]|$))"
)
#: package indexes and proxies, public or private: they belong into the machine's settings
INDEXES = re.compile(
    r"https?://[^\s\"'`)>]*(?:pypi|python" + r"hosted|npmjs|artifactory|nexus|/simple(?:/|\b)|proxy\." + r"golang)"
    r"|index[-_]url\s*="
)
#: not ours, or ours to read such settings
SKIPPED = {"tests/test_house.py", "hack/image/build.sh", "hack/cluster/go/go.sum"}


@cache
def tracked() -> tuple[str, ...]:
    """Files of the tree that git does not ignore; without git (a tarball) all that are not hidden."""
    done = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode == 0 and done.stdout:
        return tuple(line for line in done.stdout.splitlines() if (ROOT / line).is_file())
    paths = (p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file())
    return tuple(str(p) for p in paths if not any(part.startswith(".") for part in p.parts))


def texts() -> Iterator[tuple[str, str]]:
    for name in tracked():
        if name in SKIPPED:
            continue
        raw = (ROOT / name).read_bytes()
        if b"\0" not in raw[:4096] and not raw.startswith(b"\x1f\x8b"):
            yield name, raw.decode("utf-8", "replace")


def found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_operator_is_a_plain_folder() -> None:
    """`operator/__init__.py` would shadow the standard library's `operator` and end the interpreter."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    import operator

    assert not str(operator.__file__).startswith(str(ROOT))


def test_no_absolute_path_of_a_home_is_in_the_tree() -> None:
    assert found(HOMES) == []


def test_no_package_index_is_named_in_the_tree() -> None:
    assert found(INDEXES) == []


@pytest.mark.parametrize("name", ["constraints.txt", "hack/engine/constraints.txt"])
def test_constraints_pin_versions_and_nothing_else(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!_-]+(?:\s*;.*)?", line)] == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (HOMES, "cache at /" + "root/.cache"),
        (HOMES, '"/ho' + 'me/anna/x"'),
        (HOMES, "see /wo" + "rk/main"),
        (INDEXES, "pip --index" + "-url=https://mirror.example/simple"),
        (INDEXES, "https://pypi.example/x"),
    ],
    ids=["root", "home", "checkout", "setting", "host"],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


@pytest.mark.parametrize(
    "line", ["vm/panic_on_oom", "$NODE/containerd/root", "~/.cache", "/spec/template", "/workload"]
)
def test_the_patterns_leave_the_rest_alone(line: str) -> None:
    assert not HOMES.search(line) and not INDEXES.search(line)
