"""The matrix of exactness on the real small model: a pairwise cover, of which CI runs the cells with whole prompts.

Each prints what it exercised. The user asks for the same words again and again, so that guesses come true, and once for
something else, so that others do not.
"""

from fractions import Fraction

import pytest

from engine.executor.gguf import GgufFile
from services.tokenization.chat import ChatMessage, chat_template_from_gguf
from services.tokenization.tokenizer import tokenizer_from_gguf
from tests.integration.conftest import LoadedModel
from tests.kit.exactness.bench import never
from tests.kit.exactness.cells import PlacedCell, cover
from tests.kit.exactness.conversation import Texts
from tests.kit.exactness.retraction import retracted_at
from tests.kit.exactness.torch_bench import TorchModel

MAX_TOKENS = 8
FIRST = (
    "Repeat this list of words, again and again, and say nothing else: "
    "red, green, blue, white, red, green, blue, white, red, green, blue, white."
)
LATER = ("Once more.", "What is the capital of Italy?", "And again, please.", "Repeat it.")
STRANGER = (
    "The harbour was quiet that morning. Two boats lay at the pier, one of them half painted, and a dog slept on the "
    "warm stones beside them while somebody inside the shed sang an old song out of tune."
)
COVER = cover(3)
"""Retraction has 4 levels: never, after a turn's first step, in the middle, after its last one."""

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(smollm2: LoadedModel) -> TorchModel:
    return TorchModel(smollm2.config, smollm2.decoder)


@pytest.fixture(scope="module")
def texts(smollm2_file: GgufFile) -> Texts:
    tokenizer = tokenizer_from_gguf(smollm2_file)
    template = chat_template_from_gguf(smollm2_file, tokenizer)
    assert template is not None
    first = template.first_turn_ids([ChatMessage("user", FIRST)])
    later = (template.append_turn_ids([ChatMessage("user", text)], first[-1]) for text in LATER)
    said = (tuple(first), *map(tuple, later))
    assert len(first) > 64, "the first prompt is longer than the largest page and the largest chunk"
    return Texts(said, tuple(tokenizer.encode_text(STRANGER)), MAX_TOKENS)


def _marked(placed: PlacedCell) -> pytest.MarkDecorator:
    return pytest.mark.exact if placed.cell.chunk_tokens is None else pytest.mark.exact_full


@pytest.mark.parametrize("placed", [pytest.param(placed, marks=_marked(placed), id=str(placed)) for placed in COVER])
def test_cell_of_the_cover_when_run_then_the_ids_are_those_of_cold_runs(
    model: TorchModel, texts: Texts, placed: PlacedCell
) -> None:
    bench, cell = model.bench(texts), placed.cell
    tally = bench.run(cell, never)
    if placed.place is not None:
        # Where another turn takes the pool, its long prompt has to be computed: once per chunk size is enough.
        is_intruded = placed.place == Fraction(1, 2) and cell.chunk_tokens == 64
        tally = retracted_at(bench, cell, tally, placed.place, 1 if is_intruded else None)
    print(f"\n{placed}: {tally}; {model.num_cold_runs} cold runs so far")  # noqa: T201
