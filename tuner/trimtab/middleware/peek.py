"""The few things read from vLLM's and uvicorn's own objects. Each is a bonus: None in another version breaks nothing.

Seen in vLLM 0.32 (entrypoints/launchers/api_server/app_state.py) and uvicorn 0.54 (protocols/http/httptools_impl.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any


def _follow(start: Any, path: str) -> Any:
    for name in path.split("."):
        start = getattr(start, name, None)
        if start is None:
            return None
    return start


def app_state(scope: Mapping[str, Any]) -> Any:
    """FastAPI's `app.state`, or None."""
    return _follow(scope.get("app"), "state")


def max_model_len(state: Any) -> int | None:
    for path in ("vllm_config.model_config", "engine_client.model_config", "openai_serving_models", "args"):
        found = _follow(state, path + ".max_model_len")
        if type(found) is int and found > 0:
            return found
    return None


def block_tokens(state: Any) -> int:
    """Tokens of a KV block, 0 where it cannot be read."""
    found = _follow(state, "vllm_config.cache_config.block_size")
    return found if type(found) is int and found > 0 else 0


def usage_is_forced(state: Any) -> bool:
    """--enable-force-include-usage: every client gets usage on every chunk, so nothing may be cut."""
    return _follow(state, "args.enable_force_include_usage") is True


def fingerprint(state: Any, route: str) -> bytes:
    """`,"system_fingerprint":"..."` as vLLM writes it on the last chunk of a stream without usage, or empty."""
    name = {"completions": "openai_serving_completion", "chat": "openai_serving_chat"}.get(route)
    found = _follow(state, f"{name}.system_fingerprint") if name else None
    return b',"system_fingerprint":' + json.dumps(found, ensure_ascii=False).encode() if isinstance(found, str) else b""


def is_closing(receive: Any) -> Callable[[], bool] | None:
    """Whether the client's connection is closing, known one turn of the event loop before http.disconnect is."""
    found = _follow(receive, "__self__.transport.is_closing")
    return found if callable(found) else None
