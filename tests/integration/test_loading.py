"""A model file becomes an executor."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.core.plan import StepOutcome, StepResult
from engine.executor.batch import PoolGeometry
from engine.executor.kv_storage import KvStorage, kv_bytes_per_token
from engine.executor.layers.attention import rotary_tables
from engine.executor.loading import LoadedExecutor, load_executor, open_model
from engine.executor.memory import FreeMemory, cuda_memory
from engine.executor.model_config import UnsupportedModelError
from engine.executor.pool_size import NoRoomError, PoolPolicy, PoolTooLargeError
from engine.executor.rope import BLOCK_POSITIONS
from engine.executor.tensors import Progress
from engine.executor.torch_executor import TorchExecutor
from services.config import ServeConfig
from services.loading import LOAD_ERRORS, load_model
from tests.kit.gguf_files import Value, write_gguf
from tests.kit.gguf_llama import gguf_llama_tensors
from tests.kit.model_rig import read_model
from tests.kit.paged_sequence import PagedSequence, make_plan
from tests.kit.recipes import save_recipe
from tests.kit.tiny_llama import (
    FFN_SIZE,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
    RMS_EPS,
    random_tensors,
    tiny_llama_config,
    tiny_llama_decoder,
    tiny_llama_executor,
    tiny_llama_shapes,
)

CONFIG = tiny_llama_config()
METADATA: dict[str, Value] = {
    "general.architecture": CONFIG.arch,
    "general.name": CONFIG.name,
    "llama.block_count": NUM_LAYERS,
    "llama.context_length": CONFIG.context_len,
    "llama.embedding_length": CONFIG.hidden_size,
    "llama.feed_forward_length": FFN_SIZE,
    "llama.attention.head_count": NUM_HEADS,
    "llama.attention.head_count_kv": NUM_KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": RMS_EPS,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def tensors() -> dict[str, NDArray[np.float32]]:
    held = random_tensors(tiny_llama_shapes(CONFIG.vocab_size), seed=0)
    return gguf_llama_tensors(held, num_heads=NUM_HEADS, num_kv_heads=NUM_KV_HEADS)


def weight_bytes(held: Mapping[str, NDArray[np.float32]]) -> int:
    return sum(array.nbytes for array in held.values())


POLICY = PoolPolicy(page_size=4, pool_tokens=60, memory_fraction=0.5, running_max=2, num_rows=2, context_len=30)


def roomy() -> FreeMemory:
    return FreeMemory(2**30, 2**30, 0, "machine")


def load(
    tmp_path: Path, held: Mapping[str, NDArray[np.float32]], progress: Progress, name: str | None = None
) -> TorchExecutor:
    return load_sized(tmp_path, held, POLICY, roomy, progress, name).executor


def load_sized(
    tmp_path: Path,
    held: Mapping[str, NDArray[np.float32]],
    pool: PoolPolicy,
    measure: Callable[[], FreeMemory],
    progress: Progress,
    name: str | None = None,
) -> LoadedExecutor:
    path = write_gguf(tmp_path / "tiny.gguf", METADATA, held)
    return load_executor(path, pool=pool, num_rows=4, threads=1, progress=progress, name=name, measure=measure)


def ignore(_fraction: float, _text: str) -> None: ...


async def answer(executor: TorchExecutor) -> StepOutcome:
    return await executor.submit(make_plan(1, 4, [PagedSequence(1, [1, 2]).chunk([5, 6, 7, 8, 9])]))


async def test_load_when_the_file_holds_known_weights_then_computes_what_they_compute(tmp_path: Path) -> None:
    loaded = load(tmp_path, tensors(), ignore)
    built = tiny_llama_executor(page_size=4, pool_pages=16, num_rows=4)
    try:
        outcome = await answer(loaded)
        assert isinstance(outcome, StepResult)
        assert outcome == await answer(built)
        assert loaded.capabilities == built.capabilities
        assert loaded.model_config.vocab_size == CONFIG.vocab_size
    finally:
        loaded.close()
        built.close()


async def test_load_when_running_then_progress_rises_from_nothing_to_all(tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    load(tmp_path, tensors(), lambda fraction, text: told.append((fraction, text))).close()
    fractions = [fraction for fraction, _ in told]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert len(told) >= NUM_LAYERS
    assert all(text for _, text in told)


def test_load_when_given_a_name_then_shows_it_in_place_of_the_files_own(tmp_path: Path) -> None:
    for name, shown in ((None, "tiny-llama"), ("Given", "Given")):
        executor = load(tmp_path, tensors(), ignore, name)
        executor.close()
        assert executor.capabilities.name == f"{shown}, cpu torch float32"


def test_load_when_the_pool_is_to_be_sized_then_measured_once_the_weights_are_there_and_made_of_that(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    measured_after: list[str] = []
    page_bytes = 4 * kv_bytes_per_token(CONFIG)
    left_bytes = iter((weight_bytes(tensors()), 2 * 10 * page_bytes))

    def measure() -> FreeMemory:
        measured_after.append(told[-1])
        return FreeMemory(2**30, 2**30, 2**30 - next(left_bytes), "machine")

    policy = replace(POLICY, pool_tokens=None)
    loaded = load_sized(tmp_path, tensors(), policy, measure, lambda _fraction, text: told.append(text))
    loaded.executor.close()
    assert measured_after == ["reading tiny.gguf", "weights loaded"]
    assert told[-1] == "writing the KV pool, 20.0 KiB"
    assert loaded.executor.capabilities.pool_pages == 10
    assert [note.partition(" (")[0] for note in loaded.notes] == ["KV pool: 36 tokens"]


def test_load_when_the_pool_is_smaller_than_the_context_then_said(tmp_path: Path) -> None:
    loaded = load_sized(tmp_path, tensors(), replace(POLICY, context_len=64), roomy, ignore)
    loaded.executor.close()
    assert len(loaded.notes) == 2
    assert loaded.notes[1].startswith("the KV pool of 60 tokens is smaller than the context of 64: ")


@pytest.mark.parametrize(("pool_tokens", "error"), [(60, PoolTooLargeError), (None, NoRoomError)])
def test_load_when_there_is_no_room_for_the_pool_then_a_typed_refusal(
    tmp_path: Path, pool_tokens: int | None, error: type[Exception]
) -> None:
    left_bytes = iter((2**20, 100))
    policy = replace(POLICY, pool_tokens=pool_tokens)
    with pytest.raises(error, match=r"of the 100 bytes free \(machine"):
        load_sized(tmp_path, tensors(), policy, lambda: FreeMemory(2**20, next(left_bytes), 0, "machine"), ignore)
    assert issubclass(error, LOAD_ERRORS)


def test_load_when_there_is_no_room_for_the_weights_then_refused_before_they_are_read(tmp_path: Path) -> None:
    told: list[str] = []
    free = FreeMemory(2**30, weight_bytes(tensors()) - 1, 0, "machine")
    with pytest.raises(NoRoomError, match="its weights alone need"):
        load_sized(tmp_path, tensors(), POLICY, lambda: free, lambda _fraction, text: told.append(text))
    assert told == ["reading tiny.gguf"]


@pytest.mark.parametrize("has_tied_embeddings", [False, True])
def test_weight_bytes_when_the_file_is_opened_then_what_the_tensors_take(
    tmp_path: Path, has_tied_embeddings: bool
) -> None:
    held = {name: array for name, array in tensors().items() if name != "output.weight" or not has_tied_embeddings}
    source = open_model(write_gguf(tmp_path / "tiny.gguf", METADATA, held))
    assert source.weight_bytes == weight_bytes(held)
    embedding_bytes = CONFIG.vocab_size * CONFIG.hidden_size * 4
    assert weight_bytes(held) == weight_bytes(tensors()) - has_tied_embeddings * embedding_bytes


def test_bytes_per_token_when_computed_then_what_the_tensors_take() -> None:
    storage = KvStorage(CONFIG, PoolGeometry(page_size=4, pool_pages=10, num_rows=2))
    real_bytes = sum(pool.nbytes for layer in range(NUM_LAYERS) for pool in storage.head_rows(layer))
    assert 40 * kv_bytes_per_token(CONFIG) == storage.num_bytes == real_bytes


def test_pool_when_the_system_has_not_so_much_then_a_memory_error() -> None:
    with pytest.raises(MemoryError, match=r"gives no [\d,]+ bytes for the KV pool"):
        KvStorage(CONFIG, PoolGeometry(page_size=4, pool_pages=2**44, num_rows=2))


RESIDENT = """
import re
from pathlib import Path
from engine.executor.batch import PoolGeometry
from engine.executor.kv_storage import KvStorage
from tests.kit.tiny_llama import tiny_llama_config

def resident_kib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

config, pool = tiny_llama_config(), PoolGeometry(page_size=16, pool_pages=2**14, num_rows=2)
KvStorage(config, PoolGeometry(page_size=16, pool_pages=2, num_rows=2))
before_kib = resident_kib()
storage = KvStorage(config, pool)
print(resident_kib() - before_kib, storage.num_bytes // 1024)
"""


def test_pool_when_made_then_all_of_it_is_resident() -> None:
    """What is promised is there: a limit shows at start, and not in the middle of some later turn."""
    done = subprocess.run((sys.executable, "-c", RESIDENT), capture_output=True, text=True, timeout=120, check=True)
    grown_kib, pool_kib = map(int, done.stdout.split())
    assert pool_kib == 128 * 1024
    assert grown_kib >= 0.98 * pool_kib


def test_cuda_memory_when_the_driver_tells_two_numbers_then_free_and_total(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device is asked here: the numbers are given."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 + device, 80))
    assert cuda_memory(1) == FreeMemory(80, 80, 49, "device cuda:1")
    assert cuda_memory(1).available_bytes == 31


def test_load_model_when_it_is_the_embedded_one_then_shows_the_name_that_people_know() -> None:
    loaded = load_model(ServeConfig(page_size=4, pool_tokens=64, rows=3), ignore)
    loaded.executor.close()
    assert loaded.executor.capabilities.pool_pages == 17
    assert len(loaded.notes) == 2
    assert "46,080 bytes a token" in loaded.notes[0]
    assert loaded.executor.capabilities.name == "SmolLM2-135M-Instruct, cpu torch float32"
    assert loaded.template is not None
    assert loaded.eos_ids == (2,)


def test_load_when_a_tensor_is_missing_then_names_it(tmp_path: Path) -> None:
    held = tensors()
    del held["blk.1.ffn_down.weight"]
    with pytest.raises(UnsupportedModelError, match=r"tensor blk\.1\.ffn_down\.weight is missing"):
        load(tmp_path, held, ignore)


def test_load_when_the_vocabulary_is_missing_then_names_the_tensor_that_tells_it(tmp_path: Path) -> None:
    held = tensors()
    del held["token_embd.weight"]
    with pytest.raises(UnsupportedModelError, match=r"tiny\.gguf: tensor token_embd\.weight is missing"):
        load(tmp_path, held, ignore)


def test_load_when_a_tensor_is_unknown_then_names_it(tmp_path: Path) -> None:
    held = {**tensors(), "blk.0.attn_q.bias": np.zeros(64, np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"tensor blk\.0\.attn_q\.bias is unknown"):
        load(tmp_path, held, ignore)


def test_load_when_a_tensor_has_another_shape_then_names_it(tmp_path: Path) -> None:
    held = {**tensors(), "output_norm.weight": np.zeros(63, np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"output_norm\.weight has shape \(63,\), not \(64,\)"):
        load(tmp_path, held, ignore)


def test_loading_when_only_imported_then_torch_is_not() -> None:
    """The port is to answer while torch is imported, which takes seconds."""
    program = "import sys, services.loading; print('torch' in sys.modules)"
    done = subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"


def test_rotary_tables_when_the_context_is_long_then_are_whole_before_the_pools_are_sized() -> None:
    decoder = tiny_llama_decoder(context_len=3 * BLOCK_POSITIONS)
    (table,) = rotary_tables(decoder)
    before_bytes = table.num_bytes
    table.reserve(2 * BLOCK_POSITIONS + 1)
    assert table.num_bytes == 3 * before_bytes
    table.reserve(BLOCK_POSITIONS)
    table.at(torch.tensor([3 * BLOCK_POSITIONS - 1]))
    assert table.num_bytes == 3 * before_bytes


@pytest.mark.parametrize(("recipe", "count"), [("gemma3", 2), ("falcon_h1", 1), ("nemotron_h", 0)])
def test_rotary_tables_when_layers_share_them_then_each_is_told_once(tmp_path: Path, recipe: str, count: int) -> None:
    _, decoder = read_model(save_recipe(recipe, tmp_path).directory)
    assert len(rotary_tables(decoder)) == count
