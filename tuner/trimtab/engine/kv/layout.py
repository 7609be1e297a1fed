"""How vLLM lays the KV cache out: groups of layers, bytes per block, and the blocks that a request takes.

Source: vllm/v1/core/kv_cache_utils.py (get_kv_cache_groups, _get_kv_cache_groups_uniform_page_size,
get_max_concurrency_for_kv_cache_config), v1/kv_cache_interface.py, distributed/utils.py (get_pp_indices) of 0.32.
Hazard: with several groups a request takes blocks of each group from one pool, so tokens per block is no constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimtab.engine.kv.blocks import blocks_for
from trimtab.engine.kv.dtypes import resolve, token_bytes
from trimtab.engine.model_config import Attention, LayerKV, ModelConfig
from trimtab.errors import InputError

#: layers of one kind may exceed the other's by this factor before vLLM makes more groups (same source)
_PADDING_LIMIT = 1.5


@dataclass(frozen=True)
class Speculative:
    """Speculative decoding. `draft`: the draft model, or None (n-gram, or the model's own MTP layers).

    method: ngram, mtp, eagle, eagle3, draft_model (vllm/config/vllm.py num_lookahead_tokens).
    """

    method: str
    tokens: int
    draft: ModelConfig | None = None
    draft_tensor_parallel: int | None = None

    def __post_init__(self) -> None:
        if self.method not in ("ngram", "mtp", "eagle", "eagle3", "draft_model"):
            fix = "Modelled are ngram, mtp, eagle, eagle3 and draft_model."
            raise InputError("speculative method", f"{self.method!r} is not modelled", fix)
        if self.tokens < 1:
            raise InputError("num_speculative_tokens", f"{self.tokens} is too small", "Use 1 or more.")
        if self.draft is None and self.method in ("eagle", "eagle3", "draft_model"):
            fix = "Give the draft's config.json (trimtab kv --spec-model)."
            raise InputError("speculative model", f"{self.method} has a draft model and none is given", fix)

    @property
    def lookahead_tokens(self) -> int:
        """Slots a running request holds beyond its tokens."""
        return 0 if self.method == "ngram" else self.tokens


@dataclass(frozen=True)
class LayoutOptions:
    """Flags that decide the layout. block_size in tokens; in_flight_batches: steps scheduled and not yet settled, 2
    with asynchronous scheduling (the default on GPUs), 1 on CPUs."""

    block_size: int = 16
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    max_num_batched_tokens: int = 2048
    in_flight_batches: int = 2
    hybrid_manager: bool = True
    speculative: Speculative | None = None

    def __post_init__(self) -> None:
        names = ("block_size", "tensor_parallel", "pipeline_parallel", "max_num_batched_tokens", "in_flight_batches")
        for name in names:
            if getattr(self, name) < 1:
                raise InputError(name, f"{getattr(self, name)} is too small", "Use 1 or more.")


@dataclass(frozen=True)
class Group:
    """Layers that share a block table. stage_bytes: bytes of one block on one GPU of each pipeline stage."""

    attention: Attention
    window_tokens: int | None
    layers: int
    stage_bytes: tuple[int, ...]

    def blocks(self, tokens: int, block_size: int, ahead_tokens: int) -> int:
        """Blocks held by a request of `tokens`; a window keeps its last tokens and `ahead_tokens` in work."""
        whole = blocks_for(tokens, block_size)
        if self.window_tokens is None:
            return whole
        if self.attention == "chunked":
            return min(whole, blocks_for(self.window_tokens + ahead_tokens, block_size))
        # one more: a window need not begin where a block does
        return min(whole, blocks_for(self.window_tokens - 1 + ahead_tokens, block_size) + 1)

    def blocks_at_most(self, max_model_len: int, block_size: int, in_flight_tokens: int) -> int:
        """What vLLM sets aside for a request of full length (max_memory_usage_bytes of the spec)."""
        if self.window_tokens is None:
            return blocks_for(max_model_len, block_size)
        if self.attention == "chunked":
            return blocks_for(min(self.window_tokens + in_flight_tokens, max_model_len), block_size)
        return blocks_for(min(self.window_tokens - 1 + in_flight_tokens, max_model_len), block_size) + 1


@dataclass(frozen=True)
class Layout:
    """One engine's KV cache. bytes_per_block: of one block id on the fullest GPU, which decides num_gpu_blocks.

    bytes_per_block_all_gpus: the same block id on all tensor- and pipeline-parallel GPUs together.
    not_modelled: as in ModelConfig; if not empty, bytes are a lower bound.
    """

    block_size: int
    kv_dtype: str
    groups: tuple[Group, ...]
    bytes_per_block: int
    bytes_per_block_all_gpus: int
    in_flight_tokens: int
    lookahead_tokens: int
    not_modelled: tuple[str, ...]

    def blocks(self, tokens: int) -> int:
        """Blocks that a running request holds, all groups together. A request of 0 tokens holds none."""
        if tokens == 0:
            return 0
        held = tokens + self.lookahead_tokens
        return sum(g.blocks(held, self.block_size, 1 + self.lookahead_tokens) for g in self.groups)

    def blocks_of_full_length(self, max_model_len: int) -> int:
        """Blocks that vLLM counts for a request of max_model_len tokens."""
        if max_model_len < 1:
            raise InputError("max_model_len", f"{max_model_len} is too small", "Use 1 token or more.")
        return sum(g.blocks_at_most(max_model_len, self.block_size, self.in_flight_tokens) for g in self.groups)

    def max_concurrency(self, num_gpu_blocks: int, max_model_len: int) -> float:
        """Requests of full length that fit: vLLM's kv_cache_max_concurrency."""
        return num_gpu_blocks / self.blocks_of_full_length(max_model_len)

    def capacity_tokens(self, num_gpu_blocks: int, max_model_len: int) -> int:
        """vLLM's kv_cache_size_tokens; for one group of full attention blocks x block size, to a block."""
        return int(self.max_concurrency(num_gpu_blocks, max_model_len) * max_model_len)


def pipeline_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Layers per stage as vLLM splits them: what does not divide goes to the last stages but the very last."""
    if stages > layers:
        fix = f"Use {layers} or less."
        raise InputError("pipeline_parallel", f"{stages} stages for {layers} layers", fix)
    counts = [layers // stages] * stages
    for i in range(2, layers % stages + 2):
        counts[-i] += 1
    return tuple(counts)


def kv_heads_per_gpu(kv_heads: int, tensor_parallel: int) -> int:
    """Heads are split, or copied where there are fewer than GPUs (vllm/config/model.py get_num_kv_heads)."""
    if kv_heads % tensor_parallel and tensor_parallel % kv_heads:
        fix = f"Use a divisor or a multiple of {kv_heads}."
        raise InputError("tensor_parallel", f"{tensor_parallel} GPUs cannot share {kv_heads} KV heads evenly", fix)
    return max(1, kv_heads // tensor_parallel)


@dataclass(frozen=True)
class _Placed:
    """A layer on a stage, with its bytes per block on one GPU."""

    layer: LayerKV
    stage: int
    page_bytes: int


def lay_out(model: ModelConfig, options: LayoutOptions) -> Layout:
    """Groups and bytes per block. InputError for what vLLM would refuse or what is not modelled."""
    kv_dtype = resolve(options.kv_cache_dtype, model.kv_dtype, options.dtype, model.dtype)
    placed = [*_place(model, options, kv_dtype), *_draft_layers(model, options, kv_dtype)]
    if not placed:
        raise InputError("config.json", "no layer keeps keys and values", "Nothing to count: no KV cache grows.")
    buckets = _buckets(placed, options.hybrid_manager)
    groups = tuple(
        Group(g[0].layer.attention, g[0].layer.window_tokens, len(g), _stage_bytes(g, options.pipeline_parallel))
        for g in _groups(buckets)
    )
    per_stage = [max(g.stage_bytes[s] for g in groups) for s in range(options.pipeline_parallel)]
    speculative = options.speculative
    return Layout(
        block_size=options.block_size,
        kv_dtype=kv_dtype,
        groups=groups,
        bytes_per_block=max(per_stage),
        bytes_per_block_all_gpus=sum(per_stage) * options.tensor_parallel,
        in_flight_tokens=options.max_num_batched_tokens * options.in_flight_batches,
        lookahead_tokens=0 if speculative is None else speculative.lookahead_tokens,
        not_modelled=model.not_modelled + (speculative.draft.not_modelled if speculative and speculative.draft else ()),
    )


def _page(layer: LayerKV, tensor_parallel: int, kv_dtype: str, block_size: int) -> int:
    heads = 1 if layer.latent else kv_heads_per_gpu(layer.kv_heads, tensor_parallel)
    return token_bytes(heads, layer.head_size, layer.latent, kv_dtype) * block_size


def _place(model: ModelConfig, options: LayoutOptions, kv_dtype: str) -> list[_Placed]:
    placed: list[_Placed] = []
    start = 0
    for stage, count in enumerate(pipeline_stages(len(model.layers), options.pipeline_parallel)):
        for layer in model.layers[start : start + count]:
            if layer is not None:
                page = _page(layer, options.tensor_parallel, kv_dtype, options.block_size)
                placed.append(_Placed(layer, stage, page))
        start += count
    return placed


def _draft_layers(model: ModelConfig, options: LayoutOptions, kv_dtype: str) -> list[_Placed]:
    """The draft's layers are on the last stage; MTP layers are full attention like the target's."""
    speculative = options.speculative
    if speculative is None or speculative.method == "ngram":
        return []
    last = options.pipeline_parallel - 1
    if speculative.draft is not None:
        layers = [layer for layer in speculative.draft.layers if layer is not None]
        ranks = speculative.draft_tensor_parallel or options.tensor_parallel
    else:
        if model.draft_layers < 1:
            raise InputError("speculative method", "mtp, and the config has no MTP layers", "Give the draft's config.")
        first = next(layer for layer in model.layers if layer is not None)
        layers = [replace(first, attention="full", window_tokens=None)] * model.draft_layers
        ranks = options.tensor_parallel
    return [_Placed(layer, last, _page(layer, ranks, kv_dtype, options.block_size)) for layer in layers]


def _buckets(placed: Sequence[_Placed], hybrid_manager: bool) -> list[list[_Placed]]:
    """Layers of the same attention; without the hybrid manager windows are kept in full where some layer is full."""
    if not hybrid_manager and any(p.layer.attention == "full" for p in placed):
        placed = [replace(p, layer=replace(p.layer, attention="full", window_tokens=None)) for p in placed]
    found: dict[tuple[Attention, int | None], list[_Placed]] = {}
    for p in placed:
        found.setdefault((p.layer.attention, p.layer.window_tokens), []).append(p)
    if len(found) > 1 and len({p.page_bytes for p in placed}) > 1:
        fix = "Read num_gpu_blocks from the running engine's vllm:cache_config_info."
        raise InputError("layers", "full and windowed layers with unequal bytes per token are not modelled", fix)
    return list(found.values())


def _groups(buckets: list[list[_Placed]]) -> list[list[_Placed]]:
    """Groups of equal size; every n-th layer goes to the same group so that pipeline stages stay even."""
    if len(buckets) == 1:
        return buckets
    smallest, largest = min(map(len, buckets)), max(map(len, buckets))
    size = largest if largest < smallest * _PADDING_LIMIT else smallest
    groups = []
    for layers in buckets:
        count = -(-len(layers) // size)
        groups += [layers[i::count] for i in range(count)]
    return groups


def _stage_bytes(group: Sequence[_Placed], stages: int) -> tuple[int, ...]:
    return tuple(sum(p.page_bytes for p in group if p.stage == s) for s in range(stages))
