"""Figures of the field: blocks of 16 tokens, Llama-3 8B in FP16."""

from __future__ import annotations

import pytest

from trimtab.engine.constraints import check_configuration
from trimtab.engine.kv import KVShape, blocks_for
from trimtab.engine.settings import Configuration
from trimtab.errors import InputError

LLAMA3_8B = KVShape(layers=32, kv_heads=8, head_size=128)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (80, 5), (128, 8), (512, 32)])
def test_blocks(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 16) == blocks


def test_bytes() -> None:
    assert LLAMA3_8B.bytes_per_block == 2_097_152
    assert LLAMA3_8B.bytes_for(512) == 64 * 2**20
    assert LLAMA3_8B.bytes_for(512) - LLAMA3_8B.bytes_for(80) == 54 * 2**20


@pytest.mark.parametrize("wrong", [lambda: blocks_for(-1, 16), lambda: blocks_for(1, 0), lambda: KVShape(0, 1, 1)])
def test_bad_figures_are_named(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(InputError):
        wrong()


def test_constraints_compare_only_what_is_set() -> None:
    check_configuration(Configuration.of(max_num_seqs=900))
    check_configuration(Configuration.of(max_num_seqs=64, max_num_batched_tokens=64))
    with pytest.raises(InputError, match="max_num_seqs 65"):
        check_configuration(Configuration.of(max_num_seqs=65, max_num_batched_tokens=64))
