"""The fuzzer of `make fuzz`: some inputs of each kind, what it has found so far, and that it finds a planted fault."""

from __future__ import annotations

import json
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from trimtab.engine.model_config import ModelConfig
from trimtab.errors import InputError, SpecError, TraceError
from trimtab.load.readers import read_trace
from trimtab.middleware.policy_file import parse as parse_policy
from trimtab.middleware.table import FieldError
from trimtab.plan.spec import TunerSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import fuzz
import fuzz_inputs


def test_some_inputs_of_every_kind_do_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    with fuzz.everything(None, with_api=False) as tries:
        tallies = fuzz.run(tries, seed=20_261_130, seconds=0, skip=0, count=60)
    assert not any(t.crashes for t in tallies.values()), capsys.readouterr().out
    assert all(t.taken for t in tallies.values()), "of each kind something is read to its end"
    assert fuzz.table(tallies).count("\n") == len(tallies) + 1


def test_the_same_number_is_the_same_input() -> None:
    seen: list[Any] = []

    def attempt(rng: random.Random) -> str:
        seen.append(fuzz_inputs.damaged(rng, fuzz_inputs.SPECS[-1]))
        return fuzz.TAKEN

    for skip in (0, 2, 2):
        fuzz.run({"specs": attempt}, seed=1, seconds=0, skip=skip, count=1)
    assert seen[1] == seen[2] != seen[0]


@pytest.mark.parametrize(
    "error", [KeyError("x"), InputError(" ", "is wrong", "Mend it."), InputError("a", "is wrong", ""), SystemError("x")]
)
def test_a_fault_is_found_and_said_how_to_make_again(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """Also an error of our own that does not say where, or what to do."""

    def attempt(rng: random.Random) -> str:
        if rng.random() < 0.1:
            try:
                raise error
            except InputError as ours:
                return fuzz_inputs.told(ours)
        return fuzz.TAKEN

    tallies = fuzz.run({"specs": attempt}, seed=1, seconds=0, skip=0, count=100)
    assert tallies["specs"].crashes > 0
    assert "again: python benchmarks/fuzz.py --only 'specs' --seed 1 --skip" in capsys.readouterr().out


# --- what it has found ------------------------------------------------------------------------------------------------
def test_a_time_zone_as_long_as_a_file_name_may_not_be() -> None:
    windows = [{"timeZone": "9" * 5000}]
    with pytest.raises(SpecError, match="is not a time zone") as caught:
        TunerSpec.parse({"targetRef": {"name": "a"}, "metrics": {"direct": {}}, "rollout": {"windows": windows}})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("line", [b'{"timestamp": ' + b"9" * 5000 + b"}", b"[" * 200_000])
def test_numbers_without_end_and_brackets_without_end_in_a_trace(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(line)
    with pytest.raises(TraceError, match="t:1 line"):
        read_trace(f"mooncake:{tmp_path / 't'}")


def test_a_packed_trace_that_is_broken_inside(tmp_path: Path) -> None:
    packed = zlib.compressobj(wbits=31)
    whole = bytearray(packed.compress(b"TIMESTAMP,ContextTokens\n" * 50) + packed.flush())
    whole[12:20] = b"\xff" * 8
    (tmp_path / "t").write_bytes(whole)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(f"azure:{tmp_path / 't'}")


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_nextn_predict_layers", "sliding_window_pattern"])
def test_more_layers_than_memory(field: str) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8, "sliding_window": 9, field: 10**30}
    if field == "sliding_window_pattern":
        assert len(ModelConfig.from_hf(config).layers) == 2
        return
    with pytest.raises(InputError) as caught:
        ModelConfig.from_hf(config)
    assert caught.value.field == field


def test_a_field_without_a_name_in_a_policy() -> None:
    with pytest.raises(FieldError) as caught:
        parse_policy(json.dumps({"": 1}).encode())
    assert caught.value.field == '""'
