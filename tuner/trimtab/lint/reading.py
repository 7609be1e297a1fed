"""What Trimtab could not read, or would not tune, and why."""

from __future__ import annotations

from collections.abc import Iterator

from trimtab.engine.ownership import owners
from trimtab.lint.finding import Hit, Options
from trimtab.lint.target import Target


def refused(target: Target, options: Options) -> Iterator[Hit]:
    """The typed reason of engine/, in its own words."""
    if target.refusal is not None:
        code = getattr(target.refusal, "code", target.refusal.reason)
        hidden = "" if target.seen else "; its flags were not linted"
        where = next((k for k in ("args", "command") if target.body.get(k)), None)
        yield Hit(
            f"Trimtab would not edit this command line ({code}): {target.refusal}{hidden}.",
            target.of_container(where) if where else target.of_container(),
            fix=target.refusal.hint,
        )


def unquoted(target: Target, options: Options) -> Iterator[Hit]:
    for path in target.unquoted:
        yield Hit(f"{path[-2]}[{path[-1]}] is not text, and Kubernetes refuses the manifest.", path)


def no_metrics(target: Target, options: Options) -> Iterator[Hit]:
    flag = target.flag("--disable-log-stats")
    if flag:
        yield target.at(
            flag, "--disable-log-stats removes all vLLM metrics: neither dashboards nor Trimtab see anything."
        )


def not_tunable(target: Target, options: Options) -> Iterator[Hit]:
    """The engine runs, but no canary of it can be made or measured."""
    obstacle = target.command.obstacle() if target.command else ""
    if obstacle and not target.flag("--disable-log-stats"):
        yield Hit(f"Trimtab would not tune it: {obstacle}.", target.of_container())


def owned(target: Target, options: Options) -> Iterator[Hit]:
    for owner in owners(target.workload.metadata):
        if owner.refuses or owner.reverts:
            yield Hit(
                f"{owner.title} writes this object ({owner.evidence}), so a live change is undone.",
                target.of_object("metadata"),
                fix=owner.advice,
            )
            return


def odd_ignore(target: Target, options: Options) -> Iterator[Hit]:
    """Filled by `report`, which knows the table of rules."""
    return iter(())
