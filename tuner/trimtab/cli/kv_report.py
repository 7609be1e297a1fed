"""What `trimtab kv` says: the figures as one record, as a table and as JSON. MiB is 1,048,576 bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from trimtab.engine.kv import (
    BlockCount,
    Layout,
    LayoutOptions,
    Memory,
    Origin,
    Tokens,
    Usage,
    count_blocks,
    derive,
    fleet,
    lay_out,
    seed_max_num_seqs,
    usage,
)
from trimtab.engine.kv.usage import MIB, Held
from trimtab.engine.model_config import ModelConfig
from trimtab.errors import InputError

Json = dict[str, Any]
#: vLLM's block pool never hands out its first block (vllm/v1/core/block_pool.py, null_block)
NULL_BLOCKS = 1


@dataclass(frozen=True)
class Workload:
    """Requests as given; None: not given."""

    prompt: int | None = None
    max_new: int | None = None
    generated: int | None = None
    running: int = 1
    replicas: int = 1
    mean_tokens: float | None = None

    def tokens(self, max_model_len: int | None) -> Tokens | None:
        """None if nothing is said. vLLM's chat default for max_new_tokens is what is left of max_model_len."""
        if self.prompt is None and self.max_new is None and self.generated is None:
            return None
        prompt = self.prompt or 0
        max_new = self.max_new
        if max_new is None:
            if max_model_len is None:
                raise InputError("--max-new-tokens", "is missing", "Give it, or --max-model-len, which bounds it.")
            max_new = max(0, max_model_len - prompt)
        if max_model_len is not None and prompt + max_new > max_model_len:
            problem = f"{prompt} + {max_new} tokens are more than max_model_len {max_model_len}"
            raise InputError("--max-new-tokens", problem, "Lower it, or raise --max-model-len.")
        return Tokens(prompt, max_new, max_new if self.generated is None else self.generated)


@dataclass(frozen=True)
class Report:
    """Everything that is shown. `one`: a request; `engine`: all running on a replica; `fleet`: all replicas."""

    layers: str
    layout: Layout
    count: BlockCount | None
    derived: BlockCount | None
    max_model_len: int | None
    tokens: Tokens | None
    load: Workload
    one: Usage | None
    engine: Usage | None
    fleet: Usage | None
    capacity_tokens: int | None
    max_concurrency: float | None
    seed_max_num_seqs: int | None
    notes: tuple[str, ...]

    def fit(self, held: Held) -> int | None:
        """Requests that fit at once if each holds this."""
        if self.count is None or held.blocks < 1:
            return None
        return (self.count.blocks - NULL_BLOCKS) // held.blocks


def build_report(
    model: ModelConfig,
    options: LayoutOptions,
    memory: Memory,
    max_model_len: int | None,
    load: Workload,
    caveat: str | None = None,
) -> Report:
    """InputError for figures that contradict each other. caveat: about an assumed block size."""
    layout = lay_out(model, options)
    gpus = options.tensor_parallel * options.pipeline_parallel
    count, derived = count_blocks(layout, memory, gpus), derive(layout, memory, gpus)
    tokens = load.tokens(max_model_len)
    one = None if tokens is None else usage(layout, tokens)
    capacity = concurrency = None
    if count is not None and max_model_len is not None:
        capacity = layout.capacity_tokens(count.blocks, max_model_len)
        concurrency = layout.max_concurrency(count.blocks, max_model_len)
    mean = load.mean_tokens
    if mean is None and tokens is not None:
        mean = tokens.prompt + tokens.generated or None
    return Report(
        layers=_describe(model),
        layout=layout,
        count=count,
        derived=derived,
        max_model_len=max_model_len,
        tokens=tokens,
        load=load,
        one=one,
        engine=None if one is None else fleet(one, load.running, 1),
        fleet=None if one is None else fleet(one, load.running, load.replicas),
        capacity_tokens=capacity,
        max_concurrency=concurrency,
        seed_max_num_seqs=None if capacity is None or mean is None else seed_max_num_seqs(capacity, mean),
        notes=_notes(layout, count, derived, one, load, caveat),
    )


def _describe(model: ModelConfig) -> str:
    """`10 full, 52 sliding (1024 tokens)`."""
    kinds = Counter(
        "without KV" if x is None else x.attention + (f" ({x.window_tokens} tokens)" if x.window_tokens else "")
        for x in model.layers
    )
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _notes(
    layout: Layout,
    count: BlockCount | None,
    derived: BlockCount | None,
    one: Usage | None,
    load: Workload,
    caveat: str | None,
) -> tuple[str, ...]:
    notes = [f"Not modelled: {x}. Bytes are a lower bound, and no block count is derived." for x in layout.not_modelled]
    if caveat:
        notes.append(f"Block size is assumed: {caveat}.")
    if count is not None and not count.exact:
        notes.append("The block count is an upper bound: vLLM takes off what it measures at start. Give the real one.")
    if count is not None and count.origin is Origin.ENGINE and derived is not None and derived.blocks:
        off = count.blocks / derived.blocks - 1
        notes.append(f"The engine's own count is used; derived were {derived.blocks:,} blocks ({off:+.1%}).")
    if len(layout.groups) > 1:
        notes.append(f"{len(layout.groups)} groups of layers take blocks from one pool; a request's blocks are summed.")
    if count is not None and one is not None:
        most = count.blocks - NULL_BLOCKS
        for word, held in (("reserve", one.reserved), ("use", one.used)):
            if held.blocks * load.running > most:
                notes.append(f"{load.running} requests {word} {held.blocks * load.running:,} blocks; {most:,} exist.")
    return tuple(notes)


# --- text -------------------------------------------------------------------------------------------------------------
def show(report: Report, console: Console) -> None:
    console.print(_cache_table(report))
    if report.tokens is not None:
        console.print(_usage_table(report))
    for note in report.notes:
        console.print(f"- {note}", markup=False, highlight=False)


def _cache_table(report: Report) -> Table:
    layout, count = report.layout, report.count
    table = Table(
        "figure", "value", "from", title="KV cache of one engine (1 MiB = 1,048,576 bytes)", title_justify="left"
    )
    table.add_row("layers", report.layers, "")
    table.add_row("cache dtype", layout.kv_dtype, "")
    table.add_row("block size", f"{layout.block_size} tokens", "")
    table.add_row("bytes per block, one GPU", f"{layout.bytes_per_block:,} ({_mib(layout.bytes_per_block)})", "")
    if layout.bytes_per_block_all_gpus != layout.bytes_per_block:
        total = layout.bytes_per_block_all_gpus
        table.add_row("bytes per block, all GPUs", f"{total:,} ({_mib(total)})", "")
    if count is None:
        table.add_row("blocks", "unknown", "give --num-gpu-blocks, or memory and weights")
        return table
    table.add_row("blocks", ("" if count.exact else "at most ") + f"{count.blocks:,}", count.why)
    table.add_row("cache size, one GPU", _mib(count.blocks * layout.bytes_per_block), "blocks x bytes")
    if report.max_concurrency is not None and report.capacity_tokens is not None:
        length = f"{report.max_model_len:,} tokens"
        table.add_row("capacity", f"{report.capacity_tokens:,} tokens", f"requests of {length}")
        table.add_row("requests of full length at once", f"{report.max_concurrency:.2f}", length)
    if report.seed_max_num_seqs is not None:
        table.add_row("first max_num_seqs to try", str(report.seed_max_num_seqs), "capacity / mean(prompt + generated)")
    return table


def _usage_table(report: Report) -> Table:
    tokens, load = report.tokens, report.load
    assert tokens is not None and report.one is not None and report.engine is not None and report.fleet is not None
    title = f"Prompt {tokens.prompt}, max_new_tokens {tokens.max_new}, generated {tokens.generated}"
    table = Table(title=title, title_justify="left")
    columns = ("", "reserved blocks", "used blocks", "wasted blocks", "reserved", "used", "wasted")
    for name in columns:
        table.add_column(name, justify="right" if name else "left")
    rows = [("one request", report.one)]
    if load.running > 1:
        rows.append((f"{load.running} running on an engine", report.engine))
    if load.replicas > 1:
        rows.append((f"{load.replicas} replicas", report.fleet))
    for name, u in rows:
        held = (u.reserved, u.used, u.wasted)
        table.add_row(name, *(f"{h.blocks:,}" for h in held), *(_mib(h.bytes) for h in held))
    if report.count is not None:
        fits = [report.fit(report.one.reserved), report.fit(report.one.used)]
        table.add_row("fit at once", *("-" if f is None else f"{f:,}" for f in fits), "", "", "", "")
    table.caption = "Reserved is held only by engines that reserve (docs/engines.md); vLLM holds what is used."
    table.caption_justify = "left"
    return table


def _mib(size: int) -> str:
    mib = size / MIB
    return f"{mib:,.0f} MiB" if mib == int(mib) else f"{mib:,.2f} MiB"


# --- JSON -------------------------------------------------------------------------------------------------------------
def as_json(report: Report) -> Json:
    """Bytes, blocks and tokens as whole numbers; null is unknown."""
    layout = report.layout
    shown: Json = {
        "layers": report.layers,
        "kv_dtype": layout.kv_dtype,
        "block_size_tokens": layout.block_size,
        "bytes_per_block": layout.bytes_per_block,
        "bytes_per_block_all_gpus": layout.bytes_per_block_all_gpus,
        "groups": [asdict(g) for g in layout.groups],
        "num_gpu_blocks": None if report.count is None else asdict(report.count),
        "derived_num_gpu_blocks": None if report.derived is None else asdict(report.derived),
        "max_model_len_tokens": report.max_model_len,
        "capacity_tokens": report.capacity_tokens,
        "max_concurrency": report.max_concurrency,
        "seed_max_num_seqs": report.seed_max_num_seqs,
        "tokens": None if report.tokens is None else asdict(report.tokens),
        "notes": list(report.notes),
    }
    for name, u in (("request", report.one), ("engine", report.engine), ("fleet", report.fleet)):
        shown[name] = None if u is None else {
            "reserved": asdict(u.reserved), "used": asdict(u.used), "wasted": asdict(u.wasted),
        }  # fmt: skip
    return shown
