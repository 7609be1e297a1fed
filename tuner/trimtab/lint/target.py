"""`Target`: one engine container with all that rules look at."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from trimtab.engine.command import DEFAULT_PORT, EngineCommand, winner
from trimtab.engine.flag_table import SECRETS
from trimtab.engine.flags import Flag
from trimtab.engine.settings import SETTINGS, Setting
from trimtab.engine.values import KEY, read_integer, read_value
from trimtab.engine.words import Word
from trimtab.errors import TrimtabError
from trimtab.lint.finding import Hit, Path, Severity
from trimtab.lint.view import View, value_texts
from trimtab.manifests.mounted import ConfigMaps
from trimtab.manifests.workload import Workload

#: from a flag to the tunable it sets; --override-generation-config holds one among others
BY_FLAG: Final[Mapping[str, Setting]] = {s.flag: s for name, s in SETTINGS.items() if name != KEY}
#: workloads that end by themselves: nobody waits for them to be ready
_BATCH = frozenset({"Job", "CronJob"})
_SECRET_NAME = re.compile(r"key|token|secret|password", re.IGNORECASE)


@dataclass(frozen=True)
class Neighbours:
    """The other objects of all files, by (namespace, name); "" is no namespace."""

    config_maps: ConfigMaps = field(default_factory=dict)
    services: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Target:
    """pod_path, container_path: where pod spec and container are in the workload's document. body: the container.

    root: the path to the workload's object. seen: the command line, None if it cannot be read at all. command: what is
    known of the engine. program: how vLLM is started, "" if unknown. refusal: why Trimtab would not edit this command
    line. shape: None where it cannot be read. version: vLLM's, None if unknown. unquoted: paths of items of command
    and args that are no text.
    """

    workload: Workload
    root: Path
    pod_path: Path
    container_path: Path
    pod: Mapping[str, Any] = field(repr=False)
    body: Mapping[str, Any] = field(repr=False)
    seen: View | None = None
    command: EngineCommand | None = None
    program: str = ""
    shape: str | None = None
    refusal: TrimtabError | None = None
    version: str | None = None
    unquoted: tuple[Path, ...] = ()
    neighbours: Neighbours = field(default_factory=Neighbours, repr=False)

    # --- the workload ---
    @property
    def kind(self) -> str:
        return self.workload.kind

    @property
    def namespace(self) -> str:
        return self.workload.namespace

    @property
    def spec(self) -> Mapping[str, Any]:
        """The object's own spec."""
        at: Any = self.workload.document.data
        for part in (*self.root, "spec"):
            at = at[part] if isinstance(part, int) else mapping(at).get(part)
        return mapping(at)

    def of_object(self, *path: str | int) -> Path:
        return (*self.root, *path)

    @property
    def serves(self) -> bool:
        """Clients wait for it, so probes and a drain matter."""
        return self.kind not in _BATCH

    # --- the container ---
    def of_container(self, *path: str | int) -> Path:
        return (*self.container_path, *path)

    @property
    def image(self) -> str:
        return str(self.body.get("image") or "")

    @property
    def env(self) -> Mapping[str, tuple[int, Mapping[str, Any]]]:
        """From name to index and entry of the container's env."""
        return {str(e["name"]): (i, e) for i, e in enumerate(mappings(self.body.get("env"))) if "name" in e}

    @property
    def ports(self) -> Sequence[Mapping[str, Any]]:
        return mappings(self.body.get("ports"))

    # --- the command line ---
    @property
    def flags(self) -> tuple[Flag, ...]:
        return self.seen.scanned.flags if self.seen else ()

    def flag(self, name: str, path: str = "") -> Flag | None:
        """The flag that counts under this full name."""
        return winner(self.flags, name, path)

    def texts(self, flag: Flag) -> list[str]:
        """Its values, [] for a secret."""
        return value_texts(self.seen, flag) if self.seen and not is_secret(flag) else []

    def word(self, flag: Flag) -> Word:
        assert self.seen is not None
        return self.seen.words[flag.position]

    def integer(self, name: str) -> int | None:
        """The flag's whole number, None if it is absent, out of sight or no number."""
        found = self.flag(name)
        if found is None or found.value is None:
            return None
        try:
            value = (
                read_value(BY_FLAG[name], found.value) if name in BY_FLAG else read_integer(found.value, suffixes=False)
            )
        except ValueError:
            return None
        return value if isinstance(value, int) else None

    def switched(self, name: str) -> bool | None:
        """A boolean flag: on, off, or None where it is not given."""
        found = self.flag(name)
        return None if found is None else not found.negated

    @property
    def port(self) -> int | None:
        """Where the engine listens; None if that cannot be read."""
        if self.command is not None:
            return self.command.port
        return self.integer("--port") if self.flag("--port") else DEFAULT_PORT if self.seen else None

    def at_word(self, word: Word, message: str, *, fix: str = "", severity: Severity | None = None) -> Hit:
        return Hit(message, self._place(word), max(word.start, 0), fix, severity)

    def _place(self, word: Word) -> Path:
        """A word of a mounted file has the place of the list that names the file."""
        if word.where == "env":
            return self.of_container("env", word.item, "value")
        if word.where == "file":
            return self.of_container("args" if self.body.get("args") else "command")
        return self.of_container(word.where, word.item)

    def at(self, flag: Flag, message: str, *, fix: str = "", severity: Severity | None = None) -> Hit:
        return self.at_word(self.word(flag), message, fix=fix, severity=severity)


def is_secret(flag: Flag) -> bool:
    """A known secret, or a flag that nobody knows and that sounds like one."""
    return flag.name in SECRETS or (flag.kind == "unknown" and _SECRET_NAME.search(flag.name) is not None)


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one: manifests come in every state."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    return [mapping(v) for v in value] if isinstance(value, list) else []
