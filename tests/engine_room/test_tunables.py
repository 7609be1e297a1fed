"""The tables of flags and tunables: what they say by version, and that the installed vLLM says the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from engine_room.parser_process import Parser, vllm_parser
from trimtab.engine.constraints import check_configuration
from trimtab.engine.flag_table import ALIASES, HISTORY, NEWEST, OLDEST, VERSIONS, aliases, kinds
from trimtab.engine.flags import resolve
from trimtab.engine.settings import AUTO, SEARCHED, SETTINGS, Configuration
from trimtab.engine.tunables import TUNABLES, Device, default, gate, ignored, supported, violations
from trimtab.errors import InputError, RewriteRefused

INSTALLED = "0.32.0"
GIB = 2**30
#: vLLM sets no limit on these; ours catch slips
UNLIMITED = {"num_gpu_blocks_override", "kv_cache_memory_bytes", "max_new_tokens", "max_model_len"}


def test_versions_are_in_order_and_every_era_is_between_them() -> None:
    assert sorted(VERSIONS, key=Version) == list(VERSIONS)
    for eras in HISTORY.values():
        assert all(end in {"", *VERSIONS} for era in eras for end in (era.span.since, era.span.until))


def test_every_tunable_is_a_flag_of_the_newest_version() -> None:
    assert {t.flag for t in TUNABLES.values()} <= kinds(NEWEST).keys()
    assert set(ALIASES.values()) <= kinds().keys()


def test_rules_and_overrides_name_tunables() -> None:
    assert {o for t in TUNABLES.values() for o in t.overrides} <= TUNABLES.keys()
    assert {c for t in TUNABLES.values() for c, _ in t.choices_since} == (
        set(TUNABLES["kv_cache_dtype"].choices) - {"auto", "fp8", "fp8_e4m3", "fp8_e5m2"}
    )


def test_the_search_has_four_settings() -> None:
    assert list(SEARCHED) == ["max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "max_new_tokens"]
    with pytest.raises(InputError, match="watermark"):
        Configuration.from_camel({"watermark": 0.1})
    assert Configuration.of(watermark=0.1).to_camel() == {"watermark": 0.1}


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("max_num_active_seqs", "0.31.0", True), ("max_num_active_seqs", "0.30.9", False),
        ("max_num_active_seqs", None, None), ("max_num_active_seqs", "nightly", None),
        ("max_num_seqs", "0.6.3.post1", True), ("max_num_seqs", "0.5.4", None), ("max_num_seqs", "0.99.0", True),
        ("max_num_active_seqs", "0.31.0rc1", True), ("watermark", "0.27.1", True), ("watermark", "0.23.0", False),
    ],
)  # fmt: skip
def test_supported(name: str, version: str | None, expected: bool | None) -> None:
    assert supported(name, version) is expected


@pytest.mark.parametrize(
    ("name", "version", "value", "said"),
    [
        ("max_num_seqs", None, 8, ""), ("max_new_tokens", None, 8, ""), ("enable_prefix_caching", None, False, ""),
        ("watermark", None, 0.1, "--watermark is not in every vLLM version"), ("watermark", "0.24.0", 0.1, ""),
        ("watermark", "0.23.0", 0.1, "vLLM 0.23.0 has no --watermark: it exists from 0.24.0"),
        ("enable_prefix_caching", "0.6.3", False, "vLLM 0.6.3 has no --no-enable-prefix-caching"),
        ("enable_prefix_caching", "0.6.3", True, ""), ("max_new_tokens", "0.7.0", 8, "exists from 0.7.1"),
    ],
)  # fmt: skip
def test_gate(name: str, version: str | None, value: Any, said: str) -> None:
    reason = gate(name, version, value)
    assert said in reason if said else reason == ""


@pytest.mark.parametrize(
    ("version", "device", "seqs", "tokens"),
    [
        ("0.6.3.post1", Device("gpu", 80 * GIB, "NVIDIA H100"), 256, None),
        ("0.8.3", Device("gpu", 24 * GIB, "NVIDIA L4"), 1024, 2048),
        ("0.8.5.post1", Device("gpu", 80 * GIB, "NVIDIA A100"), 1024, 8192),
        ("0.9.2", Device("gpu", 80 * GIB, "NVIDIA A100"), 256, 2048),
        ("0.11.0", Device("gpu", 79 * GIB, "NVIDIA H100"), 1024, 8192),
        ("0.27.1", Device("gpu", 180 * GIB, "NVIDIA B200"), 1024, 8192),
        ("0.32.0", Device("gpu", 180 * GIB, "NVIDIA B200"), 1024, 16384),
        ("0.32.0", Device("gpu", 24 * GIB), 256, 2048),
        ("0.32.0", Device("gpu", 80 * GIB), None, None),  # an A100 or not
        ("0.32.0", Device("gpu", 119 * GIB, "NVIDIA GB10"), 1024, 8192),
        ("0.33.0", Device("gpu", 119 * GIB, "NVIDIA GB10"), 256, 2048),
        ("0.32.0", Device("cpu"), 128, 2048),
        ("0.32.0", Device("cpu", processes=2), 256, 4096),
        ("0.32.0", Device("tpu", 32 * GIB, "V6E"), None, None),
        (None, Device("cpu"), None, None),
        ("0.99.0", Device("cpu"), None, None),
    ],
)
def test_batch_defaults_by_version_and_device(
    version: str | None, device: Device, seqs: int | None, tokens: int | None
) -> None:
    assert default("max_num_seqs", version, device) == seqs
    assert default("max_num_batched_tokens", version, device) == tokens


def test_offline_defaults_differ() -> None:
    assert default("max_num_batched_tokens", "0.32.0", Device("gpu", 80 * GIB, "H100"), "offline") == 16384


def test_violations_name_both_settings_and_both_ways_out() -> None:
    (found,) = violations({"max_num_active_seqs": 9, "max_num_seqs": 8})
    assert (found.name, found.problem) == ("max_num_active_seqs", "9 is more than max_num_seqs 8")
    assert found.fix == "Use at least 9 max_num_seqs or at most 8 max_num_active_seqs."


def test_a_step_shorter_than_a_prompt_needs_chunked_prefill() -> None:
    values = {"max_num_batched_tokens": 2048, "max_model_len": 4096}
    assert violations(values) == violations({**values, "enable_chunked_prefill": True}) == ()
    (found,) = violations({**values, "enable_chunked_prefill": False})
    assert "with enable_chunked_prefill false" in found.problem
    assert violations({**values, "enable_chunked_prefill": False, "max_model_len": AUTO}) == ()


@pytest.mark.parametrize(
    ("values", "version", "problem"),
    [
        ({"block_size": 256}, "0.11.0", "does not take 256"),
        ({"kv_cache_dtype": "nvfp4"}, "0.19.0", "came with vLLM 0.20.0"),
        ({"max_model_len": AUTO}, "0.13.0", "came with vLLM 0.14.0"),
        ({"watermark": 0.1}, "0.20.0", "has no --watermark"),
    ],
)
def test_what_a_version_does_not_take(values: dict[str, Any], version: str, problem: str) -> None:
    configuration = Configuration.of(values)
    check_configuration(configuration)
    check_configuration(configuration, NEWEST)
    with pytest.raises(InputError, match=problem):
        check_configuration(configuration, version)


def test_a_cache_in_bytes_makes_the_fraction_count_for_nothing() -> None:
    assert ignored({"gpu_memory_utilization": 0.9, "max_num_seqs": 8}) == ()
    assert ignored({"gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": GIB}) == ("gpu_memory_utilization",)


def test_a_prefix_is_judged_by_version() -> None:
    assert resolve("--max-num-s", "0.25.0").name == "--max-num-seqs"
    for version in ("0.26.0", None):
        with pytest.raises(RewriteRefused):
            resolve("--max-num-s", version)
    assert resolve("--device").name == "--device"  # a flag of its own once; only a prefix today
    with pytest.raises(RewriteRefused):
        resolve("--device", INSTALLED)


def test_a_kind_is_judged_by_version() -> None:
    assert resolve("--enable-chunked-prefill", "0.8.4").kind == "optional"
    assert resolve("--enable-chunked-prefill", "0.8.5").kind == "boolean"
    assert kinds("0.5.0") == kinds(OLDEST) and kinds("0.99.0") == kinds(NEWEST) == kinds(None)


def test_the_reference_lists_every_setting_its_flag_and_first_version() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    listed = [line.split(" | ") for line in text.splitlines() if line.startswith("| `") and " | `--" in line]
    rows = {r[0].strip("|` "): (r[1].strip("`"), r[2], "yes" in r[4]) for r in listed}
    assert rows == {s.name: (s.flag, HISTORY[s.flag][0].span.since or OLDEST, s.searched) for s in SETTINGS.values()}


@pytest.fixture(scope="module")
def parser(vllm: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parser]:
    with vllm_parser(vllm[0], tmp_path_factory.mktemp("parser")) as made:
        yield made


@pytest.fixture(scope="module")
def actions(parser: Parser) -> list[dict[str, Any]]:
    """The real server flags: names, nargs, action, type, choices, default."""
    flags = [f for f in parser.ask({"dump": True})["flags"] if f["options"]]
    assert len(flags) > 300
    return flags


def kind_of(action: dict[str, Any]) -> str:
    if action["action"] == "BooleanOptionalAction":
        return "boolean"
    if action["action"] in {"_StoreTrueAction", "_HelpAction"}:
        return "switch"
    return {"?": "optional", "+": "many", "*": "many"}.get(action["nargs"], "one")


@pytest.mark.engine
def test_every_flag_and_kind_is_the_installed_parsers(actions: list[dict[str, Any]]) -> None:
    real = {next(o for o in a["options"] if o.startswith("--")): kind_of(a) for a in actions}
    assert kinds(INSTALLED) == real


@pytest.mark.engine
def test_every_alias_is_the_installed_parsers(actions: list[dict[str, Any]]) -> None:
    real = {}
    for action in actions:
        first = next(o for o in action["options"] if o.startswith("--"))
        real |= {o: first for o in action["options"] if o != first and not o.startswith("--no-")}
    assert aliases(INSTALLED) == real


@pytest.mark.engine
def test_every_tunable_is_what_the_installed_parser_takes(actions: list[dict[str, Any]]) -> None:
    real = {o: a for a in actions for o in a["options"]}
    for name, setting in SETTINGS.items():
        action, row = real[setting.flag], TUNABLES[name]
        assert action["dest"] == name or name == "max_new_tokens"
        if setting.kind == "choice":
            known = {c for c in row.choices if not violations({name: c}, INSTALLED)}
            assert known == set(action["choices"]), name


@pytest.mark.engine
def test_defaults_are_what_the_installed_engine_resolves_on_a_cpu(parser: Parser, vllm: tuple[Path, Path]) -> None:
    real = parser.ask({"defaults": str(vllm[1])})
    known = {name: value for name in TUNABLES if (value := default(name, INSTALLED, Device("cpu"))) is not None}
    assert len(known) == 9
    assert known == {name: real[name] for name in known}


@pytest.mark.engine
def test_suffixes_and_auto_are_read_where_the_installed_parser_reads_them(parser: Parser) -> None:
    rows = [t for t in TUNABLES.values() if t.kind in {"integer", "number"} and t.name != "max_new_tokens"]
    for text, value in (("8K", 8192), ("8k", 8000), ("auto", AUTO), ("0.5", 0.5), ("8", 8)):
        lines = [{"argv": [r.flag, text], "form": "module", "config": None, "names": [r.name]} for r in rows]
        for row, reply in zip(rows, parser.ask(lines), strict=True):
            fits = {"8": True, "0.5": row.kind == "number", "auto": bool(row.auto)}.get(text, bool(row.suffixes))
            assert reply.get("values") == ({row.name: value} if fits else None), (row.flag, text)


@pytest.mark.engine
def test_limits_are_those_of_the_installed_config_classes(parser: Parser) -> None:
    for name, setting in SETTINGS.items():
        if setting.kind not in {"integer", "number"} or name in UNLIMITED:
            continue
        step = 1 if setting.kind == "integer" else 1e-9
        low = setting.minimum + (step if setting.minimum_open else 0)
        high = setting.maximum - (step if setting.maximum_open else 0)
        below = low - step
        inside, outside, top = parser.ask({"limits": [[name, low], [name, below], [name, high]]})
        assert (inside, outside, top) == (True, False, True), name
        assert setting.check(low) == low and setting.check(high) == high
        with pytest.raises(InputError):
            setting.check(below)
        if setting.kind == "number":
            assert parser.ask({"limits": [[name, high + step]]}) == [False], name
