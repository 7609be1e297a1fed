"""The ASGI middleware that runs inside vLLM: counts what requests ended in, applies the policy file, admits, drains.

Loaded by `--middleware PACKAGE.Middleware`; the package may be mounted under any name, so imports are relative.
Standard library and prometheus_client only, Python >= 3.9, one flat folder (it travels as a ConfigMap). It fails open:
a fault of its own is counted and the request passes untouched.
"""

from __future__ import annotations

from typing import Any

#: of the middleware; the same as trimtab's
VERSION = "0.1.0"


def __getattr__(name: str) -> Any:
    """`Middleware` is imported when asked for: who only writes policy files needs no metrics."""
    if name == "Middleware":
        from .app import Middleware

        return Middleware
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
