"""The engine's own word about its version: GET /version, which vLLM serves without a key since 0.4.

Hazard: only a help. A pod that cannot be reached, or a proxy that answers something else, leaves the version unknown.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Final

from trimtab.engine.versions import parse
from trimtab.errors import MetricsError
from trimtab.observe.transport import BoundedSession, typed_errors

TIMEOUT_SECONDS: Final = 2.0
_LIMIT_BYTES: Final = 65_536
_log = logging.getLogger(__name__)


def ask_version(ip: str, port: int) -> str | None:
    """What `http://ip:port/version` says, such as "0.32.0"; None if it says nothing that is a version."""
    host = f"[{ip}]" if ":" in ip else ip
    what = f"{host}:{port}/version"
    session = BoundedSession(what, limit_bytes=_LIMIT_BYTES, deadline_seconds=TIMEOUT_SECONDS)
    try:
        with closing(session), typed_errors(what, TIMEOUT_SECONDS):
            text = session.get(f"http://{what}", timeout=TIMEOUT_SECONDS).json()["version"]
    except MetricsError as error:
        _log.debug("no version: %s", error)
        return None
    release = parse(text) if isinstance(text, str) else None
    return None if release is None else str(release)
