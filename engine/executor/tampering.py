"""What is done to a forward, in the middle of it, that is to go wrong on purpose."""

import torch

from engine.executor.device_faults import ForwardDrill, ForwardFault
from engine.executor.model_runner import Tamper


class ForwardBroken(Exception):
    """What a forward raises that is to raise on purpose."""


def tamper_of(drill: ForwardDrill) -> Tamper | None:
    """What is done to the hidden states of a forward, in the middle of it; None where nothing is."""
    return {ForwardFault.NAN: _to_nan, ForwardFault.RAISE: _raise, ForwardFault.DIE: _die}.get(drill.fault)


def _to_nan(hidden: torch.Tensor) -> torch.Tensor:
    return torch.full_like(hidden, float("nan"))


def _raise(_hidden: torch.Tensor) -> torch.Tensor:
    raise ForwardBroken("planted: this forward was to raise")


def _die(_hidden: torch.Tensor) -> torch.Tensor:
    raise SystemExit("planted: the executor's thread was to die")
