"""The engine's own word about its version: GET /version, which vLLM serves without a key since 0.4.

Hazard: only a help. A pod that cannot be reached, or a proxy that answers something else, leaves the version unknown.
"""

from __future__ import annotations

from typing import Final

from trimtab.engine.versions import parse
from trimtab.observe.transport import ask_pod

_LIMIT_BYTES: Final = 65_536


def ask_version(ip: str, port: int) -> str | None:
    """What `http://ip:port/version` says, such as "0.32.0"; None if it says nothing that is a version."""
    text = ask_pod(ip, port, "/version", _LIMIT_BYTES, lambda answer: answer.json()["version"])
    release = parse(text) if isinstance(text, str) else None
    return None if release is None else str(release)
