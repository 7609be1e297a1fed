"""The built-in load: `trimtab load` as a process of its own, so that the client's CPU is not the front door's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from trimtab.errors import TrimtabError
from trimtab.tune.process import Child, Identity

#: how long one load process sends when the person said nothing; it is started again with another seed
DURATION_SECONDS: Final = 1800.0
_STOP_SECONDS: Final = 5.0


class LoadFailed(TrimtabError):
    hint = "Run `trimtab load --help`; its output is in load.log in the state folder."
    retry_seconds = None


class LoadProcess:
    """Keeps one `trimtab load` running against `url`. Records of each run replace those of the run before."""

    def __init__(self, url: str, args: Sequence[str], folder: Path, on_start: Callable[[], None]) -> None:
        self._url, self._args, self._folder, self._on_start = url, list(args), folder, on_start
        self._child: Child | None = None
        self._runs = 0

    @property
    def records(self) -> Path:
        return self._folder / "records.jsonl"

    def identities(self) -> list[Identity]:
        return [self._child.identity] if self._child is not None and self._child.exit_code is None else []

    async def run(self) -> None:
        """Until cancelled. LoadFailed when the load ends with an error."""
        try:
            while True:
                await self._start()
                assert self._child is not None
                code = await self._child.wait()
                if code != 0:
                    last = " | ".join(self._child.tail().strip().splitlines()[-2:])
                    raise LoadFailed(f"the load ended with code {code}: {last}")
        finally:
            await self.stop()

    async def _start(self) -> None:
        argv = [sys.executable, "-m", "trimtab.cli.main", "load", self._url]
        if not any(a.startswith("--duration") for a in self._args):
            argv.append(f"--duration={DURATION_SECONDS:g}")
        argv += self._args
        if not any(a.startswith("--records") for a in self._args):
            argv.append(f"--records={self.records}")
        if self._runs:
            argv.append(f"--seed={self._runs}")  # the last one counts
        self._runs += 1
        environ = {**os.environ, "COLUMNS": "120"}
        self._child = await Child.start(argv, self._folder / "load.log", environ)
        self._on_start()

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop(_STOP_SECONDS)
