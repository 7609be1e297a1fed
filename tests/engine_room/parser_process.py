"""vLLM's own argument parser as a child process in vLLM's venv; see vllm_parser.py for what it is asked."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Parser:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, request: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"vLLM's parser ended with {self._process.wait()} on {request}"
        return json.loads(line)


@contextmanager
def vllm_parser(venv: Path, folder: Path) -> Iterator[Parser]:
    """`folder` holds the config file that a question names."""
    script = Path(__file__).with_name("vllm_parser.py")
    command = [str(venv / "bin" / "python"), str(script), str(folder / "config.yaml")]
    with (
        (folder / "stderr").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            yield Parser(process)
        finally:
            process.kill()
