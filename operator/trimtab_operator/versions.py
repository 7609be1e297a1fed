"""vLLM's version by its own word, asked once per pod template: images called latest or by digest do not say it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from trimtab.observe.version import ask_version

Json = dict[str, Any]
#: a silent engine is asked again after this
RETRY_SECONDS: Final = 600.0


class Versions:
    """Answers by Deployment; memory only, asked anew after a restart. `ask` is passed in for tests."""

    def __init__(self, ask: Callable[[str, int], str | None] = ask_version) -> None:
        self._ask = ask
        #: Deployment's uid -> (its images, answer, when)
        self._known: dict[str, tuple[str, str | None, float]] = {}

    def of(self, deployment: Json, pod: tuple[str, str | None], port: int, now: float) -> str | None:
        """The version of a ready pod (name, ip) of the Deployment; None where it does not tell."""
        uid, images = deployment["metadata"]["uid"], _images(deployment)
        known = self._known.get(uid)
        if known is not None and known[0] == images and (known[1] is not None or now - known[2] < RETRY_SECONDS):
            return known[1]
        answer = self._ask(pod[1], port) if pod[1] else None
        self._known[uid] = (images, answer, now)
        return answer


def _images(deployment: Json) -> str:
    spec = deployment["spec"]["template"]["spec"]
    return json.dumps([c.get("image") for group in ("containers", "initContainers") for c in spec.get(group) or ()])
