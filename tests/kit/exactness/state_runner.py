"""A runner that keeps what states its rows start from and leave, and spoils what a failed forward was to write."""

from collections import defaultdict

import torch

from engine.executor.batch import Batch, Int64Array, PoolGeometry
from engine.executor.decoder import Decoder
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner, Tamper


class StateRunner(ModelRunner):
    """To be looked at while no forward runs."""

    def __init__(self, config: ModelConfig, decoder: Decoder, pool: PoolGeometry) -> None:
        super().__init__(config, decoder, pool)
        self.started: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        """Tokens behind which rows started → the state of all layers that each of them found there."""
        self.left: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        """Tokens behind which rows stopped → the state that each of them left."""

    def forward(self, batch: Batch, logit_idx: Int64Array, tamper: Tamper | None = None) -> torch.Tensor:
        states = batch.states
        assert states is not None, f"step {batch.step}: no states"
        starts, stops = batch.positions[batch.qo_indptr[:-1]], batch.positions[batch.qo_indptr[1:] - 1] + 1
        for length, slot in zip(starts.tolist(), states.read.tolist(), strict=True):
            self.started[length].append(self._state(slot))
        has_ended = False
        try:
            logits = super().forward(batch, logit_idx, tamper)
            has_ended = True
        finally:
            if not has_ended:
                for pool in (*self.states.conv, *self.states.ssm):
                    pool[torch.from_numpy(states.write)] = float("nan")
        for length, slot in zip(stops.tolist(), states.write.tolist(), strict=True):
            self.left[length].append(self._state(slot))
        return logits

    def _state(self, slot: int) -> torch.Tensor:
        return torch.cat([pool[slot].flatten() for pool in (*self.states.conv, *self.states.ssm)])
