"""How each engine admits, preempts and aborts: one table, with the source of each row. docs/engines.md renders it.

Hazard: texts of the field often describe vLLM as if it reserved max_new_tokens at admission. It does not, in v0 or v1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from trimtab.errors import InputError


class Model(StrEnum):
    """What admission takes from the KV cache for tokens that are not there yet."""

    ON_DEMAND = "on-demand"  # nothing: blocks for known tokens only
    FRACTION = "fraction"  # a moving share of what is left of max_new_tokens
    RESERVE = "reserve"  # all of max_new_tokens


@dataclass(frozen=True)
class Admission:
    """One engine's rules, in plain words. `max_new_tokens`: what a large value costs. `victim`: who is preempted."""

    engine: str
    model: Model
    admitted_when: str
    max_new_tokens: str
    preemption: str
    victim: str
    abort: str
    queue_order: str
    source: str

    @property
    def preempts(self) -> bool:
        return self.preemption != NEVER


NEVER: Final = "never"
VLLM_V1: Final = "vLLM v1"
TABLE: Final[tuple[Admission, ...]] = (
    Admission(
        engine="vLLM v0",
        model=Model.ON_DEMAND,
        admitted_when="blocks for the prompt are free above the watermark (1% of blocks), and running < max_num_seqs",
        max_new_tokens="holds nothing; it bounds how far a request may grow",
        preemption="recompute; swap to CPU memory for requests with several sequences (n > 1, beam search)",
        victim="the last of the running queue: the latest arrival under fcfs",
        abort="before the next step; blocks are free at once, hashed ones stay in the prefix cache until evicted",
        queue_order="first come first served; swapped requests before waiting ones",
        source="vllm/core/scheduler.py (_preempt, _schedule_prefills) of 0.6 to 0.9; removed since",
    ),
    Admission(
        engine=VLLM_V1,
        model=Model.ON_DEMAND,
        admitted_when="nobody was preempted in this step, blocks for all known tokens (prompt + generated) are free "
        "above --watermark (default 0), and running < max_num_seqs (and --max-num-active-seqs)",
        max_new_tokens="holds nothing; it bounds how far a request may grow",
        preemption="recompute of prompt + generated, less prefix-cache hits",
        victim="the latest admitted running request, possibly the one that asks; with --scheduling-policy priority the "
        "lowest priority",
        abort="at the next step; blocks go to the free queue, hashed ones last, so they stay cached until evicted; no "
        "metric counts a client's disconnect",
        queue_order="first come first served: the head blocks those behind it; or priority",
        source="vLLM 0.32 v1/core/sched/scheduler.py, v1/core/kv_cache_manager.py; seen on a real 0.32 CPU server",
    ),
    Admission(
        engine="SGLang",
        model=Model.FRACTION,
        admitted_when="uncached prompt + its max_new_tokens (counted up to 4,096) fit into free and evictable tokens "
        "less new_token_ratio x what running requests may still generate",
        max_new_tokens="a share is kept free: new_token_ratio starts at 0.7 x --schedule-conservativeness, falls, and "
        "rises at a retraction",
        preemption="recompute (called retraction); what the radix cache kept is reused",
        victim="the fewest generated tokens, among these the longest prompt",
        abort="a waiting request leaves the queue at once; a running one ends at the next step and its tokens go to "
        "the radix cache",
        queue_order="first come first served, or longest cached prefix first (lpm; first come first served above 128 "
        "waiting)",
        source="sglang/srt/managers/schedule_policy.py (PrefillAdder), schedule_batch.py (retract_decode); its "
        "hyperparameter tuning page",
    ),
    Admission(
        engine="TGI v3",
        model=Model.RESERVE,
        admitted_when="blocks for input + max_new_tokens + speculation - 1 are free, and the batch stays below "
        "--max-batch-total-tokens and --max-batch-prefill-tokens",
        max_new_tokens="holds blocks for all of it from admission to the end",
        preemption=NEVER,
        victim="nobody",
        abort="waiting: dropped when the queue is next read; running: found when its next token cannot be sent, then "
        "its blocks are free",
        queue_order="first come first served: the head blocks those behind it; joins wait for --waiting-served-ratio "
        "or --max-waiting-tokens",
        source="text-generation-inference backends/v3/src/queue.rs, backend.rs",
    ),
    Admission(
        engine="TensorRT-LLM GUARANTEED_NO_EVICT",
        model=Model.RESERVE,
        admitted_when="blocks to drive it and all running requests to their max_new_tokens exist (its default policy)",
        max_new_tokens="counted in full against the pool from admission on, though blocks are taken as it grows",
        preemption=NEVER,
        victim="nobody",
        abort="cancel request; the executor ends it between two steps and frees its blocks",
        queue_order="first come first served: the first that does not fit stops the pass; one whose prefix another is "
        "computing is passed over",
        source="TensorRT-LLM batch_manager/capacityScheduler.cpp (GuaranteedNoEvictScheduler); Useful Runtime Options "
        "page; when an abort takes effect is read from the field, not from code",
    ),
    Admission(
        engine="TensorRT-LLM MAX_UTILIZATION",
        model=Model.ON_DEMAND,
        admitted_when="blocks for its next step are free",
        max_new_tokens="holds nothing; it bounds how far a request may grow",
        preemption="pause: blocks are freed and the request starts again, with what block reuse kept",
        victim="the last started request of the list",
        abort="cancel request; the executor ends it between two steps and frees its blocks",
        queue_order="first come first served",
        source="TensorRT-LLM batch_manager/capacityScheduler.cpp (MaxUtilizationScheduler); Useful Runtime Options "
        "page; when an abort takes effect is read from the field, not from code",
    ),
)


def admission(engine: str) -> Admission:
    """The row of an engine by its name in TABLE, whatever the case. InputError names the known ones."""
    for row in TABLE:
        if row.engine.lower() == engine.strip().lower():
            return row
    raise InputError("engine", f"{engine!r} is not in the table", f"Known are {', '.join(r.engine for r in TABLE)}.")


def of_model(model: Model) -> tuple[Admission, ...]:
    """Engines with this admission model."""
    return tuple(row for row in TABLE if row.model is model)


# --- the page ---------------------------------------------------------------------------------------------------------
_LABELS: Final = {
    "model": "admission model", "admitted_when": "a request is admitted when", "max_new_tokens": "max_new_tokens",
    "preemption": "preemption", "victim": "who is preempted", "abort": "an abort takes effect",
    "queue_order": "order of the queue", "source": "source",
}  # fmt: skip


def as_markdown(rows: Iterable[Admission] = TABLE) -> str:
    """Two tables: the models at a glance, then one column of rules per engine as sections of rows."""
    rows = tuple(rows)
    glance = ["| engine | admission model | max_new_tokens | preemption |", "|---|---|---|---|"]
    glance += [f"| {r.engine} | `{r.model}` | {r.max_new_tokens} | {r.preemption} |" for r in rows]
    parts = ["\n".join(glance)]
    for row in rows:
        lines = [f"### {row.engine}", "", "| rule | |", "|---|---|"]
        for field in fields(row):
            if field.name in _LABELS:
                value = getattr(row, field.name)
                lines.append(f"| {_LABELS[field.name]} | {f'`{value}`' if field.name == 'model' else value} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
