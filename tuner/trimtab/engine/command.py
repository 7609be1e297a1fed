"""A Deployment's pod template to an `EngineCommand`: which container runs vLLM, how it is started, and what is set.

In: `spec.template` as plain JSON. Out: an immutable record without any word of a secret.
Shapes read: args with the image's entrypoint, `vllm serve` lists, `python -m vllm.entrypoints.openai.api_server`, and
`sh -c` with one simple command. `configuration()` holds only what the command line sets; what `--config` or a default
sets is unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.engine.flags import Flag, Scan, scan
from trimtab.engine.locate import Group, Located, Shape, locate
from trimtab.engine.settings import SEARCHED, SETTINGS, Configuration, Value
from trimtab.engine.values import KEY, members, read_integer, read_value
from trimtab.engine.words import Where, Word
from trimtab.errors import InputError, RewriteRefused

DEFAULT_PORT = 8000
_MULTI_NODE = frozenset({"--headless", "--data-parallel-address", "--node-rank", "--master-addr", "--worker-use-ray"})
_LORA = frozenset({"--enable-lora", "--lora-modules"})
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?)(?=$|[-_+])")
_UPSTREAM = re.compile(r"(?:^|/)vllm-(?:openai|cpu|tpu|xpu|rocm)[a-z0-9-]*$")
#: repositories whose tags are their own version, not vLLM's
_BUNDLES = re.compile(r"(?:^|/)(?:lmcache|llm-d|nvidia)/")


@dataclass(frozen=True)
class EngineCommand:
    """How one container runs vLLM. `where` is the list that a new flag goes to.

    index, group: the container's place (`spec.<group>[index]`). model: None if neither named nor readable.
    version: only where the image's tag says it; else ask /version. config_file: `--config` is read too, flags here win.
    multi_node: more pods than one make an engine, so one pod cannot be tried alone.
    """

    container: str
    container_index: int
    group: Group
    where: Where
    shape: Shape
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


def parse_template(template: Mapping[str, Any], container: str | None = None) -> EngineCommand:
    """The engine in a pod template. Raises `EngineNotFound` or `RewriteRefused`; the hint says what to do."""
    located = locate(template, container)
    return describe(located, scan(located.words, located.first))


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
    if found.path or (found.kind == "boolean" and found.joined):
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
        )
    shown = "no value" if flag.value is None else f"the value {flag.value[:40]!r}"
    return RewriteRefused(
        f"{flag.name} has {shown}, which vLLM does not read", hint=f"Correct {flag.name} in the manifest's own source."
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
        where=located.where,
        shape=located.shape,
        flags=flags,
        model=model,
        served_model_name=served.value if served else model,
        port=_port(flags),
        image=image,
        version=_version(image),
        api_key_used="--api-key" in names or _has_variable(located.container, "VLLM_API_KEY"),
        multi_node=_is_multi_node(flags, located),
        lora=bool(names & _LORA),
        https="--ssl-keyfile" in names or "--ssl-certfile" in names,
        log_stats_disabled="--disable-log-stats" in names,
        config_file="--config" in names,
    )


def _model(words: Sequence[Word], scanned: Scan) -> str | None:
    named = winner(scanned.flags, "--model")
    if named is not None:
        return named.value
    for position in scanned.positionals:
        if words[position].text.lower() not in {"true", "false"}:
            return None if words[position].opaque else words[position].text
    return None


def _port(flags: Sequence[Flag]) -> int:
    found = winner(flags, "--port")
    if found is None:
        return DEFAULT_PORT
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
    return any("LWS_LEADER_ADDRESS" in word.raw for word in located.words)


def _version(image: str) -> str | None:
    """vLLM's version if the tag says so; None for latest, digests, dates, vendors' own numbers and bundles."""
    path, _, tag = image.split("@")[0].rpartition(":")
    if not path or "/" in tag:
        return None
    if marked := re.search(r"vllm[_-]v?(\d+\.\d+\.\d+(?:\.post\d+)?)", tag):
        return marked[1]
    if _BUNDLES.search(path) or not _UPSTREAM.search(path):
        return None
    found = _VERSION.match(tag)
    return found[1] if found else None
