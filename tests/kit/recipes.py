"""Tiny models of every family with random weights, made by transformers, and what transformers computes with them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

RECIPES_FILE = Path(__file__).parent.parent / "integration" / "data" / "tiny_recipes.json"
NOISE = 0.1
TOLERANCE = 1e-4
"""Of the standard deviation of the logits."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A model of transformers in float32, and the directory that it was saved to."""

    model: Any
    directory: Path


def recipe_names() -> tuple[str, ...]:
    return tuple(_recipes()["models"])


def recipe_config(name: str) -> dict[str, Any]:
    """The keys of the configuration, `model_type` included. A copy."""
    return dict(_recipes()["models"][name]["config"])


def recipe_prompt() -> list[int]:
    """40 token ids."""
    return list(_recipes()["meta"]["prompt"])


def save_recipe(name: str, directory: Path, changed: Mapping[str, object] | None = None) -> Saved:
    """Makes the model anew, with `changed` in its configuration, and saves it as a user would find it.

    Transformers begins with biases of 0 and norms of 1, which would hide that they are left out: these are shaken.
    """
    transformers_logging.disable_progress_bar()
    held = {**recipe_config(name), **(changed or {})}
    config = AutoConfig.for_model(held.pop("model_type"), **held)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += NOISE * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return Saved(model, directory)


def reference_logits(saved: Saved, token_ids: Sequence[int]) -> torch.Tensor:
    """Of every token, [n, vocab_size]: one forward without a cache."""
    with torch.no_grad():
        logits: torch.Tensor = saved.model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
    return logits


def reference_ids(saved: Saved, token_ids: Sequence[int], num_new: int) -> list[int]:
    """Greedy, without a cache: the whole sequence anew for each token."""
    ids = list(token_ids)
    for _ in range(num_new):
        ids.append(int(reference_logits(saved, ids)[-1].argmax()))
    return ids[len(token_ids) :]


def _recipes() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(RECIPES_FILE.read_text(encoding="utf-8"))
    return loaded
