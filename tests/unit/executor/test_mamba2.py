"""The Mamba2 mixer with numbers small enough to be worked out by hand, and what it may do to states."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from engine.executor.batch import PoolGeometry
from engine.executor.decoder import StepContext
from engine.executor.kv_storage import KvStorage
from engine.executor.layers.mamba2 import GatedNorm, Mamba2, Mamba2Spec, silu, softplus, take_mamba2
from engine.executor.layers.plain_feed_forward import take_squared_relu
from engine.executor.linear import pad_rows, padded_rows
from engine.executor.model_config import ModelConfig, UnsupportedModelError
from engine.executor.state_storage import StateAccess, StateStorage, state_bytes
from engine.executor.tensors import Tensors

NUM_SLOTS = 8
UNIT = 128.0
"""SiLU leaves it as it is in float32, and makes 0 of what is below minus this."""


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens of one sequence, [n, hidden_size], and its slots."""

    x: torch.Tensor
    read: int
    write: int


def tensors_of(held: dict[str, torch.Tensor]) -> Tensors:
    return Tensors("layer", {name: tensor.numpy for name, tensor in held.items()})


def config_of(spec: Mamba2Spec) -> ModelConfig:
    return ModelConfig(
        name="tiny",
        arch="tiny",
        vocab_size=8,
        hidden_size=8,
        num_heads=1,
        context_len=64,
        eos_ids=(2,),
        bos_id=1,
        kv_layers=(),
        state_layers=(spec.state_layer,),
    )


def run(layer: Mamba2, storage: StateStorage, rows: Sequence[Row]) -> list[torch.Tensor]:
    """One step; what the mixer makes of each row's tokens."""
    lens = [len(row.x) for row in rows]
    states = StateAccess(
        storage,
        np.cumsum([0, *lens]).astype(np.int32),
        torch.tensor([row.read for row in rows]),
        torch.tensor([row.write for row in rows]),
    )
    kv = KvStorage(config_of(layer.spec), PoolGeometry(page_size=4, pool_pages=2, num_rows=2))
    positions = torch.zeros(sum(lens), dtype=torch.int64)
    out = layer(pad_rows(torch.cat([row.x for row in rows])), StepContext(positions, kv, {}, states))
    assert len(out) == padded_rows(sum(lens))
    return list(out[: sum(lens)].split(lens))


def small_layer() -> Mamba2:
    """One head of one element, two state elements, a kernel of 2; each step is 1 long and halves the state.

    Of a token t, in units: gate t, x t and twice the one before, B (t, -t), C (2 t, t).
    """
    spec = Mamba2Spec(
        num_heads=1,
        head_dim=1,
        state_size=2,
        num_groups=1,
        kernel_size=2,
        norm=None,
        time_step_min=1.0,
        time_step_max=1.0,
        has_conv_bias=False,
    )
    held = {
        "m.in_proj.weight": torch.tensor([[1.0], [1.0], [1.0], [-1.0], [2.0], [1.0], [0.0]]) * UNIT,
        "m.conv1d.weight": torch.tensor([[[2.0, 1.0]], [[0.0, 1.0]], [[0.0, 1.0]], [[0.0, 1.0]], [[0.0, 1.0]]]),
        "m.dt_bias": torch.zeros(1),
        "m.A_log": torch.tensor([math.log(math.log(2.0))]),
        "m.D": torch.tensor([4.0]),
        "m.out_proj.weight": torch.tensor([[1.0]]),
    }
    return take_mamba2(tensors_of(held), "m", 0, spec, 1)


def random_layer(spec: Mamba2Spec, hidden: int = 8) -> Mamba2:
    generator = torch.Generator().manual_seed(3)
    inner = spec.inner_size
    shapes: dict[str, tuple[int, ...]] = {
        "in_proj.weight": (sum(spec.parts), hidden),
        "in_proj.bias": (sum(spec.parts),),
        "conv1d.weight": (spec.channels, 1, spec.kernel_size),
        "conv1d.bias": (spec.channels,),
        "dt_bias": (spec.num_heads,),
        "A_log": (spec.num_heads,),
        "D": (spec.num_heads,),
        "norm.weight": (inner,),
        "out_proj.weight": (hidden, inner),
        "out_proj.bias": (hidden,),
    }
    held = {f"m.{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return take_mamba2(tensors_of(held), "m", 0, spec, hidden)


ODD = Mamba2Spec(
    num_heads=6,
    head_dim=5,
    state_size=7,
    num_groups=3,
    kernel_size=4,
    norm=GatedNorm(1e-5),
    has_input_bias=True,
    has_output_bias=True,
)
WIDE = Mamba2Spec(num_heads=8, head_dim=64, state_size=95, num_groups=2, kernel_size=4, norm=GatedNorm(1e-5))
"""So wide that torch deals each operation out to its threads."""


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def assert_same_when_cut(spec: Mamba2Spec, cut: tuple[int, ...], threads: int) -> None:
    """One row as a whole and alone, then in parts between two others: the same outputs and the same state behind it."""
    layer, config = random_layer(spec), config_of(spec)
    x = torch.randn(sum(cut), 8, generator=torch.Generator().manual_seed(5))
    alone, storage = StateStorage(config, NUM_SLOTS), StateStorage(config, NUM_SLOTS)
    torch.set_num_threads(1)
    expected = run(layer, alone, [Row(x, 0, 1)])[0]
    torch.set_num_threads(threads)
    outs = []
    for place, part in enumerate(x.split(cut)):
        rows = [Row(x.flip(0)[:4], 0, 3), Row(part, *slots_at(place)), Row(-x[:9], 0, 4)]
        outs.append(run(layer, storage, rows)[1])
    assert torch.equal(torch.cat(outs), expected)
    last = slots_at(len(cut) - 1)[1]
    assert torch.equal(storage.ssm[0][last], alone.ssm[0][1])
    assert torch.equal(storage.conv[0][last], alone.conv[0][1])


def slots_at(place: int) -> tuple[int, int]:
    """Where step `place` of a sequence reads and writes: two slots in turn, and none before the first."""
    return (0 if place == 0 else 1 + (place - 1) % 2), 1 + place % 2


def test_small_layer_when_run_over_four_tokens_then_states_and_outputs_are_those_worked_out_by_hand() -> None:
    """In units u:

    token  gate  x            B     C     state = state / 2 + x · B   (state · C + 4 · x) · gate
    1      1     1            1, 0  2, 1  1, 0                        2 u⁴ + 4 u²
    0      0     0 + 2 = 2    0, 0  0, 0  1/2, 0                      0
    1      1     1 + 0 = 1    1, 0  2, 1  1/4 + 1, 0                  5/2 u⁴ + 4 u²
    -1     0     -1 + 2 = 1   0, 1  0, 0  5/8, 1                      0
    """
    layer = small_layer()
    storage = StateStorage(config_of(layer.spec), NUM_SLOTS)
    outs, states, inputs = [], [], []
    for place, token in enumerate((1.0, 0.0, 1.0, -1.0)):
        read, write = slots_at(place)
        outs.append(run(layer, storage, [Row(torch.tensor([[token]]), read, write)])[0].item())
        states.append((storage.ssm[0][write].flatten() / UNIT**2).tolist())
        inputs.append((storage.conv[0][write].flatten() / UNIT).tolist())
    assert outs == pytest.approx([2 * UNIT**4 + 4 * UNIT**2, 0.0, 2.5 * UNIT**4 + 4 * UNIT**2, 0.0], rel=1e-6)
    for state, expected in zip(states, ([1.0, 0.0], [0.5, 0.0], [1.25, 0.0], [0.625, 1.0]), strict=True):
        assert state == pytest.approx(expected, rel=1e-6)
    assert inputs == [[1, 1, -1, 2, 1], [0, 0, 0, 0, 0], [1, 1, -1, 2, 1], [-1, -1, 1, -2, -1]]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cut", [(1,) * 13, (7, 6), (2, 1, 10), (3, 3, 3, 3, 1)], ids=str)
def test_states_and_outputs_when_a_row_is_cut_beside_others_then_equal_those_of_one_step_bit_for_bit(
    cut: tuple[int, ...], threads: int
) -> None:
    assert_same_when_cut(ODD, cut, threads)


@pytest.mark.parametrize("cut", [(1, 66), (40, 1, 26)], ids=str)
def test_states_and_outputs_of_a_wide_layer_when_threads_share_the_work_then_equal_those_of_one_bit_for_bit(
    cut: tuple[int, ...],
) -> None:
    assert_same_when_cut(WIDE, cut, threads=2)


def test_step_when_run_then_changes_no_slot_but_those_it_writes() -> None:
    layer = random_layer(ODD)
    storage = StateStorage(config_of(ODD), NUM_SLOTS)
    x = torch.randn(7, 8, generator=torch.Generator().manual_seed(5))
    run(layer, storage, [Row(x, 0, 1), Row(x[:2], 0, 2)])
    ssm, conv = storage.ssm[0].clone(), storage.conv[0].clone()
    run(layer, storage, [Row(x[:1], 2, 5), Row(x[:3], 1, 4)])
    changed = [slot for slot in range(NUM_SLOTS) if not torch.equal(storage.ssm[0][slot], ssm[slot])]
    assert changed == [4, 5]
    assert [slot for slot in range(NUM_SLOTS) if not torch.equal(storage.conv[0][slot], conv[slot])] == [4, 5]
    assert not storage.ssm[0][0].any()
    assert not storage.conv[0][0].any()


def test_same_state_when_read_by_two_rows_then_each_goes_on_from_it() -> None:
    layer = random_layer(ODD)
    storage = StateStorage(config_of(ODD), NUM_SLOTS)
    x = torch.randn(7, 8, generator=torch.Generator().manual_seed(5))
    whole = run(layer, storage, [Row(x, 0, 1)])[0]
    run(layer, storage, [Row(x[:4], 0, 2)])
    first, second = run(layer, storage, [Row(x[4:6], 2, 3), Row(x[4:], 2, 4)])
    assert torch.equal(first, whole[4:6])
    assert torch.equal(second, whole[4:])


@pytest.mark.parametrize("function", [silu, softplus])
def test_activation_when_among_more_or_fewer_elements_then_is_the_same_bit_for_bit(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.randn(67, generator=torch.Generator().manual_seed(5)) * 30
    whole = function(x)
    for num_elements in range(1, len(x)):
        assert torch.equal(function(x[-num_elements:]), whole[-num_elements:])


def test_activations_when_far_from_zero_then_are_finite_and_right() -> None:
    x = torch.tensor([-1e4, -100.0, -20.0, -1.0, 0.0, 1.0, 20.0, 100.0, 1e4])
    torch.testing.assert_close(silu(x), torch.nn.functional.silu(x.double()).float())
    torch.testing.assert_close(softplus(x), torch.logaddexp(x.double(), torch.zeros(9).double()).float())


def test_state_bytes_when_asked_then_are_what_the_storage_takes() -> None:
    config = config_of(ODD)
    storage = StateStorage(config, NUM_SLOTS)
    assert storage.ssm[0].shape == (NUM_SLOTS, 6, 5, 7)
    assert storage.conv[0].shape == (NUM_SLOTS, 6 * 5 + 2 * 3 * 7, 3)
    assert state_bytes(config) == 4 * (6 * 5 * 7 + 72 * 3)
    assert storage.num_bytes == NUM_SLOTS * state_bytes(config)


def test_heads_when_they_do_not_divide_by_groups_then_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="6 Mamba heads do not divide by 4 groups"):
        replace(ODD, num_groups=4)


def test_squared_relu_when_run_then_is_what_its_name_says() -> None:
    held = {
        "m.up_proj.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        "m.up_proj.bias": torch.tensor([0.0, 0.0, -1.0]),
        "m.down_proj.weight": torch.tensor([[1.0, 10.0, 100.0], [0.0, 0.0, 1.0]]),
        "m.down_proj.bias": torch.tensor([0.0, 0.5]),
    }
    layer = take_squared_relu(tensors_of(held), "m", 2, 3, has_bias=True)
    storage = KvStorage(config_of(ODD), PoolGeometry(page_size=4, pool_pages=2, num_rows=2))
    step = StepContext(torch.zeros(1, dtype=torch.int64), storage, {}, None)
    out = layer(pad_rows(torch.tensor([[3.0, -2.0], [2.0, 3.0]])), step)
    assert out[:2].tolist() == [[9.0, 0.5], [4.0 + 90.0 + 1600.0, 16.5]]
