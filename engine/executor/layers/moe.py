"""Mixtures of experts: each token passes the few feed-forward layers that a router picks for it.

Which batch a token is in changes none of its bits: it is routed by its own row, an expert computes rows one by one (see
`engine.executor.linear`), and what comes of a token's experts is added in the order of their numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from engine.executor.decoder import StepContext
from engine.executor.layers.feed_forward import Gate
from engine.executor.linear import Linear, pad_rows
from engine.executor.model_config import UnsupportedModelError
from engine.executor.norm import silu_and_mul
from engine.executor.tensors import Tensors

Scoring = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""Router logits [n, num_experts] and how many to pick → weights and numbers of the experts of each token, [n, top_k].

Where logits are equal, which one is picked is torch.topk's choice, by the row alone."""
ExpertNames = tuple[str, str, str]
"""What files call gate, up and down of an expert."""


def softmax_of_picked(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The softmax of the highest logits alone."""
    highest, picked = logits.topk(top_k, dim=-1)
    return highest.softmax(-1), picked


def share_of_all(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the softmax over all experts the highest: the weights of a token sum up to less than 1."""
    return logits.softmax(-1).topk(top_k, dim=-1)


def share_of_picked(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`share_of_all`, made to sum up to 1."""
    weights, picked = share_of_all(logits, top_k)
    return weights / weights.sum(-1, keepdim=True), picked


@dataclass(frozen=True, slots=True)
class Expert:
    """down(gate(gate_up(x)))"""

    gate_up: Linear
    """Rows of gate, then up."""
    down: Linear
    gate: Gate = silu_and_mul

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] → [n, hidden_size]; n a multiple of 8."""
        return self.down(self.gate(self.gate_up(x)))


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """What a mixture is like."""

    num_experts: int
    top_k: int
    """Experts that a token passes."""
    size: int
    """Of an expert's inner layer."""
    score: Scoring

    def __post_init__(self) -> None:
        if self.top_k > self.num_experts:
            raise UnsupportedModelError(f"a token passes {self.top_k} experts, of which there are {self.num_experts}")


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """A layer with its weights. No row but the step's tokens reaches an expert."""

    spec: MoeSpec
    router: Linear
    experts: tuple[Expert, ...]

    def __call__(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        weights, picked = self.spec.score(self.router(x)[: step.num_tokens], self.spec.top_k)
        mixed = torch.zeros_like(x)
        for expert, tokens, token_weights in self._dealt(weights, picked):
            rows = self.experts[expert](pad_rows(x.index_select(0, tokens)))[: len(tokens)]
            mixed.index_add_(0, tokens, rows * token_weights.unsqueeze(1))
        return mixed

    def _dealt(self, weights: torch.Tensor, picked: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Each expert that has tokens, by number: which they are, rising, and their weights."""
        numbers = picked.flatten()
        order = numbers.argsort(stable=True)
        counts = numbers.bincount(minlength=self.spec.num_experts).tolist()
        parts = zip((order // self.spec.top_k).split(counts), weights.flatten()[order].split(counts), strict=True)
        for expert, (tokens, token_weights) in enumerate(parts):
            if len(tokens):
                yield expert, tokens, token_weights


def take_moe(
    tensors: Tensors,
    prefix: str,
    hidden_size: int,
    spec: MoeSpec,
    names: ExpertNames = ("gate_proj", "up_proj", "down_proj"),
) -> MixtureOfExperts:
    """The mixture of SiLU gates whose tensors begin with `prefix`, as in `model.layers.0.mlp`.

    Its experts are tensors of their own, as files mostly have them, or lie in one for all, as transformers can save.
    """
    router = Linear(tensors.take(f"{prefix}.gate.weight", spec.num_experts, hidden_size))
    if f"{prefix}.experts.gate_up_proj" in tensors:
        pairs = _take_fused(tensors, f"{prefix}.experts", hidden_size, spec)
    else:
        pairs = _take_each(tensors, f"{prefix}.experts", hidden_size, spec, names)
    experts = tuple(Expert(Linear(gate_up), Linear(down)) for gate_up, down in pairs)
    return MixtureOfExperts(spec, router, experts)


def _take_fused(
    tensors: Tensors, prefix: str, hidden_size: int, spec: MoeSpec
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    gate_up = tensors.take(f"{prefix}.gate_up_proj", spec.num_experts, 2 * spec.size, hidden_size)
    down = tensors.take(f"{prefix}.down_proj", spec.num_experts, hidden_size, spec.size)
    return zip(gate_up, down, strict=True)


def _take_each(
    tensors: Tensors, prefix: str, hidden_size: int, spec: MoeSpec, names: ExpertNames
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    *gate_up_names, down_name = names
    for expert in range(spec.num_experts):
        gate_up = [tensors.take(f"{prefix}.{expert}.{name}.weight", spec.size, hidden_size) for name in gate_up_names]
        yield torch.cat(gate_up), tensors.take(f"{prefix}.{expert}.{down_name}.weight", hidden_size, spec.size)
