"""Find the container that runs vLLM and the words of its command line.

In: a pod template. Out: `Located`: the container, the shape of its command line, its words and where the flags begin.
An argv is matched, never text: sidecars carry `--engine vllm` and echo lines. Init containers count
only as native sidecars.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trimtab.engine import shell
from trimtab.engine.flag_table import KINDS
from trimtab.engine.flags import resolve
from trimtab.engine.variables import environment, expand
from trimtab.engine.words import Where, Word
from trimtab.errors import EngineNotFound, RewriteRefused

#: image entrypoint with args; `vllm serve`; `python -m vllm...`; a script that is one simple command
Shape = Literal["image", "serve", "module", "shell"]
Group = Literal["containers", "initContainers"]

_SHELLS = frozenset({"sh", "bash", "dash", "ash"})
_PYTHON = re.compile(r"python[0-9.]*")
_SERVER_MODULE = "vllm.entrypoints.openai.api_server"
_CLI_MODULES = frozenset({"vllm.entrypoints.cli.main", "vllm"})
_INIT_PROCESSES = frozenset({"tini", "dumb-init"})
_OTHER_COMMANDS = frozenset({"vllm", "bench", "launch", "chat", "complete", "run-batch", "collect-env", "sleep", "env"})
_NOT_ENGINES = re.compile(r"router|proxy|exporter|gateway|sidecar|operator|bench|controller|client|webui|-ui\b|sim\b")
_IN_SCRIPT = re.compile(r"(?:^|[\s;&|('\"/])vllm\s+serve\b|-m\s+vllm\.entrypoints\.openai\.api_server\b")
#: flags other servers have too
_COMMON = frozenset({"--host", "--port", "--config", "--log-level", "--model", "--api-key", "--seed", "--device"})


@dataclass(frozen=True)
class Located:
    """`words` is the whole command line; `first` is the index of its first word behind `vllm serve` or the module."""

    container: Mapping[str, Any] = field(repr=False)
    group: Group
    index: int
    name: str
    shape: Shape
    where: Where
    words: tuple[Word, ...]
    first: int


def locate(template: Mapping[str, Any], container: str | None = None) -> Located:
    """The one engine container, or `container` by name.

    Raises `EngineNotFound` if no container or more than one runs vLLM, `RewriteRefused` if the one that does has a
    command line that cannot be edited.
    """
    candidates = list(_candidates(template))
    if container is not None:
        candidates = [c for c in candidates if c[2].get("name") == container]
        if not candidates:
            raise EngineNotFound(f"the pod has no container named {container!r}")
    found: list[Located] = []
    refusals: list[RewriteRefused] = []
    for group, index, body in candidates:
        try:
            located = _read_container(group, index, body)
        except RewriteRefused as refusal:
            refusals.append(refusal)
            continue
        if located is not None:
            found.append(located)
    if len(found) + len(refusals) > 1:
        raise EngineNotFound(f"{len(found) + len(refusals)} containers of the pod seem to run vLLM")
    if refusals:
        raise refusals[0]
    if not found:
        raise EngineNotFound("no container of the pod runs vLLM in a form that can be read")
    return found[0]


def _candidates(template: Mapping[str, Any]) -> Iterator[tuple[Group, int, Mapping[str, Any]]]:
    spec = template.get("spec") if isinstance(template, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(spec.get("containers"), list):
        raise EngineNotFound("the pod template has no spec.containers", hint="Give a Deployment's spec.template.")
    for index, body in enumerate(spec["containers"]):
        if isinstance(body, Mapping):
            yield "containers", index, body
    sidecars = spec.get("initContainers")
    for index, body in enumerate(sidecars if isinstance(sidecars, list) else []):
        if isinstance(body, Mapping) and body.get("restartPolicy") == "Always":
            yield "initContainers", index, body


def _read_container(group: Group, index: int, body: Mapping[str, Any]) -> Located | None:
    words = (*_list_words(body, "command"), *_list_words(body, "args"))
    name = str(body.get("name", ""))
    for shape, reader in _READERS:
        read = reader(body, words)
        if read is not None:
            line, first = read
            return Located(body, group, index, name, shape, _appending_to(body, line, shape), line, first)
    return None


def _list_words(body: Mapping[str, Any], where: Where) -> tuple[Word, ...]:
    items = body.get(where)
    if items is None:
        return ()
    if not isinstance(items, list):
        raise EngineNotFound(f"container {body.get('name')!r}: {where} is not a list")
    known = environment(body)
    words = []
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise EngineNotFound(
                f"container {body.get('name')!r}: {where}[{index}] is not text",
                hint="Put numbers and booleans in args in quotes; Kubernetes takes only text there.",
            )
        expansion = expand(item, known)
        words.append(Word(expansion.text, where, index, item, expansion.opaque, expansion.text != item))
    return tuple(words)


def _appending_to(body: Mapping[str, Any], line: Sequence[Word], shape: Shape) -> Where:
    if shape == "shell":
        return line[0].where
    return "args" if body.get("args") or not body.get("command") else "command"


_Read = tuple[tuple[Word, ...], int] | None


def _basename(text: str) -> str:
    return text.rsplit("/", 1)[-1]


def _program_end(words: Sequence[Word]) -> tuple[Literal["serve", "module"], int] | None:
    """Which engine program `words` starts, and where its arguments begin."""
    texts = [word.text for word in words]
    if texts and _basename(texts[0]) in _INIT_PROCESSES:
        stop = texts.index("--") + 1 if "--" in texts else 1
        inner = _program_end(words[stop:])
        return inner and (inner[0], inner[1] + stop)
    if len(texts) >= 2 and _basename(texts[0]) == "vllm" and texts[1] == "serve":
        return "serve", 2
    if texts and _PYTHON.fullmatch(_basename(texts[0])):
        return _python_program(texts)
    return None


def _python_program(texts: Sequence[str]) -> tuple[Literal["serve", "module"], int] | None:
    at = 1
    while at < len(texts) and re.fullmatch(r"-[uBEIsSO]+", texts[at]):
        at += 1
    rest = texts[at : at + 3]
    if rest[:2] == ["-m", _SERVER_MODULE]:
        return "module", at + 2
    if len(rest) == 3 and rest[0] == "-m" and rest[1] in _CLI_MODULES and rest[2] == "serve":
        return "serve", at + 3
    if len(rest) >= 2 and rest[0].endswith("/vllm") and rest[1] == "serve":
        return "serve", at + 2
    return None


def _read_program(program: str) -> Callable[[Mapping[str, Any], tuple[Word, ...]], _Read]:
    def read(body: Mapping[str, Any], words: tuple[Word, ...]) -> _Read:
        found = _program_end(words)
        return (words, found[1]) if found and found[0] == program else None

    return read


def _read_image(body: Mapping[str, Any], words: tuple[Word, ...]) -> _Read:
    if body.get("command"):
        return None
    serve = bool(words) and words[0].text == "serve"
    if _engine_image(str(body.get("image", ""))):
        return (words, 1 if serve else 0) if serve or _engine_arguments(words) else None
    if serve and len(words) > 1 and any(_distinctive(word.text) for word in words[1:]):
        return words, 1
    return None


def _engine_arguments(words: Sequence[Word]) -> bool:
    """Flags, or a model and flags: not another program or another subcommand."""
    if not words or words[0].text.startswith("-"):
        return True
    first = _basename(words[0].text)
    if first in _SHELLS | _INIT_PROCESSES | _OTHER_COMMANDS or _PYTHON.fullmatch(first):
        return False
    return len(words) == 1 or words[1].text.startswith("-")


def _engine_image(image: str) -> bool:
    base = _basename(image.split("@")[0]).split(":")[0]
    return "vllm" in base and not _NOT_ENGINES.search(base)


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


def _read_shell(body: Mapping[str, Any], words: tuple[Word, ...]) -> _Read:
    script = _script(words)
    if script is None:
        return None
    try:
        line = shell.split(script.raw, environment(body), script.where, script.item)
    except RewriteRefused:
        if _IN_SCRIPT.search(script.raw):
            raise
        return None
    start = 0
    while start < len(line) and re.match(r"[A-Za-z_][A-Za-z0-9_]*=", line[start].text):
        start += 1
    if start < len(line) and line[start].text == "exec":
        start += 1
    found = _program_end(line[start:])
    return (line, start + found[1]) if found else None


def _script(words: Sequence[Word]) -> Word | None:
    """The script of `sh -c script`, with the flags people use (-ec, -lc, -euo pipefail -c)."""
    if not words or _basename(words[0].text) not in _SHELLS:
        return None
    at = 1
    while at < len(words) and words[at].text.startswith("-"):
        option = words[at].text
        if option.startswith("--"):
            at += 1
        elif "c" in option:
            return words[at + 1] if at + 1 < len(words) else None
        else:
            at += 2 if option.endswith("o") else 1
    return None


_READERS: tuple[tuple[Shape, Callable[[Mapping[str, Any], tuple[Word, ...]], _Read]], ...] = (
    ("serve", _read_program("serve")),
    ("module", _read_program("module")),
    ("shell", _read_shell),
    ("image", _read_image),
)
