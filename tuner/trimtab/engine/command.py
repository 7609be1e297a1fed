"""A Deployment's pod template to an `EngineCommand`: which container runs vLLM, how it is started, and what is set.

In: `spec.template` as plain JSON, and the text of mounted files where they are known. Out: an immutable record without
any word of a secret. `configuration()` holds only what the command line (and a readable `--config` file) sets; what a
default sets is unknown here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trimtab.engine.flags import Flag, Scan, scan
from trimtab.engine.image_version import engine_version
from trimtab.engine.locate import Files, Group, Located, Shape, locate
from trimtab.engine.settings import SEARCHED, SETTINGS, Configuration, Value
from trimtab.engine.values import KEY, members, read_integer, read_value
from trimtab.engine.variables import environment
from trimtab.engine.words import Where, Word
from trimtab.errors import InputError, RewriteRefused

DEFAULT_PORT = 8000
_MULTI_NODE = frozenset({"--headless", "--data-parallel-address", "--node-rank", "--master-addr", "--worker-use-ray"})
_LORA = frozenset({"--enable-lora", "--lora-modules"})


@dataclass(frozen=True)
class EngineCommand:
    """How one container runs vLLM. `where` is the list that a new flag goes to.

    index, group: the container's place (`spec.<group>[index]`). why: what showed that it runs vLLM.
    program: how vLLM itself is started. features: what a script has besides (heredoc, chain, pipe, "arguments" for
    `"$@"`, "config-file" for one that was read). model: None if neither named nor readable.
    version: only where the pod template says it; else ask /version. config_file: `--config` is given, flags here win.
    variables: VLLM_* variables of the container, None where the value is out of sight or a secret.
    multi_node: more pods than one make an engine, so one pod cannot be tried alone.
    """

    container: str
    container_index: int
    group: Group
    why: str
    where: Where
    shape: Shape
    program: Literal["serve", "module"]
    features: frozenset[str]
    flags: tuple[Flag, ...]
    model: str | None
    served_model_name: str | None
    port: int
    image: str
    version: str | None
    api_key_used: bool
    multi_node: bool
    lora: bool
    https: bool
    log_stats_disabled: bool
    config_file: bool
    variables: Mapping[str, str | None] = field(default_factory=dict, repr=False)

    def flag(self, name: str) -> Flag | None:
        """The flag that wins under this full name (`--max-num-seqs`), without a dotted key."""
        return winner(self.flags, name)

    def obstacle(self) -> str:
        """Why an engine that can be read cannot be tuned, and what its owner can do; "" when nothing does."""
        if self.multi_node:
            return "one engine spans several processes or nodes: a canary would need a whole second group"
        if self.log_stats_disabled:
            return "--disable-log-stats removes the metrics: leave it out while tuning"
        if self.https:
            return "it serves HTTPS, and its metrics are not scraped over TLS: leave out --ssl-* or use Prometheus"
        return ""

    def configuration(self, names: Iterable[str] = SEARCHED) -> Configuration:
        """What the command line sets of these settings; by default those that the search changes.

        Raises `RewriteRefused` for a value that is out of sight or does not parse.
        """
        return Configuration.of({name: setting_value(self.flags, name) for name in names})

    def in_sight(self) -> Configuration:
        """All settings whose value can be read and that vLLM would take; the others are left out."""
        return Configuration.of({n: v for n in SETTINGS if (v := _taken(self.flags, n)) is not None})


def parse_template(
    template: Mapping[str, Any], container: str | None = None, files: Files | None = None
) -> EngineCommand:
    """The engine in a pod template. Raises `EngineNotFound` or `RewriteRefused`; the hint says what to do.

    files: text of mounted files by absolute path in the container: scripts, and what `--config` names.
    """
    located = locate(template, container, files)
    return describe(located, scan_command(located))


def scan_command(located: Located, version: str | None = None) -> Scan:
    """The flags, as the pod's own vLLM version reads them. `version`: where the caller knows it better."""
    stated = engine_version(str(located.container.get("image", "")), located.metadata)
    return scan(located.words, located.first, version or stated)


def winner(flags: Sequence[Flag], name: str, path: str = "") -> Flag | None:
    """The flag of that full name and dotted key whose value counts."""
    return next((f for f in flags if f.wins and f.name == name and f.path == path), None)


def setting_value(flags: Sequence[Flag], name: str) -> Value | None:
    """The value of one setting, None if it is not set."""
    setting = SETTINGS[name]
    if setting.name == KEY:
        return _generation_tokens(flags)
    found = winner(flags, setting.flag)
    if found is None:
        return None
    if found.path or (found.kind == "boolean" and found.value_positions):
        raise _unreadable(found)
    if setting.kind == "boolean" and not found.value_positions:
        return not found.negated
    if found.value is None:
        raise _unreadable(found)
    try:
        return read_value(setting, found.value)
    except ValueError:
        raise _unreadable(found) from None


def _taken(flags: Sequence[Flag], name: str) -> Value | None:
    try:
        value = setting_value(flags, name)
        return None if value is None else SETTINGS[name].check(value)
    except (RewriteRefused, InputError):
        return None


def generation_rest(flags: Sequence[Flag]) -> tuple[tuple[str, str], ...]:
    """All of --override-generation-config that counts, but max_new_tokens: what an edit must not change."""
    flag = SETTINGS[KEY].flag
    dotted = [f for f in flags if f.name == flag and f.path and f.path != KEY]
    if any(f.path for f in flags if f.name == flag):
        return tuple((f.path, repr(f.value)) for f in dotted)
    found = winner(flags, flag)
    if found is None:
        return ()
    return tuple((m.key, repr(m.value)) for m in generation_members(found) if m.key != KEY)


def generation_members(flag: Flag) -> list[Any]:
    """The members of the flag's JSON; `RewriteRefused` if it is none."""
    if flag.value is None:
        raise _unreadable(flag)
    try:
        return list(members(flag.value))
    except ValueError:
        raise _unreadable(flag) from None


def _generation_tokens(flags: Sequence[Flag]) -> int | None:
    flag = SETTINGS[KEY].flag
    dotted = winner(flags, flag, KEY)
    if dotted is not None:
        return _integer(dotted, suffixes=True)
    found = winner(flags, flag)
    if found is None:
        return None
    values = [m.value for m in generation_members(found) if m.key == KEY]
    if not values or values[-1] is None:
        return None
    if not isinstance(values[-1], int) or isinstance(values[-1], bool):
        raise _unreadable(found)
    return values[-1]


def _integer(flag: Flag, *, suffixes: bool) -> int:
    if flag.value is None:
        raise _unreadable(flag)
    try:
        return read_integer(flag.value, suffixes=suffixes)
    except ValueError:
        raise _unreadable(flag) from None


def _unreadable(flag: Flag) -> RewriteRefused:
    if flag.opaque:
        return RewriteRefused(
            f"the value of {flag.name} comes from a variable or pattern whose value is not in the pod template",
            hint=f"Write the value of {flag.name} into args, or use mode Recommend.",
            code="ValueOutOfSight",
        )
    shown = "no value" if flag.value is None else f"the value {flag.value[:40]!r}"
    return RewriteRefused(
        f"{flag.name} has {shown}, which vLLM does not read",
        hint=f"Correct {flag.name} in the manifest's own source.",
        code="ValueNotReadable",
    )


def describe(located: Located, scanned: Scan) -> EngineCommand:
    """The record of a located and scanned command line."""
    flags = scanned.flags
    names = {f.name for f in flags}
    image = str(located.container.get("image", ""))
    model = _model(located.words, scanned)
    served = winner(flags, "--served-model-name")
    return EngineCommand(
        container=located.name,
        container_index=located.index,
        group=located.group,
        why=located.why,
        where=located.where,
        shape=located.shape,
        program=located.program,
        features=located.features,
        flags=flags,
        model=model,
        served_model_name=served.value if served else model,
        port=_port(flags, located.container),
        image=image,
        version=engine_version(image, located.metadata),
        api_key_used="--api-key" in names or _has_variable(located.container, "VLLM_API_KEY"),
        multi_node=_is_multi_node(flags, located),
        lora=bool(names & _LORA),
        https="--ssl-keyfile" in names or "--ssl-certfile" in names,
        log_stats_disabled="--disable-log-stats" in names,
        config_file="--config" in names,
        variables=_variables(located.container),
    )


def _variables(container: Mapping[str, Any]) -> dict[str, str | None]:
    known = environment(container)
    return {n: (None if n.endswith(("_KEY", "_TOKEN")) else v) for n, v in known.items() if n.startswith("VLLM_")}


def _model(words: Sequence[Word], scanned: Scan) -> str | None:
    named = winner(scanned.flags, "--model")
    if named is not None:
        return named.value
    for position in scanned.positionals:
        if words[position].text.lower() not in {"true", "false"}:
            return None if words[position].opaque else words[position].text
    return None


def _port(flags: Sequence[Flag], container: Mapping[str, Any]) -> int:
    """The port of --port; if that is out of sight, the one port the container declares; else vLLM's default."""
    found = winner(flags, "--port")
    if found is None:
        return DEFAULT_PORT
    if found.opaque:
        ports = container.get("ports")
        declared = [p.get("containerPort") for p in ports if isinstance(p, Mapping)] if isinstance(ports, list) else []
        if len(declared) == 1 and isinstance(declared[0], int):
            return declared[0]
    port = _integer(found, suffixes=False)
    if not 0 < port < 65536:
        raise _unreadable(found)
    return port


def _has_variable(container: Mapping[str, Any], name: str) -> bool:
    entries = container.get("env")
    return isinstance(entries, list) and any(isinstance(e, Mapping) and e.get("name") == name for e in entries)


def _is_multi_node(flags: Sequence[Flag], located: Located) -> bool:
    """Several pods or a Ray cluster make one engine."""
    if any(f.name in _MULTI_NODE for f in flags):
        return True
    nodes = winner(flags, "--nnodes")
    backend = winner(flags, "--distributed-executor-backend")
    if (nodes and nodes.value != "1") or (backend and backend.value == "ray"):
        return True
    return located.cluster or any("LWS_LEADER_ADDRESS" in word.raw for word in located.words)
