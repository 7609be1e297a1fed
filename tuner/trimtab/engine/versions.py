"""vLLM versions as text: which one a fact begins with, and until which it holds.

Hazard: a candidate or development build (0.11.1rc2, 0.11.1.dev5) counts as the release it leads to, and a post release
as the release it repairs: what changed between them is not in any table here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from packaging.version import InvalidVersion, Version

#: characters; longer than any release's name
_LONGEST = 64


@lru_cache(maxsize=256)
def parse(text: str | None) -> Version | None:
    """The release that `text` names; None if there is none or it is no version."""
    try:
        return Version(Version(text).base_version) if text and len(text) <= _LONGEST else None
    except InvalidVersion:
        return None


@dataclass(frozen=True)
class Span:
    """From `since` on and before `until`; an empty text is an open end."""

    since: str = ""
    until: str = ""

    def holds(self, version: Version) -> bool:
        return (not self.since or Version(self.since) <= version) and (not self.until or version < Version(self.until))

    def __str__(self) -> str:
        if self.since and self.until:
            return f"from {self.since} and before {self.until}"
        return f"from {self.since}" if self.since else f"before {self.until}" if self.until else "in every version"
