"""SmolLM2 against outputs that another implementation computed from the same weights (see `meta` in the file)."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from engine.executor.batch import PoolGeometry, build_batch
from engine.executor.gguf import GgufFile
from engine.executor.model_runner import ModelRunner
from services.tokenization.chat import ChatMessage, ChatTemplate, chat_template_from_gguf
from services.tokenization.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.integration.conftest import LoadedModel
from tests.kit.paged_sequence import PagedSequence, make_plan

POOL = PoolGeometry(page_size=16, pool_pages=64, num_rows=4)
SAFE_MARGIN = 0.01
"""Where the reference's two best logits are closer than this, its second id is as good as its first."""
FLIPS_MAX = 3
LOGPROB_TOLERANCE = 1e-3

pytestmark = pytest.mark.exact


@pytest.fixture(scope="module")
def tokenizer(smollm2_file: GgufFile) -> Tokenizer:
    return tokenizer_from_gguf(smollm2_file)


@pytest.fixture(scope="module")
def template(smollm2_file: GgufFile, tokenizer: Tokenizer) -> ChatTemplate:
    template = chat_template_from_gguf(smollm2_file, tokenizer)
    assert template is not None
    return template


@dataclass(slots=True)
class Tally:
    """What a forced run saw: all steps, those too close to call, and those of them that took the second id."""

    compared: int = 0
    skipped: int = 0
    flipped: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One position at which the reference chose a token."""

    token_idx: int
    output_id: int
    second_id: int
    margin: float
    logprob: float


def test_model_file_when_hashed_then_is_the_one_the_references_were_made_from(
    smollm2_file: GgufFile, references: dict[str, Any]
) -> None:
    digest = hashlib.sha256(smollm2_file.path.read_bytes()).hexdigest()
    assert digest == references["meta"]["gguf_sha256"]


def test_prompt_ids_when_encoded_here_then_equal_the_references(
    tokenizer: Tokenizer, template: ChatTemplate, references: dict[str, Any]
) -> None:
    kinds = set()
    for single in references["single"]:
        kinds.add(single["kind"])
        if single["kind"] == "raw":
            assert [*tokenizer.prompt_prefix_ids, *tokenizer.encode_text(single["prompt"])] == single["prompt_ids"]
        else:
            assert template.first_turn_ids([ChatMessage("user", single["prompt"])]) == single["prompt_ids"]
    assert kinds == {"raw", "chat"}


def test_append_ids_when_encoded_here_then_equal_the_references(
    template: ChatTemplate, references: dict[str, Any]
) -> None:
    after = {"stop": 0, "length": 0}
    for chat in references["chats"]:
        first, *later = chat["turns"]
        assert template.first_turn_ids([ChatMessage("user", first["user"])]) == first["append_ids"]
        for before, turn in zip(chat["turns"], later, strict=False):
            after[before["finish"]] += 1
            appended = template.append_turn_ids([ChatMessage("user", turn["user"])], before["output_ids"][-1])
            assert appended == turn["append_ids"]
    assert min(after.values()) > 0, "both cases must occur: after a stop the closing token is in the history already"


@pytest.mark.usefixtures("one_thread")
def test_forced_decoding_when_histories_are_the_references_then_the_argmax_is_theirs(
    smollm2: LoadedModel, references: dict[str, Any]
) -> None:
    tally = Tally()
    for history, steps in (*_singles(references), *_chats(references)):
        logits = _forced_logits(smollm2, history, [step.token_idx for step in steps])
        for row, step in zip(logits, steps, strict=True):
            _compare(row, step, tally)
    print(f"compared {tally.compared}, skipped {tally.skipped}, flipped {tally.flipped}")  # noqa: T201
    assert tally.flipped <= FLIPS_MAX
    assert tally.compared - tally.skipped > 1000


@pytest.mark.usefixtures("one_thread")
def test_decoding_when_done_one_by_one_then_the_logits_are_those_of_one_prefill_bit_for_bit(
    smollm2: LoadedModel, references: dict[str, Any]
) -> None:
    single = references["single"][0]
    history = single["prompt_ids"] + single["output_ids"][:-1]
    expected = _forced_logits(smollm2, history, list(range(len(history))))
    runner = ModelRunner(smollm2.config, smollm2.decoder, POOL)
    sequence = PagedSequence(1, range(1, 10))
    for position, token_id in enumerate(history):
        batch = build_batch(make_plan(position + 1, POOL.page_size, [sequence.chunk([token_id])]), POOL)
        assert torch.equal(runner.forward(batch, batch.sample_idx)[0], expected[position])


def _compare(logits: torch.Tensor, step: Step, tally: Tally) -> None:
    chosen = int(logits.argmax())
    tally.compared += 1
    if step.margin < SAFE_MARGIN:
        tally.skipped += 1
        tally.flipped += chosen != step.output_id
        assert chosen in (step.output_id, step.second_id)
    else:
        assert chosen == step.output_id, f"margin {step.margin}"
    logprob = float(logits.log_softmax(-1)[step.output_id])
    assert abs(logprob - step.logprob) < LOGPROB_TOLERANCE


def _singles(references: dict[str, Any]) -> list[tuple[list[int], list[Step]]]:
    forced = []
    for single in references["single"]:
        history: list[int] = []
        steps = _extend(history, single["prompt_ids"], single)
        forced.append((history, steps))
    return forced


def _chats(references: dict[str, Any]) -> list[tuple[list[int], list[Step]]]:
    forced = []
    for chat in references["chats"]:
        history: list[int] = []
        steps: list[Step] = []
        for turn in chat["turns"]:
            steps += _extend(history, turn["append_ids"], turn)
        forced.append((history, steps))
    return forced


def _extend(history: list[int], append_ids: list[int], turn: dict[str, Any]) -> list[Step]:
    """Adds a turn's input and output to `history`; a step sits on the token before the one it chooses."""
    history += append_ids
    first = len(history) - 1
    history += turn["output_ids"]
    told = zip(turn["output_ids"], turn["second_id"], turn["margin"], turn["logprob"], strict=True)
    return [Step(first + offset, *values) for offset, values in enumerate(told)]


def _forced_logits(model: LoadedModel, history: list[int], token_idx: list[int]) -> torch.Tensor:
    """Logits at `token_idx` of one prefill of the whole history."""
    runner = ModelRunner(model.config, model.decoder, POOL)
    row = PagedSequence(1, range(1, POOL.pool_pages)).chunk(history)
    batch = build_batch(make_plan(1, POOL.page_size, [row]), POOL)
    return runner.forward(batch, np.array(token_idx))
