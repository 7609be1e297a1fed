"""`kubectl_complete-trimtab`: kubectl asks it what may come next (kubectl 1.26 and later). Prints one word a line, then
Cobra's directive. Must be quick and never fail loudly: a shell waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

from trimtab.errors import TrimtabError
from trimtab_operator.plugin.kubectl import Access, Kubectl

#: Cobra: no file names
_NO_FILES = ":4"
_VERBS = "status watch diff explain history approve reject pause resume rollback report doctor"
_NAMED = tuple(_VERBS.split())
_OPTIONS = ("--namespace", "--context", "--kubeconfig", "--output", "--help")


def words(typed: Sequence[str], api: Kubectl | None = None) -> list[str]:
    """What may come next after `typed`, the last of which is begun, maybe empty."""
    *before, begun = typed or [""]
    if not before:
        return [v for v in _NAMED if v.startswith(begun)]
    if begun.startswith("-"):
        return [o for o in _OPTIONS if o.startswith(begun)]
    if before[-1] in ("-o", "--output"):
        return [o for o in ("text", "json", "yaml") if o.startswith(begun)]
    if before[0] not in _NAMED or before[-1].startswith("-"):
        return []
    return [n for n in _names(api or Kubectl(_access(before)), trials=before[0] in ("approve", "reject", "history"))
            if n.startswith(begun)]  # fmt: skip


def _access(before: Sequence[str]) -> Access:
    def after(*options: str) -> str | None:
        found = [b for a, b in pairwise(before) if a in options]
        return found[-1] if found else None

    return Access(after("-n", "--namespace"), after("--context"), after("--kubeconfig"))


def _names(api: Kubectl, *, trials: bool) -> list[str]:
    kinds = "vllmtuners,tuningtrials" if trials else "vllmtuners"
    try:
        out = api.call(["get", kinds, "-o", "name", *api.access.options()])
    except TrimtabError:
        return []
    return [name.rsplit("/", 1)[-1] for name in out.split()]


def main() -> None:
    """Entry point."""
    print("\n".join([*words(sys.argv[1:]), _NO_FILES]))
