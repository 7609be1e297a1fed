"""Texts of /metrics of many versions, damaged."""

from __future__ import annotations

import random

from shapes import shape
from test_versions import SHAPES

from trimtab.observe.metrics import WANTED

TEXTS = [shape(name).encode() for name in SHAPES]
#: lines that can matter, so that few mutations are spent on what is skipped
LINES = [[x for x in t.split(b"\n") if x.split(b"{")[0].split(b" ")[0].decode() in WANTED] for t in TEXTS]
ODD = (
    *(b"NaN", b"+Inf", b"-Inf", b"1e999", b"-1", b"0x10", b"1_0", b"9" * 400, b"1 2 3", "\u0661\u0662".encode()),
    *(
        b"",
        b"{",
        b"}",
        b'"',
        b'\\"',
        b"\\",
        b"\x00",
        b"\xff\xfe",
        b"\xe2\x80\xa8",
        b"\r",
        b"\t",
        b" ",
        b"\n",
        b"==",
        b",,",
    ),
    *(b"# TYPE vllm:x counter\n", b'# {a="b"} 1 2', b'le="abc"', b'le="NaN"', b'le="+Inf"'),
    *(b'engine="1"', b'engine="0",engine="0"', b"a" * 5000),
)


def mutated(rng: random.Random) -> bytes:
    """A few lines of one version, or rarely a whole text, with up to eight random changes."""
    which = rng.randrange(len(TEXTS))
    whole = rng.random() < 0.005
    lines = list(TEXTS[which].split(b"\n")) if whole else rng.choices(LINES[which], k=rng.randint(1, 12))
    if rng.random() < 0.3:
        lines += rng.choices(LINES[rng.randrange(len(LINES))], k=3)
    body = bytearray(b"\n".join(lines) + b"\n")
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(6):
            case 0:
                body[at:at] = rng.choice(ODD)
            case 1:
                del body[at : at + rng.randint(1, 40)]
            case 2 if at < len(body):
                body[at] = rng.randrange(256)
            case 3:
                body[at : at + rng.randint(1, 12)] = rng.choice(ODD)
            case 4:
                body[at:at] = body[at : at + rng.randint(1, 300)]
            case _:
                del body[rng.randrange(len(body) + 1) :]
                body += b"\n"
    return bytes(body)
