"""Gemma 3 270M through the core and the executor: prompts around its window and a session that crosses it.

Ids and log-probabilities are held against transformers, in float32 over the same weights, and against the references
that came with them. What windows take is counted by books of their own.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.core.commands import Close, Open, Submit
from engine.core.config import CoreConfig
from engine.core.ids import Rid, SessionId, TurnId, pack_ids, pages_for
from engine.executor.batch import Batch, Int64Array, PoolGeometry
from engine.executor.decoder import Decoder
from engine.executor.gguf import open_gguf
from engine.executor.gguf_tensors import gguf_tensors
from engine.executor.model_config import ModelConfig
from engine.executor.model_runner import ModelRunner, Tamper
from engine.executor.torch_executor import TorchExecutor
from tests.kit.exactness.booked_backend import BookedBackend
from tests.kit.exactness.driver import Driver, TurnRun
from tests.kit.gemma import Item, gemma_files, needs_gemma, read_gemma, reference_items

CONFIG = {
    "vocab_size": 262144,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 3,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "tie_word_embeddings": True,
}
"""What transformers reads from the model's file."""
WINDOW = 512
LENGTHS = (100, 511, 512, 513, 600, 1500)
PAGE_SIZE = 16
CHUNK = 256
MAX_TOKENS = 16
NEW_LENS = (300, 150, 150, 150)
"""Of the session's turns: with their answers it crosses the window in the third one."""
SAFE_MARGIN = 1e-3
"""Where the two best logits are closer than this, either is right."""
LOGPROB_TOLERANCE = 1e-3

ITEMS = {item.name: item for item in reference_items() if len(item.prompt_ids) > WINDOW}
TEXT = ITEMS["copy_period_gt_window"].history

pytestmark = [pytest.mark.exact, needs_gemma, pytest.mark.usefixtures("one_thread")]


class LogitRunner(ModelRunner):
    """Keeps the logits that the id behind each position was chosen from. One turn at a time."""

    def __init__(self, config: ModelConfig, decoder: Decoder, pool: PoolGeometry) -> None:
        super().__init__(config, decoder, pool)
        self.behind: dict[int, torch.Tensor] = {}

    def forward(self, batch: Batch, logit_idx: Int64Array, tamper: Tamper | None = None) -> torch.Tensor:
        logits = super().forward(batch, logit_idx, tamper)
        assert batch.num_rows == 1
        assert np.array_equal(logit_idx, batch.sample_idx)
        self.behind.update(zip(batch.positions[logit_idx].tolist(), logits.clone(), strict=True))
        return logits


@dataclass(frozen=True, slots=True)
class Told:
    """One turn: all before its answer, the answer, and what each of its ids was chosen from."""

    prompt: list[int]
    output: list[int]
    logits: torch.Tensor
    """[num outputs, vocab_size]"""
    swa_pages: int
    """Of its own, at most."""
    tokens_from_slot: int


@dataclass(frozen=True, slots=True)
class Rig:
    driver: Driver
    device: BookedBackend
    runner: LogitRunner
    rids: Iterator[int]

    def turn(
        self, history: Sequence[int], new: Sequence[int], session: str | None = None, max_tokens: int = MAX_TOKENS
    ) -> Told:
        rid = Rid(next(self.rids))
        command = Submit(
            rid=rid,
            turn_id=TurnId(f"t{rid}"),
            input_ids=pack_ids(new),
            session_id=None if session is None else SessionId(session),
            max_tokens=max_tokens,
            ignore_eos=True,
        )
        self.runner.behind.clear()
        prompt = [*history, *new]
        run = TurnRun(command, tuple(prompt))
        self.driver.submit(run)
        self.driver.settle()
        assert run.ended is not None
        logits = torch.stack([self.runner.behind[len(prompt) - 1 + place] for place in range(max_tokens)])
        from_slot = run.ended.usage.tokens_from_slot
        return Told(prompt, run.output, logits, self.device.most_of_request(rid), from_slot)


@dataclass(frozen=True, slots=True)
class Gemma:
    config: ModelConfig
    decoder: Decoder
    reference: Any
    """As transformers has it."""

    @contextmanager
    def engine(self, *, in_flight_max: int = 1) -> Iterator[Rig]:
        num_pages = pages_for(2048, PAGE_SIZE) + 1
        config = CoreConfig(
            page_size=PAGE_SIZE,
            pool_pages=num_pages,
            num_rows=3,
            context_len=2048,
            vocab_size=self.config.vocab_size,
            chunk_tokens=CHUNK,
            in_flight_max=in_flight_max,
            window=self.config.window,
            swa_pages=num_pages,
        )
        runner = LogitRunner(self.config, self.decoder, PoolGeometry(PAGE_SIZE, num_pages, 3, num_pages))
        with closing(BookedBackend(TorchExecutor(runner, threads=1), config)) as device:
            yield Rig(Driver(config, device), device, runner, count(1))

    def expected_logits(self, history: Sequence[int], places: Sequence[int]) -> torch.Tensor:
        """What transformers computes behind each of these places of a text, in one forward without a cache."""
        with torch.no_grad():
            hidden = self.reference.model(torch.tensor([list(history)]), use_cache=False).last_hidden_state[0]
            logits: torch.Tensor = self.reference.lm_head(hidden[list(places)])
        return logits


@pytest.fixture(scope="module")
def gemma() -> Gemma:
    first, *rest = gemma_files()
    tensors = gguf_tensors(open_gguf(first, rest))
    config = AutoConfig.for_model("gemma3_text", **CONFIG)
    reference = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    weights = {
        name: tensors.take(name, *tensor.shape)
        for name, tensor in reference.state_dict().items()
        if name != "lm_head.weight"
    }
    missing, unexpected = reference.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), "which is tied to the embedding"
    return Gemma(*read_gemma(), reference)


def require_equal(told: Told, expected: torch.Tensor) -> None:
    """Ids as the rule for them says, and the log-probability of every one. `expected`: as `told.logits`."""
    best, second = expected.topk(2).values.T
    is_safe = best - second >= SAFE_MARGIN
    assert is_safe.sum() > len(told.output) // 2
    output = torch.tensor(told.output)
    assert output[is_safe].tolist() == expected.argmax(-1)[is_safe].tolist()
    off = (logprobs(told.logits, told.output) - logprobs(expected, told.output)).abs().max()
    print(f"\n{len(told.prompt)} tokens: worst log-probability off by {off:.1e}")  # noqa: T201
    assert off < LOGPROB_TOLERANCE


def logprobs(logits: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
    return logits.log_softmax(-1).gather(-1, torch.tensor(token_ids).unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize(
    "length",
    [pytest.param(each, marks=() if each in (511, 513, 600) else pytest.mark.exact_full) for each in LENGTHS],
)
def test_prompt_when_it_ends_near_the_window_then_ids_and_logprobs_are_those_of_transformers(
    gemma: Gemma, length: int
) -> None:
    with gemma.engine() as rig:
        told = rig.turn((), TEXT[:length])
    history = [*told.prompt, *told.output[:-1]]
    require_equal(told, gemma.expected_logits(history, range(length - 1, len(history))))
    most = rig.device.most_in_use  # with what it has locked in the cache
    assert told.swa_pages <= most <= pages_for(WINDOW + CHUNK + PAGE_SIZE, PAGE_SIZE)
    assert length < 1500 or most >= pages_for(WINDOW + CHUNK - PAGE_SIZE, PAGE_SIZE)


@pytest.mark.parametrize("in_flight_max", [pytest.param(1, marks=pytest.mark.exact_full), 2])
def test_session_when_it_crosses_the_window_then_ids_and_logprobs_are_those_of_transformers(
    gemma: Gemma, in_flight_max: int
) -> None:
    history: list[int] = []
    turns: list[Told] = []
    said = iter(TEXT)
    with gemma.engine(in_flight_max=in_flight_max) as rig:
        rig.driver.apply(Open(SessionId("s"), streaming=True))
        for new_len in NEW_LENS:
            turns.append(rig.turn(history, [next(said) for _ in range(new_len)], "s"))
            history = [*turns[-1].prompt, *turns[-1].output]
        rig.driver.apply(Close(SessionId("s")))
        rig.driver.settle()
        rig.driver.assert_empty()
    assert len(turns[1].prompt) + MAX_TOKENS < WINDOW < len(turns[2].prompt)
    places = [len(told.prompt) - 1 + place for told in turns for place in range(MAX_TOKENS)]
    expected = gemma.expected_logits(history, places).split(MAX_TOKENS)
    for before, told, logits in zip([None, *turns], turns, expected, strict=False):
        require_equal(told, logits)
        had = 0 if before is None else len(before.prompt) + MAX_TOKENS - 1
        assert told.tokens_from_slot == had
        windows = WINDOW if before is None else 2 * WINDOW
        assert told.swa_pages <= pages_for(windows + in_flight_max * CHUNK + 2 * PAGE_SIZE, PAGE_SIZE)
    with gemma.engine() as rig:
        cold = rig.turn((), turns[-1].prompt)
    assert torch.equal(cold.logits, turns[-1].logits), "and those of a cold run bit for bit"


@pytest.mark.exact_full
@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_prompt_when_it_is_the_references_then_its_ids_follow_with_their_logprobs(gemma: Gemma, item: Item) -> None:
    assert min(item.margin) >= SAFE_MARGIN, "no id is set aside"
    with gemma.engine() as rig:
        told = rig.turn((), item.prompt_ids, max_tokens=len(item.output_ids))
    assert told.output == item.output_ids
    off = (logprobs(told.logits, told.output) - torch.tensor(item.logprob)).abs().max()
    print(f"\n{item.name}: worst log-probability off by {off:.1e}")  # noqa: T201
    assert off < LOGPROB_TOLERANCE
