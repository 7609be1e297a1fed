"""The claims of docs/claims.md, each computed anew.

python benchmarks/claims.py NAME...            # what is claimed, tables, and what came out
python benchmarks/claims.py all --write        # all of them, into docs/claims.md and its pictures
python benchmarks/claims.py all --cheap        # fewer requests and seeds: seconds, the same verdicts
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import claims_admission
import claims_clients
import claims_defaults
import claims_published
import claims_spiral
import claims_swap
import claims_thinking
from claims_base import CHEAP, FULL, Report, Size
from claims_picture import svg
from claims_texts import TEXTS

COMMANDS: Mapping[str, Callable[[Size], Report]] = {
    "arithmetic": claims_admission.arithmetic,
    "reserve": claims_admission.reserve,
    "bound": claims_admission.bound,
    "spread": claims_admission.spread,
    "ratio": claims_admission.ratio,
    "cancel": claims_clients.cancel,
    "spiral": claims_spiral.spiral,
    "swap": claims_swap.swap,
    "chunked": claims_defaults.chunked,
    "prefix": claims_defaults.prefix,
    "coupling": claims_thinking.coupling,
    "recompute": claims_published.recompute,
    "cliff": claims_published.cliff,
    "watermark": claims_published.watermark,
}


ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURES = ROOT / "docs/claims.md", ROOT / "docs/pictures"
BEGIN, END = "<!-- begin: python benchmarks/claims.py all --write -->", "<!-- end -->"
HEAD = ("claim", "command", "verdict", "what came out", "why")


def show(name: str, report: Report, seconds: float) -> None:
    print(f"== {name} ({seconds:.0f} s)")
    for text in report.tables:
        print(text)
    for answer in report.answers:
        print(
            f"  {answer.verdict.upper()}: {title(answer.key)}\n    {answer.figure}\n    {TEXTS[answer.key].why}",
            flush=True,
        )


def title(key: str) -> str:
    """The claim as the page words it."""
    text = TEXTS[key]
    return f"{text.claim} ({text.source})" if text.source else text.claim


def write(name: str, report: Report) -> None:
    """Its rows of the page's table, and its pictures; the other rows stay."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    old, after = rest.split(END)
    rows = {command: [line for line in old.splitlines() if f" | `{command}` | " in line] for command in COMMANDS}
    cells = [(title(a.key), f"`{name}`", f"**{a.verdict}**", a.figure, TEXTS[a.key].why) for a in report.answers]
    rows[name] = [f"| {' | '.join(row)} |" for row in cells]
    head = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    lines = head + [line for command in COMMANDS for line in rows[command]]
    PAGE.write_text(before + "\n".join((BEGIN, *lines, END)) + after)
    PICTURES.mkdir(exist_ok=True)
    for picture in report.pictures:
        (PICTURES / f"claims-{picture.name}.svg").write_text(svg(picture))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=(*COMMANDS, "all"), metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--cheap", action="store_true", help="fewer requests and seeds")
    parser.add_argument("--write", action="store_true", help="into docs/claims.md; not with --cheap")
    args = parser.parse_args()
    if args.write and args.cheap:
        parser.error("--write goes without --cheap: the page holds figures of the full size")
    for name in COMMANDS if "all" in args.names else args.names:
        begin = time.monotonic()
        report = COMMANDS[name](CHEAP if args.cheap else FULL)
        show(name, report, time.monotonic() - begin)
        if args.write:
            write(name, report)


if __name__ == "__main__":
    main()
