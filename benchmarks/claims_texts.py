"""What is claimed, who says it and why it came out as it did; the figures and verdicts are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Text(NamedTuple):
    """No `source`: common advice that names none."""

    claim: str
    why: str
    source: str = ""


TEXTS: Mapping[str, Text] = {
    "kv-arithmetic": Text(
        "Llama-3 8B: max_new_tokens 512 reserves 64 MB, an answer of 80 tokens uses 10",
        "Where max_new_tokens is reserved: TGI, TensorRT-LLM. vLLM reserves nothing.",
    ),
    "reserve-waste": Text(
        "Reserving max_new_tokens wastes KV memory and throughput",
        "It holds where KV is what limits. On an A100 with 256 sequences and a limit of 512 there is room for all.",
    ),
    "reserve-settings": Text(
        "Then raising max_num_seqs does nothing, nor does gpu_memory_utilization",
        "Sequences that cannot be reserved for do not run. But more blocks are more reservations.",
    ),
    "reserve-chains": Text(
        "On a reserving engine a small max_new_tokens admits more, and overruns then preempt in chains",
        "What is reserved cannot be overrun: the limit cuts the answer. On demand a lower limit shortens what grows.",
    ),
    "bound-cap": Text(
        "Cap by max_new_tokens: what is reserved and not used is waste; a low cap means preemption in chains",
        "The waste is a reserving engine's. A cap lowers preemption: capped answers leave before they grow.",
    ),
    "bound-eos": Text(
        "Stop at EOS: freed at once, but with no bound max_model_len over-reserves",
        "Only where max_model_len is reserved. vLLM holds what is generated.",
    ),
    "bound-afterwards": Text(
        "Cut afterwards: KV held for all that is generated; preemption risk low",
        "The first half holds. The second does not: to the engine it is the same as no limit at all.",
    ),
    "cv-narrow": Text(
        "CV <= 0.3: 1.5 to 2 x mean, almost no preemption",
        "The limit cuts next to nobody; for the same reason it changes no admission on vLLM. Preemption "
        "depends on max_num_seqs and blocks.",
    ),
    "cv-wide": Text(
        "CV > 1: p90 x 1.5-2 with fewer sequences turns preemption into queueing",
        "It is the number of sequences that does it. KV tokens / p90s of prompt and output has everybody at the p90 at "
        "once: too few. By the means, tail and throughput both gain.",
    ),
    "cv-predicted": Text(
        "A limit predicted for each request gains most where CV is high",
        "The most that any predictor can give, and only where limits are reserved (or admission counts them).",
    ),
    "ratio-half": Text(
        "useful_token_ratio <= 0.5: half of the KV cache is never used",
        "Prompts are used in full, so long ones lower it; what an answer will use later is unused until then,"
        " so short ones raise it.",
    ),
    "cancel-throughput": Text(
        "10% cancelled: throughput -12%; 30%: -29%",
        "It is the share of the answers that nobody reads to the end. With a queue and aborts others take the freed "
        "places, and half to three quarters of it is lost.",
    ),
    "cancel-cure": Text(
        "Above 10% cancelled tuning batch or cache cannot fix it; cutting at the gateway is most effective",
        "What a setting gains it gains without cancellation, too.",
    ),
    "preempt-start": Text(
        "Preemption starts above 90% KV use",
        "A preemption needs a full cache, for one step. An average below 90% rules none out: watch the counter.",
    ),
    "preempt-tail": Text(
        "TPOT p99 is 3.8 x p50, and 70% of the gap is preemption; p99 rises from 200 ms to 8 s",
        "Long answers are preempted again and again: theirs is the tail. A rise to 40 times was not seen; TPOT is the "
        "mean over an answer, which spreads each pause over all its tokens.",
    ),
    "spiral": Text(
        "Death spiral: preempted requests come back and are preempted again; the GPU is busy, throughput flat",
        "Preempted again and again, busy and flat: so it is. But it does not feed itself: the last admitted is "
        "preempted and nobody is admitted before it is back, so the oldest finish. What it costs is the "
        "repeated prefill: "
        "little where a prompt token is cheap beside a decode step, much where it is dear.",
    ),
    "chunked": Text(
        "Chunked prefill softens the stalls but does not fix wrong length estimates",
        "The stall is spread over more steps. Preemption comes from growth during decoding, which chunks do not touch.",
    ),
    "prefix": Text(
        "Prefix caching pays",
        "It saves prefill and shared blocks. Where nothing is shared it still saves what preemption repeats. "
        "Hashing's time on the CPU is not modelled.",
    ),
    "published-recompute": Text(
        "Recompute share 0 / 32.2 / 57.9 / 78.8% at 2800 / 1600 / 800 / 400 blocks",
        "Not published: how many sequences, which budget, which lengths. The prompts' length and that the share is of "
        "prefill follow from the tokens lost; the rest is fitted. It takes an engine that admits a prompt by its first "
        "chunk; vLLM today asks for room for the whole prompt.",
        "vLLM issue 54644",
    ),
    "published-cliff": Text(
        "A cliff from 2200 to 2100 blocks: TTFT p99 x 4.7",
        "It counts the time to first token anew when a preempted request starts over, lets it decode again what it "
        "had, and loses blocks. In vLLM a preempted request has had its first token and keeps its tokens: the cliff is "
        "where the prompts no longer fit at once (50 of 32 blocks: 1600).",
        "inference-sim (BLIS), pull request 298",
    ),
    "published-watermark": Text(
        "A watermark of 0.02 to 0.05 cuts preemptions from 1065 to 400 and 187 and gains 5%",
        "All settings but the duration of a step are published, and counts do not depend on it. Without a watermark "
        "whoever is admitted into the last free blocks is the first to be preempted.",
        "vLLM pull request 44594",
    ),
    "prefill-8000": Text(
        "8,000 tokens of prefill cost 0.2 to 0.4 s",
        "Llama-3 8B by the roofline (RTX 4090: fitted on a run). It is an H100's figure.",
    ),
    "swap": Text(
        "Swapping moves KV at some 32 GB/s, recomputing costs prefill",
        "With 128 KiB of KV a token swapping is the cheaper one at any PCIe speed that large copies reach. v0"
        " copied small pieces and blocked the step meanwhile; v1 recomputes only.",
    ),
    "coupling": Text(
        "Thinking and answer under one limit starve each other; separate budgets are better",
        "While the limit is near the thinking's length. What a cut in the thinking does to an answer is the model's "
        "matter and not computed.",
    ),
}
