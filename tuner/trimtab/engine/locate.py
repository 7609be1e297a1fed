"""Find the container that runs vLLM and the words of its command line.

In: a pod template, and the files mounted into it where they are known. Out: `Located`: the container, the shape of its
command line, its words and where new flags go. Init containers count only as native sidecars.
Hazard: what cannot be read is refused with a reason; a container that is not vLLM at all is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trimtab.engine.config_file import config_path, config_words, insert_at
from trimtab.engine.program import (
    IN_SCRIPT,
    Program,
    basename,
    find_program,
    image_reason,
    is_engine_image,
    script_file,
    script_of,
)
from trimtab.engine.script import Script, read_script
from trimtab.engine.shell import ARGUMENTS, Context, Line, read_command, refused
from trimtab.engine.variables import editable_entry, environment, expand, references
from trimtab.engine.words import Where, Word
from trimtab.errors import EngineNotFound, RewriteRefused

#: image entrypoint with args; `vllm serve`; `python -m vllm...`; a command inside a shell script
Shape = Literal["image", "serve", "module", "shell"]
Group = Literal["containers", "initContainers"]
#: text of mounted files by absolute path in the container
Files = Mapping[str, str]
#: other commands of a script that make this pod one part of an engine
_CLUSTER_WORDS = ("ray start", "LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX", "RAY_ADDRESS")
_SPLIT_SAFE = frozenset("'\"\\$`*?[]{}~#&;|<>()!\n")


@dataclass(frozen=True)
class Place:
    """A place in a script: behind the character before `end` of the text in `where[item]`."""

    where: Where
    item: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A command line: `words` is all of it, `first` the index of its first word behind `vllm serve` or the module.

    why: what showed that this runs vLLM. program: how vLLM itself is started. features: of the script around it.
    where: the list that new flags go to; append: where in a script, if they go into it, else None.
    cluster: the script makes this pod a part of a larger engine. refusal: why it can be read but must not be edited.
    """

    shape: Shape
    program: Literal["serve", "module"]
    why: str
    where: Where
    words: tuple[Word, ...]
    first: int
    append: Place | None = None
    features: frozenset[str] = frozenset()
    cluster: bool = False
    refusal: RewriteRefused | None = None


@dataclass(frozen=True, kw_only=True)
class Located(Reading):
    """The engine's command line and its container, `spec.<group>[index]` of the pod. metadata: the pod's."""

    container: Mapping[str, Any] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    group: Group
    index: int
    name: str


def locate(
    template: Mapping[str, Any], container: str | None = None, files: Files | None = None, *, tolerant: bool = False
) -> Located:
    """The one engine container, or `container` by name. tolerant: also one that must not be edited, for looking at.

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
            read = _read_container(body, files or {}, named=container is not None)
        except RewriteRefused as refusal:
            refusals.append(refusal)
            continue
        if read is not None:
            name = str(body.get("name", ""))
            found.append(
                Located(container=body, metadata=_metadata(template), group=group, index=index, name=name, **vars(read))
            )
    if len(found) + len(refusals) > 1:
        raise EngineNotFound(f"{len(found) + len(refusals)} containers of the pod seem to run vLLM")
    if refusals:
        raise refusals[0]
    if not found:
        raise _hidden(candidates) or EngineNotFound("no container of the pod runs vLLM in a form that can be read")
    if found[0].refusal is not None and not tolerant:
        raise found[0].refusal
    return found[0]


def _hidden(candidates: Sequence[tuple[Group, int, Mapping[str, Any]]]) -> RewriteRefused | None:
    """A refusal where vLLM's image is started by something that is not in the manifest."""
    for _, _, body in candidates:
        words = (*_list_words(body, "command"), *_list_words(body, "args"))
        if is_engine_image(str(body.get("image", ""))) and script_file(words) is not None:
            return RewriteRefused(
                "vLLM's image is started by a script or program whose text is not in the pod template",
                hint="Give its ConfigMap too, start vLLM by command and args, or use mode Recommend.",
                code="CommandOutOfSight",
            )
    return None


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


def _metadata(template: Mapping[str, Any]) -> Mapping[str, Any]:
    found = template.get("metadata")
    return found if isinstance(found, Mapping) else {}


def _read_container(body: Mapping[str, Any], files: Files, *, named: bool) -> Reading | None:
    words = (*_list_words(body, "command"), *_list_words(body, "args"))
    read = _read_program(body, words) or _read_shell(body, words, files) or _read_image(body, words, named=named)
    return None if read is None else _with_config(read, files)


def _with_config(read: Reading, files: Files) -> Reading:
    """The words of the file behind --config, in the place where vLLM puts them."""
    path = config_path(read.words, read.first)
    if path is None or path not in files:
        return read
    added = config_words(files[path], path, read.program)
    at = insert_at(read.words, read.first, read.program)
    words = (*read.words[:at], *added, *read.words[at:])
    return replace(read, words=words, features=read.features | {"config-file"})


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
        variable = expansion.opaque or expansion.text != item
        words.append(Word(expansion.text, where, index, item, expansion.opaque, "variable" if variable else "literal"))
    return tuple(words)


def _list_sink(body: Mapping[str, Any]) -> Where:
    return "args" if body.get("args") or not body.get("command") else "command"


def _read_program(body: Mapping[str, Any], words: tuple[Word, ...]) -> Reading | None:
    found = find_program(words)
    if found is None:
        return None
    start = "vllm serve" if found.kind == "serve" else "python -m vllm's server module"
    return Reading(
        shape=found.kind, program=found.kind, why=f"its command line starts {start}", where=_list_sink(body),
        words=words, first=found.first,
    )  # fmt: skip


def _read_image(body: Mapping[str, Any], words: tuple[Word, ...], *, named: bool) -> Reading | None:
    reason = None if body.get("command") else image_reason(body, words, named=named)
    if reason is None:
        return None
    return Reading(shape="image", program="serve", why=reason[0], where="args", words=words, first=reason[1])


def _read_shell(body: Mapping[str, Any], words: tuple[Word, ...], files: Files) -> Reading | None:
    """A script in the list, or one in a mounted file whose arguments are in the list."""
    at = script_of(words)
    if at is not None:
        # behind `sh -c script` the next item is $0, and the arguments follow it
        return _read_script(body, words[at].raw, words[at].where, words[at].item, words[at + 2 :], len(words) > at + 1)
    at = script_file(words)
    if at is None or words[at].text not in files:
        return None
    read = _read_script(body, files[words[at].text], "file", 0, words[at + 1 :], True)
    if read is None:
        return None
    if "arguments" not in read.features:
        refusal = RewriteRefused(
            f"the flags stand in {words[at].text}, a mounted script that other Deployments may share",
            hint='End the script with exec vllm serve "$@" and put the flags into args, or edit its ConfigMap.',
            code="CommandOutOfSight",
        )
        return replace(read, refusal=read.refusal or refusal)
    return read


def _read_script(
    body: Mapping[str, Any], text: str, where: Where, item: int, arguments: tuple[Word, ...], named: bool
) -> Reading | None:
    script = read_script(text)
    starts = [c for c in script.commands if IN_SCRIPT.search(text[c.start : c.end]) or "vllm" in text[c.start : c.end]]
    context = _context(body, script)
    engines: list[tuple[Line, Program, str]] = []
    unread: RewriteRefused | None = None
    for command in starts:
        try:
            line = read_command(text, command.start, context, where, item)
        except RewriteRefused as refusal:
            unread = unread or (refusal if IN_SCRIPT.search(text[command.start : command.end]) else None)
            continue
        found = find_program(line.words)
        if found is not None:
            engines.append((line, found, command.trouble))
    if not engines:
        _refuse_unread(text, script, unread)
        return None
    if len(engines) > 1:
        raise refused(f"{len(engines)} commands that start vLLM", "SeveralEngines")
    if script.broken:
        raise refused(f"a syntax error in line {script.broken}")
    line, program, trouble = engines[0]
    code = "BackgroundJob" if "background" in trouble else "ScriptNotReadable"
    obstacle = refused(f"vLLM {trouble}", code) if trouble else None
    cluster = any(word in text for word in _CLUSTER_WORDS)
    end = Place(where, item, line.end)
    read = Reading(
        shape="shell", program=program.kind, why="a script starts vLLM", where=where, words=line.words,
        first=program.first, append=end, features=script.features, refusal=obstacle,
    )  # fmt: skip
    return _with_arguments(body, script, replace(read, cluster=cluster), arguments, named)


def _refuse_unread(text: str, script: Script, unread: RewriteRefused | None) -> None:
    if not IN_SCRIPT.search(text):
        return
    if unread is not None:
        raise unread
    if any(c.name == "eval" for c in script.commands):
        raise refused("vLLM inside eval", "Eval")
    if "heredoc" in script.features:
        raise refused("vLLM inside a here-document", "CommandOutOfSight")
    if script.broken:
        raise refused(f"a syntax error in line {script.broken}")
    if any(basename(c.name) in {"sh", "bash", "dash", "ash", "ssh", "xargs", "su"} for c in script.commands):
        raise refused("vLLM inside another shell", "CommandOutOfSight")


def _with_arguments(
    body: Mapping[str, Any], script: Script, read: Reading, arguments: tuple[Word, ...], named: bool
) -> Reading:
    """The command with the items of the list in the place of `"$@"`, if it has one.

    A bare `$@` is the same where no item is split or expanded once more (KServe's vLLM runtime is written so).
    """
    line = read.words
    here = [i for i, word in enumerate(line) if word.raw in ('"$@"', "$@") and word.text == ARGUMENTS and word.opaque]
    if not here:
        return read
    refusal = None
    if here != [len(line) - 1]:
        refusal = refused('"$@" that is not the last argument', "ArgumentsOutOfSight")
    elif script.positional:
        refusal = refused('commands that change "$@"', "ArgumentsOutOfSight")
    elif line[here[0]].raw == "$@" and ("IFS" in script.assigned or not all(_stays_one(w) for w in arguments)):
        refusal = refused('$@ without quotes, and arguments that it would split; write "$@"', "ArgumentsOutOfSight")
    elif not named:
        refusal = RewriteRefused(
            'the script passes "$@" on, and no item behind it is there to be $0',
            hint="Add an item -- behind the script; the arguments follow it.",
            code="ArgumentsOutOfSight",
        )
    if refusal is not None:
        return replace(read, refusal=read.refusal or refusal)
    words = (*line[:-1], *arguments)
    return replace(read, words=words, where=_list_sink(body), append=None, features=script.features | {"arguments"})


def _stays_one(word: Word) -> bool:
    """Whether an unquoted expansion leaves the word as it is: nothing to split, no pattern."""
    return not word.opaque and word.text != "" and not any(c.isspace() or c in "*?[\\" for c in word.text)


def _context(body: Mapping[str, Any], script: Script) -> Context:
    kubelet = environment(body)
    hidden = script.unsure
    shell = {name: (None if hidden else value) for name, value in kubelet.items()} | dict(script.assigned)
    from_elsewhere = bool(body.get("envFrom")) or hidden

    def fields(name: str) -> tuple[Word, ...] | None:
        return None if hidden or name in script.assigned else _fields(body, name)

    def defaults(name: str) -> bool:
        return not from_elsewhere and name not in shell

    return Context(kubelet, shell, script.spans, fields, defaults)


def _fields(body: Mapping[str, Any], name: str) -> tuple[Word, ...] | None:
    """The words of a variable's value that the shell splits, each with its place in the value."""
    entry = editable_entry(body, name)
    if entry is None or not _SPLIT_SAFE.isdisjoint(entry[1]):
        return None
    index, value = entry
    shared = references(body, name) > 1
    words: list[Word] = []
    at = 0
    for text in value.split():
        start = value.index(text, at)
        words.append(Word(text, "env", index, text, start=start, end=start + len(text), before=at, shared=shared))
        at = start + len(text)
    return tuple(words)
