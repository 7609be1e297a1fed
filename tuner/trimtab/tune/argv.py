"""A process's command line as the one container of a pod template, so that the operator's rewriting code edits it.

The emulator's command (`trimtab emulate serve MODEL ...`) takes vLLM's flags, so it is read as `vllm serve MODEL ...`
and turned back when it is started. `--host` and `--port` are added at the end at start: vLLM takes the last spelling.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.engine.command import parse_template
from trimtab.engine.settings import Configuration
from trimtab.errors import EngineError, InputError

Json = dict[str, Any]
CONTAINER: Final = "engine"
_EMULATOR: Final = ("trimtab", "emulate")
_FIX: Final = "Write: trimtab tune [OPTIONS] -- vllm serve MODEL --flags..."


@dataclass(frozen=True)
class CommandLine:
    """The engine's command as given. `emulated`: it was `trimtab emulate`."""

    template: Json
    emulated: bool

    @classmethod
    def read(cls, argv: Sequence[str]) -> CommandLine:
        """InputError where it is not a command that can be started on a port of our choice."""
        if not argv:
            raise InputError("command", "no command is given", _FIX)
        emulated = tuple(argv[:2]) == _EMULATOR
        rest = list(argv[2:]) if emulated else []
        if emulated:
            rest = rest[1:] if rest[:1] == ["serve"] else rest
        template = template_of(["vllm", "serve", *rest] if emulated else argv)
        try:
            command = parse_template(template)
        except EngineError as error:
            raise InputError("command", str(error), _FIX) from error
        if command.shape not in ("serve", "module"):
            raise InputError("command", "is a shell script, so no port can be given to it", _FIX)
        if obstacle := command.obstacle():
            raise InputError("command", obstacle, "Tune it without that, or on Kubernetes.")
        return cls(template, emulated)

    def argv(self, template: Mapping[str, Any], port: int) -> list[str]:
        """What is started: on the loopback interface only, at `port`."""
        words = words_of(template)
        if self.emulated:
            words = [sys.executable, "-m", "trimtab.cli.main", "emulate", "serve", *words[2:]]
        return [*words, "--host", "127.0.0.1", "--port", str(port)]

    def paste_ready(self, template: Mapping[str, Any]) -> str:
        """The command line for a person's shell, as they wrote it but for the changed settings."""
        words = words_of(template)
        return shlex.join([*_EMULATOR, "serve", *words[2:]] if self.emulated else words)


def template_of(argv: Sequence[str]) -> Json:
    return {"spec": {"containers": [{"name": CONTAINER, "command": list(argv)}]}}


def words_of(template: Mapping[str, Any]) -> list[str]:
    container = template["spec"]["containers"][0]
    return [*container.get("command", ()), *container.get("args", ())]


def configuration_of(template: Mapping[str, Any]) -> Configuration:
    return parse_template(template).configuration()
