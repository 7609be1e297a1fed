"""What stands around the application in vLLM 0.32, too: middleware of the user (--middleware), and uvicorn.

Source: vLLM `entrypoints/serve/middleware/register.py` and `entrypoints/launchers/launcher.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

import uvicorn
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import ASGIApp

from trimtab.emulate.flags import StartupError

#: vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE
KEEP_ALIVE_SECONDS: Final = 5
#: how long the end waits for handlers to write their last bytes after the engine has ended every request
CLOSE_SECONDS: Final = 2

#: classes and their arguments, in the order of the flags
UserMiddleware = Sequence[tuple[Any, dict[str, Any]]]


def load_middleware(paths: Sequence[str]) -> UserMiddleware:
    """Import what --middleware names: classes as they are, coroutine functions as HTTP middleware.

    StartupError in the words of Python and vLLM, which fails after the model was loaded, too. An error inside the
    imported module passes, as there.
    """
    return [_loaded(path) for path in paths]


def _loaded(path: str) -> tuple[Any, dict[str, Any]]:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        hint = f"--middleware {path}: is its package on PYTHONPATH, and is the name right?"
        raise StartupError(f"{type(error).__name__}: {error}", hint=hint) from error
    if inspect.isclass(found):
        return found, {}
    if inspect.iscoroutinefunction(found):
        return BaseHTTPMiddleware, {"dispatch": found}
    raise StartupError(f"ValueError: Invalid middleware {path}. Must be a function or a class.")


def bound_socket(host: str, port: int) -> socket.socket:
    """Taken before the model loads, as vLLM does; connections are refused until the server listens."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise StartupError(f"OSError: {error}", hint=f"Port {port} of {host} is taken or not allowed.") from error
    return sock


class WebServer(uvicorn.Server):
    """uvicorn without signal handlers of its own; `listening` is set when it does, `should_exit = True` ends it."""

    def __init__(self, app: ASGIApp) -> None:
        self.listening = asyncio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="on",
                access_log=False,
                log_config=None,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
