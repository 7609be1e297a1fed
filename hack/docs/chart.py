"""Writes charts/trimtab/README.md from values.yaml: each value, its default and its comment. A test compares.

A comment belongs to the key below it; one above a group of keys belongs to the group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).resolve().parents[2] / "charts/trimtab"
PAGE: Final = CHART / "README.md"
_HEAD: Final = """# The chart

Made by `python hack/docs/chart.py` from values.yaml. `values.schema.json` refuses unknown names and wrong types.
Its tests run Helm 3 and Helm 4, and take a release of one over with the other.

```sh
helm install trimtab charts/trimtab -n trimtab-system --create-namespace --set image.repository=REGISTRY/trimtab
helm test trimtab -n trimtab-system      # the API server answers, and everything it needs can be read
helm uninstall trimtab -n trimtab-system # rolls back trials in flight first; the CRDs and your tuners stay
```

From an OCI registry of your own: `make dist && helm push dist/trimtab-VERSION.tgz oci://REGISTRY/charts`, then
`helm install trimtab oci://REGISTRY/charts/trimtab`.

One replica, on purpose: a second operator could only wait for the Lease. When the node is lost, the Deployment starts
another, which goes on with what the custom resources say; targets serve all the while.

"""


#: groups that go to Kubernetes as they are, shown as one value
_PASSED_ON: Final = frozenset(
    {"resources", "dashboard.resources", "podSecurityContext", "securityContext", "dashboards.labels"}
)


@dataclass(frozen=True)
class Value:
    """path: as for --set. default: as written on a command line. text: the comment, "" where there is none."""

    path: str
    default: str
    text: str


def values(text: str) -> Iterator[Value]:
    """Leaves of values.yaml in their order, with the comments above them; a group's comment goes before its first."""
    tree = yaml.safe_load(text)
    comments = _comments(text)
    yield from _leaves(tree, (), comments)


def _comments(text: str) -> dict[str, str]:
    """Path of a key -> comment lines right above it. Only block style is read; deeper flow style has no comments."""
    found: dict[str, str] = {}
    above: list[str] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            above.append(stripped.lstrip("# "))
        elif match := re.match(r"( *)([\w.-]+):", line):
            indent = len(match[1])
            path = [p for p in path if p[0] < indent] + [(indent, match[2])]
            if above:
                found[".".join(p[1] for p in path)] = " ".join(above)
            above = []
        else:
            above = []
    return found


def _leaves(tree: dict[str, Any], path: tuple[str, ...], comments: dict[str, str]) -> Iterator[Value]:
    group = comments.get(".".join(path), "")
    for key, value in tree.items():
        here = ".".join((*path, key))
        if isinstance(value, dict) and value and here not in _PASSED_ON:
            yield from _leaves(value, (*path, key), comments)
        else:
            yield Value(here, json.dumps(value), " ".join(t for t in (group, comments.get(here, "")) if t))
        group = ""


def text() -> str:
    rows = [f"| `{v.path}` | `{v.default}` | {v.text} |" for v in values((CHART / "values.yaml").read_text())]
    return _HEAD + "\n".join(["| value | default | |", "|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text())
