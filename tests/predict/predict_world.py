"""A made-up world whose structure is known (the words of a prompt say its class, and the class the length), and a model
made by hand.
"""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.middleware.quantile_model import DENSE_NAMES
from trimtab.predict.fitted import Fitted
from trimtab.predict.network import LEVELS

#: class -> (share, median tokens, sigma of the log)
CLASSES = {"label": (0.35, 5, 0.3), "summary": (0.35, 180, 0.35), "chat": (0.2, 350, 0.9), "code": (0.1, 1200, 0.7)}


def rows(count: int, *, seed: int = 0, telling: bool = True, caps: bool = False, leave: float = 0.0) -> list[Any]:
    """Log rows. telling False: prompts say nothing. caps: half have a limit. leave: share whose client leaves early."""
    rng = random.Random(seed)
    common = [rng.getrandbits(22) for _ in range(2000)]
    own = {name: [rng.getrandbits(22) for _ in range(10)] for name in CLASSES}
    out = []
    for number in range(count):
        name = rng.choices(list(CLASSES), [share for share, *_ in CLASSES.values()])[0]
        _, median, sigma = CLASSES[name]
        words = [rng.choice(own[name] if telling and rng.random() < 0.2 else common) for _ in range(rng.randint(8, 40))]
        tokens, ending = max(1, round(rng.lognormvariate(math.log(median), sigma))), "stop"
        cap = rng.choice([None, None, 512, 2048]) if caps else None
        if cap and tokens >= cap:
            tokens, ending = cap, "length"
        if tokens > 1 and rng.random() < leave:
            tokens, ending = rng.randrange(1, tokens), "client_cancel"
        out.append({
            "at": 1.7e9 + number, "route": "chat", "prompt_chars": rng.randint(50, 4000), "messages": 1, "stream": True,
            "temperature": 1.0, "hashes": words, "output_tokens": tokens, "ending": ending, "cap_tokens": cap,
            **({"max_tokens": cap} if cap else {}),
        })  # fmt: skip
    return out


def write_log(path: Path, log: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in log))
    return path


def made_by_hand(seed: int = 0, **changes: Any) -> Fitted:
    """Random weights of the real shapes, but few buckets."""
    rng = np.random.default_rng(seed)
    width, buckets = len(DENSE_NAMES), 64
    sizes = [width + 8, 32, 16, len(LEVELS)]
    tensors = {"embedding": rng.normal(0, 0.5, (buckets, 8))}
    for number, (low, high) in enumerate(pairwise(sizes)):
        tensors[f"weight.{number}"] = rng.normal(0, 0.3, (high, low))
        tensors[f"bias.{number}"] = rng.normal(1, 0.3, (high, 1))
    # float32, as the file holds them
    tensors = {name: values.astype(np.float32).astype(np.float64) for name, values in tensors.items()}
    scale = np.where(np.arange(width) % 5 == 4, 0.0, rng.uniform(0.5, 2, width))
    fields: dict[str, Any] = {
        "levels": LEVELS, "tensors": tensors, "mean": rng.normal(0, 1, width), "scale": scale, "max_hashes": 128,
        "offsets": (0.1, -0.4, 0.0, 0.2, -0.1), "max_tokens": 4000,
    }  # fmt: skip
    return Fitted(**{**fields, **changes})
