"""vLLM's source packages in, tuner/trimtab/engine/flag_history.toml out: which server flags each version has.

    python hack/engine/flag_history.py FOLDER > tuner/trimtab/engine/flag_history.toml

FOLDER holds vllm-X.Y.Z.tar.gz files from the package index (`pip download --no-deps --no-binary :all: vllm==X.Y.Z`).
Nothing of vLLM is run: the flags and how many words each takes are read from the syntax tree of `arg_utils.py`, of the
server's `cli_args.py`, of `cli/serve.py` or `scripts.py`, and from the annotations of the config classes.
The result for the installed vLLM is compared with its real parser in tests/engine_room/test_tunables.py.
Standard library and `packaging` only.
"""

from __future__ import annotations

import ast
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version

SWITCH_ACTIONS = {"store_true", "store_false", "store_const"}
CONTAINERS = {"list", "List", "tuple", "Tuple", "set", "Set", "Sequence"}
#: wrappers whose first argument is the type
WRAPPERS = {"Optional", "Annotated", "SkipValidation", "ClassVar", "Final"}


@dataclass
class Sources:
    """Syntax trees of one version, and what they define: classes and type aliases by name."""

    trees: dict[str, ast.Module]
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    aliases: dict[str, ast.expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in (n for tree in self.trees.values() for n in ast.walk(tree)):
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
        for node in (n for tree in self.trees.values() for n in tree.body):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.aliases.setdefault(node.targets[0].id, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                self.aliases.setdefault(node.target.id, node.value)

    def fields(self, name: str) -> dict[str, ast.expr]:
        """Annotations of a config class and its bases; the class's own ones last."""
        node = self.classes.get(name)
        if node is None:
            return {}
        found: dict[str, ast.expr] = {}
        for base in node.bases:
            found |= self.fields(base.id) if isinstance(base, ast.Name) else {}
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                found[line.target.id] = line.annotation
        return found


def read(archive: Path) -> Sources:
    """The files that define flags. Others of the package are not looked at."""
    trees: dict[str, ast.Module] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = member.name.partition("/vllm/")[2]
            wanted = path in {"engine/arg_utils.py", "scripts.py", "config.py"} or path.startswith(
                ("config/", "entrypoints/", "plugins/", "v1/attention/backends/registry")
            )
            if wanted and path.endswith(".py") and (opened := tar.extractfile(member)):
                trees[path] = ast.parse(opened.read())
    return Sources(trees)


def types(sources: Sources, node: ast.expr) -> Iterator[str]:
    """Names of the types in a union, aliases and wrappers followed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from types(sources, ast.parse(node.value, mode="eval").body)
    elif isinstance(node, ast.BinOp):
        yield from types(sources, node.left)
        yield from types(sources, node.right)
    elif isinstance(node, ast.Subscript):
        head = ast.unparse(node.value).rpartition(".")[2]
        if head == "Union" and isinstance(node.slice, ast.Tuple):
            for part in node.slice.elts:
                yield from types(sources, part)
        elif head in WRAPPERS:
            yield from types(sources, node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice)
        else:
            yield head
    elif isinstance(node, ast.Name) and node.id in sources.aliases and node.id not in sources.classes:
        alias = sources.aliases[node.id]
        yield from [node.id] if isinstance(alias, ast.Call | ast.Constant) else types(sources, alias)
    else:
        yield ast.unparse(node).rpartition(".")[2]


def annotated_kind(sources: Sources, annotation: ast.expr) -> str:
    """As vLLM's `get_kwargs` turns a field's type into an argument."""
    names = {n for n in types(sources, annotation) if n != "None"}
    if names & set(sources.classes) - {"bool", "str"} and not names & CONTAINERS and "bool" not in names:
        return "one"
    if names == {"bool", "str"}:
        return "optional"
    if "bool" in names:
        return "boolean"
    return "one" if "Literal" in names else "many" if names & CONTAINERS else "one"


def called_kind(call: ast.Call, base: str) -> str:
    """The kind after the call's own keywords; `base` is what `**kwargs` gives."""
    words = {k.arg: k.value for k in call.keywords if k.arg}
    action, nargs = words.get("action"), words.get("nargs")
    if action is not None:
        name = action.value if isinstance(action, ast.Constant) else ast.unparse(action).rpartition(".")[2]
        if name in SWITCH_ACTIONS:
            return "switch"
        if name == "BooleanOptionalAction":
            return "boolean"
        if name == "StoreBoolean":
            return "optional"
    if isinstance(nargs, ast.Constant):
        return {"?": "optional", "+": "many", "*": "many"}.get(str(nargs.value), "one")
    return base


@dataclass
class Flags:
    """kinds: by full name without dashes. aliases: other spelling to full name."""

    kinds: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    def add(self, spellings: list[str], kind: str) -> None:
        long = [s for s in spellings if s.startswith("--")]
        name = long[0].replace("_", "-")
        self.kinds[name] = kind
        self.aliases |= {s.replace("_", "-"): name for s in spellings if s != long[0]}


def kwargs_classes(tree: ast.AST) -> dict[str, str]:
    """`model_kwargs = get_kwargs(ModelConfig)` gives model_kwargs: ModelConfig."""
    return {
        node.targets[0].id: ast.unparse(node.value.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "get_kwargs"
    }


def add_calls(sources: Sources, tree: ast.AST, flags: Flags) -> None:
    """Every `add_argument("--x", ...)` under `tree`."""
    classes = kwargs_classes(tree)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith("add_argument"):
            continue
        spellings = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
        if not any(s.startswith("--") for s in spellings):
            continue
        base = "one"
        for node in (n for word in call.keywords if word.arg is None for n in ast.walk(word.value)):
            owner = classes.get(ast.unparse(node.value)) if isinstance(node, ast.Subscript) else None
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and owner:
                annotation = sources.fields(owner).get(str(node.slice.value))
                if annotation is None:
                    print(f"no type for {spellings[0]}: {ast.unparse(node)}", file=sys.stderr)
                else:
                    base = annotated_kind(sources, annotation)
        flags.add(spellings, called_kind(call, base))


def add_frontend(sources: Sources, flags: Flags) -> None:
    """The fields of `FrontendArgs`, and what its methods change by hand afterwards."""
    for name, annotation in sources.fields("FrontendArgs").items():
        flags.add([f"--{name}"], annotated_kind(sources, annotation))
    methods = [
        m
        for owner in ("BaseFrontendArgs", "FrontendArgs")
        if owner in sources.classes
        for m in sources.classes[owner].body
        if isinstance(m, ast.FunctionDef)
    ]
    for node in (n for method in methods for n in ast.walk(method)):
        text = ast.unparse(node) if isinstance(node, ast.Assign | ast.Delete | ast.Expr) else ""
        target = field_and_key(node)
        if target is None:
            continue
        name, key = f"--{target[0].replace('_', '-')}", target[1]
        if name in flags.kinds and key == "nargs":
            removed = isinstance(node, ast.Delete) or ".pop(" in text
            flags.kinds[name] = "one" if removed else {"'?'": "optional"}.get(text.rpartition("= ")[2], "many")
        elif key == "flags" and isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            flags.aliases |= {str(e.value): name for e in node.value.elts if isinstance(e, ast.Constant)}


def field_and_key(node: ast.AST) -> tuple[str, str] | None:
    """`x["field"]["key"] = ...`, `del x["field"]["key"]` or `x["field"].pop("key", ...)`."""
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith(".pop")
    ):
        owner, key = node.value.func.value, node.value.args[0]  # type: ignore[attr-defined]
    elif isinstance(node, ast.Assign | ast.Delete) and isinstance(node.targets[0], ast.Subscript):
        owner, key = node.targets[0].value, node.targets[0].slice
    else:
        return None
    if isinstance(owner, ast.Subscript) and isinstance(owner.slice, ast.Constant) and isinstance(key, ast.Constant):
        return str(owner.slice.value), str(key.value)
    return None


def server_flags(sources: Sources) -> Flags:
    """All flags of `vllm serve` and of the api_server module."""
    flags = Flags()
    flags.add(["--help", "-h"], "switch")
    add_calls(sources, sources.trees["engine/arg_utils.py"], flags)
    add_frontend(sources, flags)
    for path, tree in sources.trees.items():
        if path.endswith("/cli_args.py"):
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and node.name == "make_arg_parser":
                    add_calls(sources, node, flags)
        elif path in {"entrypoints/cli/serve.py", "scripts.py"}:
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "serve_parser.add_argument":
                    add_calls(sources, node, flags)
    return flags


def spans(values: list[str | None], versions: list[str]) -> str:
    """`one 0.8.0-0.10.0` where the first end is the first version and the second the first without it."""
    out: list[str] = []
    start = 0
    for at in range(1, len(values) + 1):
        if at < len(values) and values[at] == values[start]:
            continue
        if values[start] is not None:
            since = versions[start] if start else ""
            until = versions[at] if at < len(values) else ""
            out.append(f"{values[start]} {since}-{until}" if since or until else str(values[start]))
        start = at
    return ", ".join(out)


def main() -> None:
    archives = sorted(
        Path(sys.argv[1]).glob("vllm-*.tar.gz"), key=lambda p: Version(p.name[len("vllm-") : -len(".tar.gz")])
    )
    versions = [Version(p.name[len("vllm-") : -len(".tar.gz")]).base_version for p in archives]
    found = [server_flags(read(p)) for p in archives]
    print("# Made by hack/engine/flag_history.py from vLLM's source packages; do not edit.")
    print("# KIND SINCE-UNTIL: the flag has this kind from the first version until before the second; no end is open")
    print(f"versions = [{', '.join(repr(v) for v in versions)}]".replace("'", '"'))
    print("\n[flags]")
    for name in sorted({n for f in found for n in f.kinds}):
        print(f'{name[2:]} = "{spans([f.kinds.get(name) for f in found], versions)}"')
    print("\n[aliases]")
    for name in sorted({n for f in found for n in f.aliases}):
        print(f'"{name}" = "{spans([f.aliases.get(name) for f in found], versions)}"')


if __name__ == "__main__":
    main()
