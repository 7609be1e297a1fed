"""Which program an argv starts: is it vLLM's server, and where do its arguments begin.

An argv is matched, never text: sidecars carry `--engine vllm` and echo lines, and `vllm bench` is no server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trimtab.engine.flag_table import KINDS
from trimtab.engine.flags import resolve
from trimtab.engine.words import Word
from trimtab.errors import RewriteRefused

SHELLS = frozenset({"sh", "bash", "dash", "ash"})
SERVER_MODULE = "vllm.entrypoints.openai.api_server"
#: text that starts vLLM somewhere in a script, wherever it stands
IN_SCRIPT = re.compile(rf"(?:^|[\s;&|('\"/])vllm\s+serve\b|-m\s+{re.escape(SERVER_MODULE)}\b")
_PYTHON = re.compile(r"python[0-9.]*")
_CLI_MODULES = frozenset({"vllm.entrypoints.cli.main", "vllm"})
#: programs that start the rest of their argv
_WRAPPERS = frozenset({
    "tini", "dumb-init", "catatonit", "env", "exec", "command", "nohup", "nice", "ionice", "time", "stdbuf", "taskset",
    "numactl", "setsid", "sudo", "gosu", "su-exec", "uv", "opentelemetry-instrument", "ddtrace-run", "nsys", "py-spy",
})  # fmt: skip
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OTHER_COMMANDS = frozenset({"vllm", "bench", "launch", "chat", "complete", "run-batch", "collect-env", "sleep", "env"})
_NOT_ENGINES = re.compile(r"router|proxy|exporter|gateway|sidecar|operator|bench|controller|client|webui|-ui\b|sim\b")
_OTHER_ENGINES = re.compile(r"sglang|tgi|text-generation|triton|trtllm|tensorrt|lmdeploy|aphrodite|llama|ollama|sim\b")
#: flags other servers have too
_COMMON = frozenset({"--host", "--port", "--config", "--log-level", "--model", "--api-key", "--seed", "--device"})


@dataclass(frozen=True)
class Program:
    """kind: how vLLM is started. first: index of the first word behind it."""

    kind: Literal["serve", "module"]
    first: int


def basename(text: str) -> str:
    return text.rsplit("/", 1)[-1]


def find_program(words: Sequence[Word]) -> Program | None:
    """The server that these words start, behind assignments and wrappers such as `exec`, `env` and `tini --`."""
    texts = [word.text for word in words]
    at, wrapped = 0, False
    while at < len(texts):
        found = _program(texts[at:])
        if found is not None:
            return Program(found.kind, found.first + at)
        if basename(texts[at]) in _WRAPPERS:
            wrapped = True
        elif basename(texts[at]) in SHELLS if wrapped else not _ASSIGNMENT.match(texts[at]):
            return None
        at += 1
    return None


def _program(texts: Sequence[str]) -> Program | None:
    name = basename(texts[0])
    if name == "vllm" and texts[1:2] == ["serve"]:
        return Program("serve", 2)
    return _python_program(texts) if _PYTHON.fullmatch(name) else None


def _python_program(texts: Sequence[str]) -> Program | None:
    at = 1
    while at < len(texts) and (re.fullmatch(r"-[uBEIsSO]+", texts[at]) or texts[at] in {"-X", "-W"}):
        at += 2 if texts[at] in {"-X", "-W"} else 1
    rest = texts[at : at + 3]
    if rest[:2] == ["-m", SERVER_MODULE]:
        return Program("module", at + 2)
    if len(rest) == 3 and rest[0] == "-m" and rest[1] in _CLI_MODULES and rest[2] == "serve":
        return Program("serve", at + 3)
    if len(rest) >= 2 and rest[0].endswith("/vllm") and rest[1] == "serve":
        return Program("serve", at + 2)
    return None


def image_reason(container: Mapping[str, Any], words: Sequence[Word], *, named: bool) -> tuple[str, int] | None:
    """Why the image's entrypoint must be vLLM, and the index of the first argument; None if it need not be.

    named: a person named this container as the engine, which is reason enough if its arguments may be vLLM's.
    """
    serve = bool(words) and words[0].text == "serve"
    if named or is_engine_image(str(container.get("image", ""))):
        why = "it was named" if named else "the image is vLLM's"
        return (why, 1 if serve else 0) if serve or _engine_arguments(words) else None
    if serve and len(words) > 1 and any(_distinctive(word.text) for word in words[1:]):
        return "args begin with serve and have vLLM's flags", 1
    if _OTHER_ENGINES.search(str(container.get("image", "")).lower()) or not words or words[0].text[:2] != "--":
        return None
    names = {word.text.split("=")[0] for word in words if _distinctive(word.text)}
    return ("args have flags that only vLLM has", 0) if len(names) > 2 else None


def is_engine_image(image: str) -> bool:
    base = basename(image.split("@")[0]).split(":")[0]
    return "vllm" in base and not _NOT_ENGINES.search(base)


def _engine_arguments(words: Sequence[Word]) -> bool:
    """Flags, or a model and flags: not another program or another subcommand."""
    if not words or words[0].text.startswith("-"):
        return True
    first = basename(words[0].text)
    if first in SHELLS | _WRAPPERS | _OTHER_COMMANDS or _PYTHON.fullmatch(first):
        return False
    return len(words) == 1 or words[1].text.startswith("-")


def _distinctive(text: str) -> bool:
    """A flag that vLLM has and other servers do not."""
    spelling = text.split("=")[0]
    if not spelling.startswith("--"):
        return False
    try:
        name = resolve(spelling).name
    except RewriteRefused:
        return True
    return name in KINDS and name not in _COMMON


def script_of(words: Sequence[Word]) -> int | None:
    """Index of the script in `sh -c script`, with the flags people use (-ec, -lc, -euo pipefail -c)."""
    at = _behind_shell(words)
    while at is not None and at < len(words) and words[at].text.startswith("-"):
        option = words[at].text
        if option.startswith("--"):
            at += 1
        elif "c" in option:
            return at + 1 if at + 1 < len(words) else None
        else:
            at += 2 if option.endswith("o") else 1
    return None


def script_file(words: Sequence[Word]) -> int | None:
    """Index of the path in `/scripts/run.sh ARGS` or `bash -e /scripts/run.sh ARGS`."""
    if not words:
        return None
    at = _behind_shell(words)
    if at is None:
        return 0 if "/" in words[0].text and not words[0].text.startswith("-") else None
    while at < len(words) and words[at].text.startswith("-") and "c" not in words[at].text:
        at += 2 if words[at].text.endswith("o") else 1
    return at if at < len(words) and not words[at].text.startswith("-") else None


def _behind_shell(words: Sequence[Word]) -> int | None:
    at = 0
    while at < len(words) and basename(words[at].text) in _WRAPPERS | {"--", "-g", "-s"}:
        at += 1
    if at < len(words) and basename(words[at].text) in SHELLS:
        return at + 1
    return None
