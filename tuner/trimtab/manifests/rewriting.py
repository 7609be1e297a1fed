"""`trimtab rewrite` without its shell: texts of manifests and changes in, edited texts and one result per target out.

All or nothing: if any target refuses, every text stays as it was. A target is a workload that runs vLLM, or a custom
resource that does and so refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trimtab.engine.command import EngineCommand, parse_template
from trimtab.engine.ownership import Owner, owners
from trimtab.engine.rewrite import rewrite
from trimtab.engine.settings import Value
from trimtab.errors import EngineError, EngineNotFound, InputError, RewriteRefused
from trimtab.manifests.documents import Document, read_documents
from trimtab.manifests.mounted import mounted_files
from trimtab.manifests.workload import Inventory, Path, Unreadable, Workload, inventory
from trimtab.manifests.yaml_edit import edit_document

Changes = Mapping[str, Value | None]
#: kubectl's short names
_SHORT: Final = {"deploy": "deployment", "sts": "statefulset", "ds": "daemonset", "rs": "replicaset", "po": "pod",
                 "cj": "cronjob", "isvc": "inferenceservice", "lws": "leaderworkerset"}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A text of manifests and the name that messages call it by."""

    name: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class Target:
    """What became of one target. before, after: the changed settings' values, None where not set.

    error: why it refuses; nothing is changed then. template_before, template_after: None where it could not be read.
    """

    origin: Workload | Unreadable
    container: str = ""
    before: Changes = field(default_factory=dict)
    after: Changes = field(default_factory=dict)
    owners: tuple[Owner, ...] = ()
    error: EngineError | None = None
    template_before: Mapping[str, Any] | None = field(default=None, repr=False)
    template_after: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def document(self) -> Document:
        return self.origin.document

    @property
    def source(self) -> str:
        return self.document.source

    @property
    def title(self) -> str:
        return self.origin.title

    @property
    def changed(self) -> bool:
        return self.error is None and self.template_before != self.template_after


@dataclass(frozen=True)
class Rewritten:
    """texts: one per source, in order; the sources' own if any target refuses."""

    texts: tuple[str, ...] = field(repr=False)
    targets: tuple[Target, ...]

    @property
    def refused(self) -> bool:
        return any(target.error is not None for target in self.targets)


def rewrite_manifests(
    sources: Sequence[Source], changes: Changes, *, container: str | None = None, picks: Sequence[str] = ()
) -> Rewritten:
    """The sources with exactly `changes` made in every target, or in those that `picks` (`kind/name`) name.

    Raises `InputError` for text that is no manifest, a pick that names nothing or a value out of range, and
    `EngineNotFound` where nothing runs vLLM. What a single target refuses is in its `error`.
    """
    documents = [read_documents(source.text, source.name) for source in sources]
    seen = inventory([document for part in documents for document in part])
    targets: list[Target] = []
    passed_over: list[EngineError] = []
    for item in _picked(seen, picks):
        if isinstance(item, Unreadable):
            targets.append(_unreadable(item))
            continue
        engine = _Engine(item, container, mounted_files(item, seen.config_maps, container))
        error = engine.error()
        if error is None or picks or engine.counts(error):
            targets.append(_rewrite_one(engine, changes, error))
        else:
            passed_over.append(error)
    if not targets:
        raise passed_over[0] if len(passed_over) == 1 else _nothing(seen, container)
    texts: list[str] = []
    for part in documents:
        edited = [_edited(document, [t for t in targets if t.document is document]) for document in part]
        texts.append("".join(text for text, _ in edited))
        errors = {(d.index, path): e for d, (_, found) in zip(part, edited, strict=True) for path, e in found.items()}
        targets = [_with_error(t, errors) if t.document.source == part[0].source else t for t in targets]
    if any(target.error is not None for target in targets):
        texts = [source.text for source in sources]
    return Rewritten(tuple(texts), tuple(targets))


# --- which are targets ------------------------------------------------------------------------------------------------
def _picked(seen: Inventory, picks: Sequence[str]) -> list[Workload | Unreadable]:
    everything: list[Workload | Unreadable] = [*seen.workloads, *seen.unreadable]
    if not picks:
        return everything
    out: list[Workload | Unreadable] = []
    for pick in picks:
        found = [item for item in everything if _matches(item, pick)]
        if not found:
            known = ", ".join(dict.fromkeys(item.title for item in everything)) or "none"
            raise InputError("--target", f"{pick!r} is not in the input", f"Name one of kind/name: {known}.")
        out += [item for item in found if item not in out]
    return out


def _matches(item: Workload | Unreadable, pick: str) -> bool:
    """`kind/name` or `namespace/kind/name`; kinds in any case, plural or kubectl's short name."""
    *space, kind, name = pick.split("/") if "/" in pick else ("", pick)
    kind = kind.lower().partition(".")[0]
    kinds = {_SHORT.get(kind, kind), kind.removesuffix("s")}
    return item.kind.lower() in kinds and item.name == name and (not space or space == [item.namespace])


@dataclass(frozen=True)
class _Engine:
    """A workload read as an engine, with the container the person named and the files it mounts."""

    workload: Workload
    container: str | None
    files: Mapping[str, str] = field(repr=False)

    def read(self, template: Mapping[str, Any] | None = None, container: str | None = None) -> EngineCommand:
        return parse_template(
            self.workload.template if template is None else template, container or self.container, self.files
        )

    def error(self) -> EngineError | None:
        try:
            self.read()
        except EngineError as error:
            return error
        return None

    def counts(self, error: EngineError) -> bool:
        """Whether a workload that cannot be read is a target all the same: it runs vLLM, or does so twice."""
        return isinstance(error, RewriteRefused) or (self.container is None and len(self.containers()) > 1)

    def containers(self) -> list[str]:
        """Names of the containers that run vLLM, readable or not."""
        return [name for name in _container_names(self.workload) if self._runs_engine(name)]

    def _runs_engine(self, name: str) -> bool:
        try:
            self.read(container=name)
        except EngineNotFound:
            return False
        except RewriteRefused:
            return True  # an engine all the same
        return True


def _container_names(workload: Workload) -> Iterator[str]:
    for group in ("containers", "initContainers"):
        bodies = workload.template["spec"].get(group)
        for body in bodies if isinstance(bodies, list) else ():
            if isinstance(body, Mapping) and isinstance(body.get("name"), str):
                yield body["name"]


def _nothing(seen: Inventory, container: str | None) -> EngineNotFound:
    if not seen.workloads:
        hint = "Give the manifest of the Deployment, StatefulSet or Pod that runs vLLM."
        return EngineNotFound("the input holds no workload with a pod template", hint=hint)
    titles = ", ".join(dict.fromkeys(w.title for w in seen.workloads))
    what = "no container" if container is None else f"no container named {container!r}"
    return EngineNotFound(f"{what} of {titles} runs vLLM in a form that can be read")


# --- one target -------------------------------------------------------------------------------------------------------
def _unreadable(item: Unreadable) -> Target:
    message = f"{item.title} is not edited: {item.reason}"
    return Target(item, error=RewriteRefused(message, hint=item.advice, code="SpecElsewhere"))


def _rewrite_one(engine: _Engine, changes: Changes, error: EngineError | None) -> Target:
    """The target's new template, or why there is none."""
    workload = engine.workload
    target = Target(workload, owners=owners(workload.metadata))
    if error is not None:
        return replace(target, error=_with_names(engine, error))
    controller = next((o for o in target.owners if o.refuses), None)
    if controller is not None:
        message = f"{workload.title} is written by {controller.title} ({controller.evidence})"
        return replace(target, error=RewriteRefused(message, hint=controller.advice, code="ControllerOwned"))
    try:
        before = engine.read()
        written = rewrite(workload.template, changes, engine.container, engine.files)
        after = engine.read(written)
    except EngineError as refusal:
        return replace(target, error=refusal)
    return replace(
        target,
        container=before.container,
        before=_values(before, changes),
        after=_values(after, changes),
        template_before=workload.template,
        template_after=written,
    )


_Errors = dict[Path, EngineError]


def _edited(document: Document, targets: Sequence[Target]) -> tuple[str, _Errors]:
    """The document with all its targets' new templates, or its text and which of them cannot be written."""
    edits = {t.origin.path: t.template_after for t in targets if t.template_after is not None}
    try:
        return edit_document(document, edits), {}
    except RewriteRefused as refusal:
        errors = {path: error for path, after in edits.items() if (error := _refusal(document, path, after))}
        return document.text, errors or dict.fromkeys(edits, refusal)


def _refusal(document: Document, path: Path, after: Mapping[str, Any]) -> EngineError | None:
    try:
        edit_document(document, {path: after})
    except RewriteRefused as refusal:
        return refusal
    return None


def _with_error(target: Target, errors: Mapping[tuple[int, Path], EngineError]) -> Target:
    error = errors.get((target.document.index, target.origin.path))
    return target if error is None or target.error is not None else replace(target, error=error)


def _with_names(engine: _Engine, error: EngineError) -> EngineError:
    names = engine.containers()
    if not isinstance(error, EngineNotFound) or len(names) < 2:
        return error
    return EngineNotFound(str(error), hint=f"Name one of {', '.join(names)} with --container.")


def _values(command: EngineCommand, changes: Changes) -> dict[str, Value | None]:
    configuration = command.configuration()
    return {name: configuration.get(name) for name in sorted(changes)}
