"""10,000 random command lines: what we read of every tunable is what vLLM's own argument parser reads, or we refuse."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engine_room.command_lines import CONFIG, command_lines
from engine_room.parser_process import Parser, vllm_parser
from trimtab.engine.command import setting_value
from trimtab.engine.flags import objections, scan
from trimtab.engine.locate import locate
from trimtab.engine.settings import SETTINGS, Value
from trimtab.errors import InputError, TrimtabError

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]
LINES = 10_000
BATCH = 50
VERSION = "0.32.0"
PATH = "/etc/vllm/config.yaml"
TUNED = sorted(SETTINGS)
#: what makes vLLM exit and is none of the parser's business, by vLLM's message
UNSEEN = {
    r"No model specified|`model` should be provided as the first": "no model in front",
    rf"argument --(?!{'|'.join(s.flag[2:] for s in SETTINGS.values())})\S+: ": "the value of a flag that is no setting",
    r"unrecognized arguments: org/model": "a model behind the flags, which argparse of Python 3.11 does not take",
    r"org/model$|errors.pydantic.dev": "a JSON flag that is no setting took the model behind it",
}
tallies: defaultdict[str, Counter[str]] = defaultdict(Counter)


@pytest.fixture(scope="module")
def parsers(vllm: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Parser]]:
    """One for each core that a test machine has."""
    with ExitStack() as stack:
        yield [stack.enter_context(vllm_parser(vllm[0], tmp_path_factory.mktemp("parser"))) for _ in range(2)]


def ours(line: dict[str, Any], version: str | None) -> tuple[dict[str, Value], dict[str, str]]:
    """What we read, and by name why we refuse; a refusal or an objection to the whole line stands under ""."""
    start = ["vllm", "serve"] if line["form"] == "serve" else ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    args = [PATH if word == CONFIG else word.replace(CONFIG, PATH) for word in line["argv"]]
    container = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "command": start, "args": args}
    files = {} if line["config"] is None else {PATH: line["config"]}
    try:
        located = locate({"spec": {"containers": [container]}}, files=files)
        scanned = scan(located.words, located.first, version)
        flags = scanned.flags
    except TrimtabError as refusal:
        return {}, {"": str(refusal)}
    read: dict[str, Value] = {}
    refused: dict[str, str] = {}
    if version is not None and (against := objections(scanned, version)):
        refused[""] = against[0]
    for name, setting in SETTINGS.items():
        try:
            value = setting_value(flags, name)
            if value is not None:
                read[name] = setting.check(value)
        except InputError:
            refused[name] = "out of range"
        except TrimtabError as refusal:
            refused[name] = str(refusal)
    return read, refused


def theirs(parsers: list[Parser], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """vLLM's answers to all lines, the work shared between the parsers."""
    asked = [{**line, "names": [*TUNED, "override_generation_config"]} for line in lines]
    shares = [asked[i :: len(parsers)] for i in range(len(parsers))]
    with ThreadPoolExecutor(len(parsers)) as pool:
        answers = list(pool.map(Parser.ask, parsers, shares))
    return [answers[i % len(parsers)][i // len(parsers)] for i in range(len(asked))]


def read_by_vllm(reply: dict[str, Any]) -> dict[str, Any] | None:
    """What vLLM reads of every tunable, without values its config classes reject; None if it exits."""
    if "error" in reply:
        return None
    values = {k: v for k, v in reply["values"].items() if k not in reply["refused"]}
    generation = values.pop("override_generation_config", {})
    if isinstance(generation, dict) and generation.get("max_new_tokens") is not None:
        values["max_new_tokens"] = generation["max_new_tokens"]
    return values


def same(one: object, two: object) -> bool:
    return one == two and type(one) is type(two)


def check(line: dict[str, Any], reply: dict[str, Any]) -> None:
    """One line against vLLM's answer; counts what happened."""
    wanted = read_by_vllm(reply)
    for name, value in ours(line, None)[0].items():
        assert wanted is None or same(wanted.get(name), value), f"version unknown: {name} {value!r}, vLLM: {wanted}"
    read, refused = ours(line, VERSION)
    tallies["lines"]["tried"] += 1
    if wanted is None:
        tallies["lines"]["vLLM exits, we refuse" if refused else "vLLM exits, we read"] += 1
        if not refused:
            error = reply["error"][0]
            reason = next((why for pattern, why in UNSEEN.items() if re.search(pattern, error)), "")
            assert reason, f"vLLM exits, we do not see why: {error}"
            tallies["why vLLM exits and we read"][reason] += 1
        return
    tallies["lines"]["vLLM reads, we refuse some" if refused.keys() & {"", *wanted} else "both read all"] += 1
    for name in TUNED:
        if name in read:
            assert same(wanted.get(name), read[name]), f"{name} {read[name]!r}, vLLM: {wanted}"
        reason = refused.get(name) or refused.get("")
        if reason is None:
            assert name in read or name not in wanted, f"{name} is not read, vLLM: {wanted}"
        elif name in wanted:
            tallies["why vLLM reads and we refuse"][re.sub(r"'.*'|=.*", "...", reason)] += 1
        tallies["values"]["agree" if name in read else "refused by us" if name in wanted else "absent"] += 1


@settings(
    max_examples=LINES // BATCH,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # the lines are short, and shrinking a batch takes minutes
)
@given(lines=st.lists(command_lines(), min_size=BATCH, max_size=BATCH))
def test_what_we_read_is_what_vllm_reads(parsers: list[Parser], lines: list[dict[str, Any]]) -> None:
    wrong = []
    for line, reply in zip(lines, theirs(parsers, lines), strict=True):
        try:
            check(line, reply)
        except AssertionError as error:
            wrong.append(f"{line}: {error}")
    assert not wrong, "\n".join(wrong)


def test_the_lines_were_worth_trying() -> None:
    """The tally of the test above, printed (-s); most lines must be read by both, or the generator has gone stale."""
    for title, counter in tallies.items():
        print(f"\n{title}")
        for what, count in counter.most_common(40):
            print(f"  {count:6} {what}")
    assert tallies["lines"]["both read all"] >= 0.5 * tallies["lines"]["tried"]
