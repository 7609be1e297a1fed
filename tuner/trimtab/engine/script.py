"""The structure of a shell script: its simple commands, what stands around each, and its variables.

In: the text of `sh -c` or of a mounted script. Out: `Script`. The grammar is tree-sitter's for bash, which dash and
ash scripts are a part of; nothing is executed. What a command's words are is read by `trimtab.engine.shell`.
Hazard: the kubelet has its say before the shell: `$$` is one dollar, and `$(NAME)` may be text and no command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import tree_sitter
import tree_sitter_bash

_EXPANSIONS = frozenset({"command_substitution", "arithmetic_expansion", "expansion", "process_substitution"})
#: commands that can set any variable, so that no value is sure behind them
_SETTERS = frozenset({"source", ".", "eval", "read", "mapfile", "readarray", "getopts"})
#: `source venv/bin/activate` changes the paths and nothing that an engine's flags are made of
_ACTIVATE = re.compile(r"(?:source|\.)\s+\S+/(?:activate|conda\.sh)['\"]?\s*")
#: `set -euo pipefail` and the like leave "$@" alone
_SET_OPTIONS = re.compile(r"set(?:\s+[-+][A-Za-z]+(?:\s+(?:pipefail|errexit|nounset|xtrace))?)*\s*")
_LITERAL = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")
_ENCLOSING = {
    "command_substitution": "inside a command substitution",
    "process_substitution": "inside a process substitution",
    "function_definition": "inside a shell function",
}
#: a last line that is continued by nothing, which shells accept and the grammar does not
_LAST_CONTINUATION = re.compile(r"\\\n\s*\Z")
MAX_SCRIPT = 256 * 1024


@dataclass(frozen=True)
class Command:
    """A simple command: `start` is where it begins, its assignments included.

    trouble: why it cannot be edited, such as "in the background (&)"; "" if nothing is in the way.
    """

    start: int
    end: int
    line: int
    name: str
    trouble: str


@dataclass(frozen=True)
class Script:
    """commands: in order. spans: expansions, from start to end. broken: the line of the first syntax error, 0 if none.

    assigned: variables that the script sets; the value where it is set once, to plain text, in all cases, else None.
    unsure: some command may set any variable. positional: it changes "$@". features: what a reader would notice.
    """

    text: str
    commands: tuple[Command, ...]
    spans: Mapping[int, int]
    broken: int
    assigned: Mapping[str, str | None]
    unsure: bool
    positional: bool
    features: frozenset[str]


@lru_cache(maxsize=1)
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def read_script(text: str) -> Script:
    """The structure of `text`; never raises, see `Script.broken`."""
    root = _parser().parse(_masked(text).encode("ascii")).root_node
    nodes = list(_walk(root))
    commands = tuple(_command(node, text) for node in nodes if node.type == "command")
    plain = [c for c in commands if not _ACTIVATE.fullmatch(text[c.start : c.end])]
    unsure = any(c.name in _SETTERS for c in plain) or any(_exports_output(n) for n in nodes)
    return Script(
        text=text,
        commands=commands,
        spans={n.start_byte: n.end_byte for n in nodes if n.type in _EXPANSIONS},
        broken=_first_error(nodes) if root.has_error else 0,
        assigned=_assignments(nodes, text),
        unsure=unsure,
        positional=any(_changes_arguments(c, text) for c in plain),
        features=frozenset(_features(nodes)),
    )


def _changes_arguments(command: Command, text: str) -> bool:
    if command.name == "set":
        return not _SET_OPTIONS.fullmatch(text[command.start : command.end])
    return command.name in {"shift", "eval", "source", "."}


def _exports_output(node: tree_sitter.Node) -> bool:
    """`export $(cat .env)`: names nobody knows."""
    return node.type == "declaration_command" and any(c.type in _EXPANSIONS for c in node.children)


def _masked(text: str) -> str:
    """One ASCII character for each, so that offsets stay; `$$`, the kubelet's one dollar, must not read as a PID."""
    plain = "".join(c if c < "\x80" else "x" for c in text[:MAX_SCRIPT]).replace("$$", "_$")
    end = _LAST_CONTINUATION.search(plain)
    return plain[: end.start()] + " " * (len(plain) - end.start()) if end else plain


def _walk(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(node.children))


def _first_error(nodes: list[tree_sitter.Node]) -> int:
    return next((n.start_point[0] + 1 for n in nodes if n.type == "ERROR" or n.is_missing), 1)


def _command(node: tree_sitter.Node, text: str) -> Command:
    name = node.child_by_field_name("name")
    return Command(
        node.start_byte,
        node.end_byte,
        node.start_point[0] + 1,
        text[name.start_byte : name.end_byte] if name else "",
        _trouble(node),
    )


def _trouble(node: tree_sitter.Node) -> str:
    inner = node
    while inner.parent is not None:
        following = inner.next_sibling
        if following is not None and following.type == "&":
            return "in the background (&)"
        if inner.type in _ENCLOSING:
            return _ENCLOSING[inner.type]
        inner = inner.parent
    return ""


def _assignments(nodes: list[tree_sitter.Node], text: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for node in nodes:
        if node.type in {"for_statement", "select_statement", "c_style_for_statement"}:
            variable = node.child_by_field_name("variable")
            if variable is not None:
                found[text[variable.start_byte : variable.end_byte]] = None
        elif node.type == "unset_command":
            found.update({text[c.start_byte : c.end_byte]: None for c in node.children if c.type == "variable_name"})
        elif node.type == "variable_assignment" and node.parent is not None and node.parent.type != "command":
            name = text[node.children[0].start_byte : node.children[0].end_byte]
            found[name] = None if name in found or not _always(node) else _literal(node, text)
    return found


def _always(node: tree_sitter.Node) -> bool:
    """Whether the assignment is made whatever happens: at top level, not behind && or in a pipe."""
    parent = node.parent
    if parent is not None and parent.type == "declaration_command":
        parent = parent.parent
    return parent is not None and parent.type == "program"


def _literal(node: tree_sitter.Node, text: str) -> str | None:
    value = node.child_by_field_name("value")
    if value is None:
        return ""
    written = text[value.start_byte : value.end_byte]
    if len(written) > 1 and written[0] == written[-1] and written[0] in "'\"":
        written = written[1:-1]
    return written if _LITERAL.fullmatch(written) else None


def _features(nodes: list[tree_sitter.Node]) -> Iterator[str]:
    kinds = {n.type for n in nodes}
    words = {"heredoc_redirect": "heredoc", "pipeline": "pipe", "if_statement": "if", "for_statement": "loop",
             "while_statement": "loop", "case_statement": "case", "function_definition": "function"}  # fmt: skip
    yield from (words[kind] for kind in kinds if kind in words)
    if any(n.type == "list" and any(c.type == "&&" for c in n.children) for n in nodes):
        yield "chain"
