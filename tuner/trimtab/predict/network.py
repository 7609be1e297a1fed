"""The torch part: a small network that gives quantiles of the log of the output length, trained by pinball loss.

Loss: Powell 1986, the prediction counts up to the request's limit. Requests that somebody left are not learned from
(where they would have been cut is not known); `fitted.calibrated` takes them as at least so long. Deterministic by seed
on one machine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.errors import TrimtabError
from trimtab.predict.censored import quantile
from trimtab.predict.samples import Floats, Samples

Tensors = dict[str, Floats]

#: levels that are learned; admission and limits read these and what lies between
LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99)


class TorchMissing(TrimtabError):
    """torch is not installed in this environment."""

    hint = "pip install 'trimtab[predict]', or train where vLLM is installed: it brings torch."
    retry_seconds = None


@dataclass(frozen=True)
class Recipe:
    """Sizes and steps of the training. The defaults: 2,048 buckets tell some thousand words apart, and what is exported
    stays near 120 kB and 0.1 ms a request."""

    buckets: int = 2048
    max_hashes: int = 128
    embedding: int = 8
    hidden: int = 32
    batch: int = 512
    epochs: int = 40
    #: epochs without a better validation loss before it ends
    patience: int = 5
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    dropout: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Learned:
    """tensors: as in the file format. mean, scale: of the dense features. epochs: how many ran."""

    tensors: Tensors
    mean: Floats
    scale: Floats
    epochs: int
    validation_loss: float


def torch_module() -> Any:
    """torch, or TorchMissing."""
    try:
        import torch
    except ImportError as error:
        raise TorchMissing(f"torch cannot be imported ({error})") from error
    return torch


def train(
    learn: Samples, validation: Samples, recipe: Recipe, progress: Callable[[int, float], None] | None = None
) -> Learned:
    """Fit on `learn`, stop by `validation`. progress(epoch, validation loss in log tokens)."""
    torch = torch_module()
    torch.manual_seed(recipe.seed)
    # matrices this small gain nothing by threads, and sums in one order are the same on any number of cores
    torch.set_num_threads(1)
    learn, validation = learn.chosen(~learn.left), validation.chosen(~validation.left)
    mean, scale = learn.dense.mean(axis=0), learn.dense.std(axis=0)
    scale = np.where(scale > 1e-6, scale, 0.0)
    net = _network(torch, learn, recipe)
    optimiser = torch.optim.AdamW(net.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, recipe.epochs, recipe.learning_rate / 20)
    batches, check = _Batches(torch, learn, mean, scale), _Batches(torch, validation, mean, scale)
    rng = np.random.default_rng(recipe.seed)
    best, best_state, since, epoch = float("inf"), copy.deepcopy(net.state_dict()), 0, 0
    for epoch in range(1, recipe.epochs + 1):
        net.train()
        order = rng.permutation(len(learn))
        for start in range(0, len(order), recipe.batch):
            loss = _loss(torch, net, batches, order[start : start + recipe.batch])
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimiser.step()
        schedule.step()
        net.eval()
        with torch.no_grad():
            loss_value = float(_loss(torch, net, check, np.arange(len(validation))))
        if progress is not None:
            progress(epoch, loss_value)
        since += 1
        if loss_value < best - 1e-5:
            best, best_state, since = loss_value, copy.deepcopy(net.state_dict()), 0
        if since >= recipe.patience:
            break
    return Learned(_export(best_state), mean, scale, epoch, best)


class _Batches:
    """Rows of the samples as tensors."""

    def __init__(self, torch: Any, samples: Samples, mean: Floats, scale: Floats) -> None:
        self.torch, self.samples = torch, samples
        inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
        self.dense = torch.from_numpy(((samples.dense - mean) * inverse).astype(np.float32))
        self.log_tokens = torch.from_numpy(np.log(samples.output_tokens).astype(np.float32))
        self.log_cap = torch.from_numpy(np.log(samples.cap_tokens).astype(np.float32))

    def take(self, rows: Any) -> tuple[Any, ...]:
        flat, begins = self.samples.hashes_of(rows)
        index = self.torch.from_numpy(rows)
        bag = self.torch.from_numpy(flat), self.torch.from_numpy(begins)
        return self.dense[index], *bag, self.log_tokens[index], self.log_cap[index]


def _network(torch: Any, learn: Samples, recipe: Recipe) -> Any:
    """Bag of embeddings beside the dense features, one or two hidden layers; starts at the quantiles of all lengths."""
    nn = torch.nn
    width = learn.dense.shape[1] + recipe.embedding
    net = nn.ModuleDict({
        "embedding": nn.EmbeddingBag(recipe.buckets, recipe.embedding, mode="mean"),
        "layers": nn.ModuleList([
            nn.Linear(width, recipe.hidden), nn.Linear(recipe.hidden, recipe.hidden // 2),
            nn.Linear(recipe.hidden // 2, len(LEVELS)),
        ]),
        "dropout": nn.Dropout(recipe.dropout),
    })  # fmt: skip
    with torch.no_grad():
        net["embedding"].weight.normal_(0.0, 0.3)
        net["layers"][-1].weight.mul_(0.1)
        net["layers"][-1].bias.copy_(torch.tensor(_start(learn), dtype=torch.float32))
    return net


def _start(learn: Samples) -> list[float]:
    """Outputs of the last layer for the quantiles of all lengths: who starts above the limits learns nothing."""
    logs, seen = np.log(learn.output_tokens), learn.natural
    levels = [quantile(logs, seen, q) for q in LEVELS]
    known = [float(logs.max()) if v is None else v for v in levels]
    steps = np.maximum(np.diff(known), 1e-2)
    return [known[0], *np.log(np.expm1(steps))]


def _outputs(torch: Any, net: Any, dense: Any, hashes: Any, starts: Any) -> Any:
    """Log quantiles, N x levels, ascending: the same sum as `quantile_model`."""
    x = torch.cat([dense, net["embedding"](hashes, starts)], dim=1)
    *hidden, last = net["layers"]
    for layer in hidden:
        x = net["dropout"](torch.relu(layer(x)))
    x = last(x)
    return torch.cumsum(torch.cat([x[:, :1], torch.nn.functional.softplus(x[:, 1:])], dim=1), dim=1)


def _loss(torch: Any, net: Any, batches: _Batches, index: Any) -> Any:
    dense, hashes, starts, log_tokens, log_cap = batches.take(index)
    predicted = torch.minimum(_outputs(torch, net, dense, hashes, starts), log_cap[:, None])
    missed = log_tokens[:, None] - predicted
    levels = torch.tensor(LEVELS)[None, :]
    return torch.maximum(levels * missed, (levels - 1.0) * missed).mean()


def _export(state: Any) -> Tensors:
    """Names and shapes (rows x columns) of the file format."""
    out = {"embedding": state["embedding.weight"].numpy().astype(np.float64)}
    number = 0
    while f"layers.{number}.weight" in state:
        out[f"weight.{number}"] = state[f"layers.{number}.weight"].numpy().astype(np.float64)
        out[f"bias.{number}"] = state[f"layers.{number}.bias"].numpy().astype(np.float64)[:, None]
        number += 1
    return out
