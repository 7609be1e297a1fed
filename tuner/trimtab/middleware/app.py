"""The ASGI class that vLLM loads: `--middleware PACKAGE.Middleware`. It never keeps the engine from serving."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from .body import Receive, Send
from .core import Core
from .guard import log

ASGI = Callable[[Any, Receive, Send], Awaitable[None]]


class Middleware:
    """Pure ASGI around `app`. `core` is given by tests; by default it is made from the environment."""

    def __init__(self, app: ASGI, core: Core | None = None) -> None:
        self.app = app
        self.core: Core | None = core
        if core is None:
            try:
                self.core = Core(os.environ)
            except Exception:  # noqa: BLE001  the boundary: without a core vLLM must start all the same
                log.exception("trimtab: the middleware could not start; requests pass untouched")

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if self.core is None or scope["type"] != "http":
            await self.app(scope, receive, send)
        else:
            await self.core.handle(self.app, scope, receive, send)
