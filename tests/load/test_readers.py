"""Trace files: what is read, what is refused, and that shared prefixes are really shared."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from trimtab.errors import InputError, TraceError
from trimtab.load.prompt import Prompts
from trimtab.load.readers import read_azure, read_mooncake, read_trace
from trimtab.load.trace import Request, clipped

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,0\r\n"
)
MOONCAKE = [
    {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 500, "input_length": 1300, "output_length": 6, "hash_ids": [0, 1, 3]},
    {"timestamp": 900, "input_length": 700, "output_length": 7, "hash_ids": [0, 4]},
    {"timestamp": 950, "input_length": 600, "output_length": 7, "hash_ids": [9, 8]},
]


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def common(a: str, b: str) -> int:
    """Words in common from the start."""
    pairs = zip(a.split(" "), b.split(" "), strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a.split(" ")), len(b.split(" "))))


def test_azure_is_read_with_seven_decimals_and_empty_outputs_become_one_token(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(AZURE.encode())
    first, second = read_trace(f"azure:{file}")
    assert first == Request(0.0, 374, 44, None, 0, None, 44)
    assert second.arrival_seconds == pytest.approx(4.314579) and second.output_tokens == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((",GeneratedTokens", ",Tokens"), ("a.csv:1", "GeneratedTokens", "missing")),
        ((",396,", ",many,"), ("a.csv:3", "ContextTokens", "many")),
        (("396", "-5"), ("a.csv:3", "ContextTokens", "negative")),
        ((",396,0", ",396"), ("a.csv:3", "GeneratedTokens", "missing")),
        (("2023-11-16 18:15:50.9951690", "soon"), ("a.csv:3", "TIMESTAMP", "soon")),
        (("50.9951690", "50.9951690+00:00"), ("a.csv:3", "TIMESTAMP", "time zone")),
    ],
)
def test_a_bad_azure_line_is_named(tmp_path: Path, change: tuple[str, str], words: tuple[str, ...]) -> None:
    file = tmp_path / "a.csv"
    file.write_text(AZURE.replace("\r\n", "\n").replace(*change))
    with pytest.raises(TraceError) as raised:
        read_azure(file)
    assert all(word in str(raised.value) for word in words) and raised.value.fix


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ("m.jsonl:5", "not JSON")),
        ("[1]", ("m.jsonl:5", "list")),
        ('{"timestamp": "x", "input_length": 1, "output_length": 1}', ("m.jsonl:5", "timestamp")),
        ('{"timestamp": 1, "output_length": 1}', ("m.jsonl:5", "input_length", "missing")),
        ('{"timestamp": 1, "input_length": 1.5, "output_length": 1}', ("m.jsonl:5", "input_length", "1.5")),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}', ("m.jsonl:5", "hash_ids")),
    ],
)
def test_a_bad_mooncake_line_is_named(tmp_path: Path, line: str, words: tuple[str, ...]) -> None:
    file = write(tmp_path / "m.jsonl", [*MOONCAKE])
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(TraceError) as raised:
        read_mooncake(file)
    assert all(word in str(raised.value) for word in words) and raised.value.fix


def test_empty_missing_and_broken_files_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty", tmp_path / "broken.gz"
    empty.write_text("")
    broken.write_bytes(gzip.compress(b"x" * 1000)[:20])
    for source in (f"azure:{empty}", f"mooncake:{empty}", f"mooncake:{broken}", f"azure:{tmp_path}/none"):
        with pytest.raises(TraceError):
            read_trace(source)
    for source in ("x.csv", "sharegpt:x", "azure:"):
        with pytest.raises(InputError, match="--trace"):
            read_trace(source)


@pytest.mark.parametrize("unit", ["word", "char"])
def test_mooncake_blocks_become_a_tree_of_shared_prefixes(tmp_path: Path, unit: str) -> None:
    plain = write(tmp_path / "m.jsonl", [*MOONCAKE])
    packed = tmp_path / "m.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    requests = read_mooncake(packed)
    assert requests == read_mooncake(plain)
    assert [(r.prefix_blocks, r.prefix_tokens) for r in requests] == [
        ((0, 1), 1024),
        ((0, 1), 1024),
        ((0,), 512),
        ((), 0),
    ]
    prompts = Prompts("salt", unit)  # type: ignore[arg-type]
    texts = [prompts.text(r, n) for n, r in enumerate(requests)]
    if unit == "char":
        assert [len(t) for t in texts] == [1300, 1300, 700, 600]
        texts = [" ".join(t) for t in texts]
    assert [len(t.split(" ")) for t in texts] == [1300, 1300, 700, 600]
    assert 1024 <= common(texts[0], texts[1]) < 1028 and 512 <= common(texts[0], texts[2]) < 516
    assert common(texts[0], texts[3]) < 4


def test_clipped_prompts_still_share_their_beginning(tmp_path: Path) -> None:
    requests = clipped(read_mooncake(write(tmp_path / "m.jsonl", [*MOONCAKE])), max_prompt_tokens=600)
    prompts = Prompts("salt")
    a, b, c = (prompts.text(r, n) for n, r in enumerate(requests[:3]))
    assert a == b and len(a.split(" ")) == 600 and 512 <= common(a, c) < 516


def test_groups_share_exactly_their_prefix_and_salts_share_nothing() -> None:
    one = Request(0.0, 50, 5, 3, 40, None, 5)
    other = Request(0.0, 70, 5, 3, 30, None, 5)
    prompts = Prompts("salt")
    a, b, c = prompts.text(one, 0), prompts.text(other, 1), Prompts("pepper").text(one, 0)
    assert 30 <= common(a, b) < 34 and common(a, c) < 4 and a == prompts.text(one, 0)


TRACES = Path(os.environ.get("TRIMTAB_DATA", "")) / "traces"


@pytest.mark.skipif(
    not (os.environ.get("TRIMTAB_DATA") and TRACES.is_dir()),
    reason="TRIMTAB_DATA does not name a folder with the public traces",
)
@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("azure:azure-2023-conv.csv", 19366),
        ("azure:azure-2023-code.csv", 8819),
        ("mooncake:mooncake-conversation.jsonl.gz", 12031),
        ("mooncake:mooncake-synthetic.jsonl.gz", 3993),
    ],
)
def test_public_traces_are_read_whole(source: str, count: int) -> None:
    kind, _, name = source.partition(":")
    requests = read_trace(f"{kind}:{TRACES / name}")
    assert len(requests) == count and requests[0].arrival_seconds == 0.0
    assert (kind == "mooncake") == any(r.prefix_tokens > 0 for r in requests)
