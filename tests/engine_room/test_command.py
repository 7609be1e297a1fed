"""What is read from a pod template, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab import errors
from trimtab.engine.command import parse_template
from trimtab.engine.flag_table import ALIASES, HISTORY, KINDS
from trimtab.engine.flags import resolve

ENGINE = {"name": "engine", "image": "vllm/vllm-openai:v0.9.1", "args": ["--model", "m"]}


def template(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


def test_reads_a_supported_shape(readable: dict[str, Any]) -> None:
    command, expect = parse_template(readable["template"], files=readable["files"]), readable["expect"]
    assert dict(command.configuration()) == expect["settings"]
    read = {
        "shape": command.shape, "program": command.program, "features": sorted(command.features),
        "where": command.where, "model": command.model, "served": command.served_model_name,
        "port": command.port, "version": command.version, "api_key": command.api_key_used, "lora": command.lora,
        "multi_node": command.multi_node, "https": command.https, "no_metrics": command.log_stats_disabled,
        "config_file": command.config_file,
    }  # fmt: skip
    defaults = {"port": 8000, "api_key": False, "lora": False, "multi_node": False, "https": False,
                "no_metrics": False, "config_file": False}  # fmt: skip
    wanted = {**defaults, **{k: v for k, v in expect.items() if k != "settings"}}
    assert {k: read[k] for k in wanted} == wanted


def test_refuses_with_a_reason_and_a_hint(refused: dict[str, Any]) -> None:
    expected = getattr(errors, refused["refuse"]["error"])
    with pytest.raises(expected, match=refused["refuse"]["match"]) as caught:
        parse_template(refused["template"], files=refused["files"]).configuration()
    assert type(caught.value) is expected and caught.value.hint
    if "code" in refused["refuse"]:
        assert isinstance(caught.value, errors.RewriteRefused) and caught.value.code == refused["refuse"]["code"]


def test_the_engine_is_found_beside_companions() -> None:
    companions = (
        {"name": "proxy", "image": "envoy:1", "args": ["--vllm-port", "8000", "--engine", "vllm"]},
        {"name": "echo", "image": "busybox", "command": ["sh", "-c", "echo ready"]},
    )
    command = parse_template(template(companions[0], ENGINE, companions[1]))
    assert (command.container, command.container_index, command.group) == ("engine", 1, "containers")


def test_a_native_sidecar_can_be_the_engine_but_an_init_container_cannot() -> None:
    main = {"name": "app", "image": "app:1"}
    sidecar = parse_template(template(main, initContainers=[{**ENGINE, "restartPolicy": "Always"}]))
    assert sidecar.group == "initContainers"
    with pytest.raises(errors.EngineNotFound):
        parse_template(template(main, initContainers=[ENGINE]))


def test_two_engines_need_a_name() -> None:
    both = template(ENGINE, {**ENGINE, "name": "second"})
    with pytest.raises(errors.EngineNotFound, match="2 containers"):
        parse_template(both)
    assert parse_template(both, "second").container_index == 1
    with pytest.raises(errors.EngineNotFound, match="no container named"):
        parse_template(both, "third")


@pytest.mark.parametrize("broken", [{}, {"spec": None}, {"spec": {"containers": {}}}, {"spec": {"containers": ["x"]}},
                                    template({**ENGINE, "args": "x"})])  # fmt: skip
def test_a_malformed_template_is_not_an_engine(broken: dict[str, Any]) -> None:
    with pytest.raises(errors.EngineNotFound):
        parse_template(broken)


@pytest.mark.parametrize(
    "args", [["--api-key", "sk-secret", "sk-other"], ["--api_key=sk-secret"], ["--hf-token", "sk-secret"]]
)
def test_a_key_is_never_kept(args: list[str]) -> None:
    command = parse_template(template({**ENGINE, "args": ["--model", "m", *args]}))
    assert "sk-" not in repr(command)
    assert command.api_key_used == (args[0] != "--hf-token")


def test_a_key_in_the_environment_counts() -> None:
    assert parse_template(template({**ENGINE, "env": [{"name": "VLLM_API_KEY", "value": "sk-1"}]})).api_key_used


def test_escaped_references_stay_text() -> None:
    command = parse_template(
        template({**ENGINE, "env": [{"name": "A", "value": "x"}], "args": ["--model", "$$(A)$(A)"]})
    )
    assert command.model == "$(A)x"


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_dashes_and_underscores_mean_the_same(flag: str, data: st.DataObject) -> None:
    body = "".join(data.draw(st.sampled_from("-_")) if c == "-" else c for c in flag[2:])
    assert resolve("--" + body).name == flag
    if KINDS[flag] == "boolean":
        negated = resolve("--no" + data.draw(st.sampled_from("-_")) + body)
        assert (negated.name, negated.negated) == (flag, True)


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 40))
def test_a_prefix_means_a_flag_only_if_it_means_no_other(flag: str, cut: int) -> None:
    prefix = flag[: 2 + cut]
    options = {n: n for n in KINDS} | {"--no-" + n[2:]: n for n in KINDS if KINDS[n] == "boolean"}
    options |= {a: n for a, n in ALIASES.items() if a.startswith("--")}
    matching = {n for spelled, n in options.items() if spelled.startswith(prefix)}
    spelled = [s for s in options if s.startswith(prefix)]
    try:
        name = resolve(prefix).name
    except errors.RewriteRefused:
        ever = {*HISTORY, *("--no-" + name[2:] for name in HISTORY)}
        assert len({name for name in ever if name.startswith(prefix)}) > 1
        return
    if prefix in options:
        assert name == options[prefix]
    elif len(spelled) == 1:
        assert {name} == matching
    else:
        assert name == prefix
