"""The opt-in log of features and lengths, JSON lines, two files of bounded size. No text of any request is in it.

A line is written when a request ends, in the event loop. A full disk switches it off until the policy changes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from .guard import log
from .policy_file import FeatureLog


class Writer:
    """Appends rows to the configured file; rotates PATH to PATH.1."""

    def __init__(self) -> None:
        self._config: FeatureLog | None = None
        self._broken = False

    def configure(self, config: FeatureLog | None) -> None:
        """Call when the policy changed."""
        self._config, self._broken = config, False

    def wants(self, chance: float) -> bool:
        """`chance`: uniform in [0, 1)."""
        return self._config is not None and not self._broken and chance * 100.0 < self._config.percent

    def write(self, row: Mapping[str, Any]) -> bool:
        config = self._config
        if config is None or self._broken:
            return False
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        try:
            self._append(config, line)
        except OSError as error:
            self._broken = True
            log.warning(
                "trimtab: feature log off until the policy changes: %s (%s)", config.path, error.strerror or error
            )
            return False
        return True

    @staticmethod
    def _append(config: FeatureLog, line: bytes) -> None:
        # opened for each line: several API servers may append to one file, and a rotation by one is seen by all
        with open(config.path, "ab", buffering=0) as file:  # noqa: PTH123
            if file.tell() + len(line) > config.max_bytes:
                os.replace(config.path, config.path + ".1")  # noqa: PTH105
                with open(config.path, "ab", buffering=0) as fresh:  # noqa: PTH123
                    fresh.write(line)
            else:
                file.write(line)
