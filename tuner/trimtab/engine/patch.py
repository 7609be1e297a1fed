"""The difference of two pod templates for a person or a program to apply.

`json_patch` is minimal: items of the one container's lists or values of its variables, each tested before it is
replaced. `paste_ready` is text
for a terminal: hostile text in args stays data in every shell, and API keys are not shown.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from trimtab.engine.command import scan_command
from trimtab.engine.flag_table import SECRETS
from trimtab.engine.locate import locate
from trimtab.engine.words import Word
from trimtab.errors import EngineError, InputError

Operation = dict[str, Any]
_LISTS = ("command", "args")
_HIDDEN = "(not shown)"
#: a variable alone shows nothing
_REFERENCE = re.compile(r"[\"']?\$(?:\(\w+\)|\{\w+\}|\w+)[\"']?")


def json_patch(
    template_before: Mapping[str, Any], template_after: Mapping[str, Any], prefix: str = "/spec/template"
) -> list[Operation]:
    """JSON-patch operations (RFC 6902) from one template to the other; empty if they are equal.

    The container's name and every replaced or removed item are tested first, so that a list someone else edited
    meanwhile is left alone. Raises `InputError` if anything but one container's command, args and values of env
    differs.
    """
    found = list(_changed(template_before, template_after))
    if not found:
        return []
    if len(found) > 1:
        raise InputError("template_after", "more than one container differs", "Change one container.")
    group, index, before, after = found[0]
    base = f"{prefix}/spec/{group}/{index}"
    operations: list[Operation] = []
    if "name" in before:
        operations.append({"op": "test", "path": f"{base}/name", "value": before["name"]})
    for where in _LISTS:
        operations += list_operations(f"{base}/{where}", before.get(where), after.get(where))
    for at, old, new in variables(before, after):
        path = f"{base}/env/{at}"
        operations += [
            {"op": "test", "path": f"{path}/name", "value": old["name"]},
            {"op": "test", "path": f"{path}/value", "value": old["value"]},
            {"op": "replace", "path": f"{path}/value", "value": new["value"]},
        ]
    return operations


def variables(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
    """Entries of env whose value differs, with their index."""
    if before.get("env") == after.get("env"):
        return
    pairs = zip(before["env"], after["env"], strict=True)
    yield from ((at, old, new) for at, (old, new) in enumerate(pairs) if old != new)


def _changed(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[tuple[str, int, Mapping[str, Any], Mapping[str, Any]]]:
    if _without_lists(before) != _without_lists(after):
        raise InputError("template_after", "differs in more than command, args and values of env", "Change only those.")
    for group in ("containers", "initContainers"):
        pairs = zip(before["spec"].get(group) or (), after["spec"].get(group) or (), strict=True)
        for index, (old, new) in enumerate(pairs):
            if old != new:
                yield group, index, old, new


def _without_lists(template: Mapping[str, Any]) -> dict[str, Any]:
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        raise InputError("template", "has no spec", "Give a Deployment's spec.template.")
    stripped = {
        group: [_without(c) if isinstance(c, Mapping) else c for c in spec.get(group) or ()]
        for group in ("containers", "initContainers")
    }
    return {**template, "spec": {**spec, **stripped}}


def _without(container: Mapping[str, Any]) -> dict[str, Any]:
    """The container without its lists and without the literal values of its variables."""
    bare = {k: v for k, v in container.items() if k not in _LISTS}
    if isinstance(bare.get("env"), list):
        bare["env"] = [
            {**e, "value": ""} if isinstance(e, Mapping) and isinstance(e.get("value"), str) else e for e in bare["env"]
        ]
    return bare


def value_operations(path: str, before: object, after: object) -> list[Operation]:
    """One value put at the JSON pointer `path`; before: what must stand there, None is nothing."""
    if before is None:
        return [{"op": "add", "path": path, "value": after}]
    return [{"op": "test", "path": path, "value": before}, {"op": "replace", "path": path, "value": after}]


def list_operations(path: str, before: Sequence[str] | None, after: Sequence[str] | None) -> list[Operation]:
    """From one list of texts at the JSON pointer `path` to another; None is a list that is not there."""
    if before == after:
        return []
    if before is None:
        return [{"op": "add", "path": path, "value": list(after or ())}]
    if after is None:
        return [{"op": "test", "path": path, "value": list(before)}, {"op": "remove", "path": path}]
    operations: list[Operation] = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    # From the end, so that the indexes before it stay right.
    for tag, left, left_end, right, right_end in reversed(matcher.get_opcodes()):
        if tag == "equal":
            continue
        shared = min(left_end - left, right_end - right)
        for at in range(left_end - 1, left + shared - 1, -1):
            operations += [_test(path, at, before[at]), {"op": "remove", "path": f"{path}/{at}"}]
        for offset in range(shared):
            at = left + offset
            operations += [
                _test(path, at, before[at]),
                {"op": "replace", "path": f"{path}/{at}", "value": after[right + offset]},
            ]
        for offset, item in enumerate(after[right + shared : right_end]):
            at = left + shared + offset
            place = "-" if left_end == len(before) else str(at)
            operations.append({"op": "add", "path": f"{path}/{place}", "value": item})
    return operations


def _test(path: str, at: int, value: str) -> Operation:
    return {"op": "test", "path": f"{path}/{at}", "value": value}


def paste_ready(before: Mapping[str, Any], after: Mapping[str, Any], name: str, namespace: str) -> str:
    """`patch_command`, then the container's new lists as comment lines."""
    changed = next(iter(_changed(before, after)), None)
    if changed is None:
        return "# Nothing to change.\n"
    comments = [f"# {line}" for line in snippet(before, after).splitlines()]
    where = f"# spec.template.spec.{changed[0]}[{changed[1]}] then has:"
    return "\n".join((patch_command(before, after, name, namespace), where, *comments)) + "\n"


def patch_command(before: Mapping[str, Any], after: Mapping[str, Any], name: str, namespace: str) -> str:
    """One `kubectl patch` line; where it would show an API key it is left out and the text says so; "" if nothing
    changes.
    """
    operations = json_patch(before, after)
    if not operations:
        return ""
    secrets = secrets_of(before, after)
    if any(secret in text for text in _texts(operations) for secret in secrets):
        return "# The script holds an API key, which is not shown. Make this change in the manifest by hand:"
    patch = json.dumps(operations, separators=(",", ":")).replace("'", "\\u0027")
    target = f"{shlex.quote(name)} --namespace {shlex.quote(namespace)}"
    return f"kubectl patch deployment {target} --type=json -p {shlex.quote(patch)}"


def snippet(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """YAML of the changed container's command, args and changed variables as they will be, API keys masked; empty if
    nothing changes.
    """
    changed = next(iter(_changed(before, after)), None)
    if changed is None:
        return ""
    old, container = changed[2:]
    secrets = secrets_of(before, after)
    lines: list[str] = []
    for where in _LISTS:
        if container.get(where):
            lines.append(f"{where}:")
            lines += [f"- {_harmless(_masked(item, secrets))}" for item in container[where]]
    changed_variables = [new for _, _, new in variables(old, container)]
    if changed_variables:
        lines.append("env:")
        for entry in changed_variables:
            lines.append(f"- name: {_harmless(str(entry['name']))}")
            lines.append(f"  value: {_harmless(_masked(entry['value'], secrets))}")
    return "\n".join(lines) + "\n"


def changed_container(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any], Mapping[str, Any]] | None:
    """(containers or initContainers, the container before, after); None if nothing changes."""
    changed = next(iter(_changed(before, after)), None)
    return None if changed is None else (changed[0], changed[2], changed[3])


def secrets_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Texts of the changed container that must not be shown, in either template."""
    changed = changed_container(before, after)
    if changed is None:
        return set()
    name = changed[2].get("name")
    return _secrets(before, name) | _secrets(after, name)


def _texts(operations: Sequence[Operation]) -> Iterator[str]:
    for operation in operations:
        value = operation.get("value")
        yield from value if isinstance(value, list) else (value,) if isinstance(value, str) else ()


def _secrets(template: Mapping[str, Any], container: str | None) -> set[str]:
    """Texts that must not be shown, as written and as passed on."""
    try:
        located = locate(template, container)
        scanned = scan_command(located)
    except EngineError:
        return _suspected(template)
    found: set[str] = set()
    for flag in scanned.flags:
        if flag.name in SECRETS:
            behind = range(flag.position + 1, len(located.words))
            bare = () if flag.joined else takewhile(lambda at: not located.words[at].text.startswith("-"), behind)
            for position in {*flag.value_positions, *bare}:  # also what this version takes no more for a key
                found |= _secret_texts(located.words[position], flag.joined)
    return found - {""}


def _suspected(template: Mapping[str, Any]) -> set[str]:
    """Of a command line that cannot be read: every item that names a secret's flag, and the item behind it."""
    found: set[str] = set()
    for container in template["spec"].get("containers") or ():
        lists = [container.get(where) for where in _LISTS] if isinstance(container, Mapping) else []
        items = [i for listed in lists if isinstance(listed, list) for i in listed if isinstance(i, str)]
        for item, following in pairwise([*items, ""]):
            if any(secret[2:] in item.replace("_", "-") for secret in SECRETS):
                found |= {item, following}
    return found - {""}


def _secret_texts(word: Word, joined: bool) -> set[str]:
    value = word.raw.partition("=")[2] if joined and "=" in word.raw else word.raw
    if _REFERENCE.fullmatch(value):
        return set()
    return {value, word.raw, word.text.partition("=")[2] if joined else word.text}


def _masked(item: str, secrets: set[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        item = item.replace(secret, _HIDDEN)
    return item


def _harmless(text: str) -> str:
    """YAML (and JSON) text in which no shell, even one that takes no comments, finds anything to run."""
    shown = json.dumps(text)
    for char in "$`!'":
        shown = shown.replace(char, f"\\u{ord(char):04x}")
    return shown
