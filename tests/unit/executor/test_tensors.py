"""A model's tensors, fetched by name and shape."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.executor.model_config import UnsupportedModelError
from engine.executor.tensors import TensorReader, Tensors

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def tensors_of(*names: str, own_name: Callable[[str], str] = str) -> Tensors:
    readers: dict[str, TensorReader] = dict.fromkeys(names, MATRIX.copy)
    return Tensors("the-file", readers, own_name)


def test_tensor_when_taken_then_is_what_its_reader_reads_and_nothing_else_is_read() -> None:
    read: list[str] = []

    def reader(name: str) -> TensorReader:
        def read_one() -> NDArray[np.float32]:
            read.append(name)
            return MATRIX.copy()

        return read_one

    tensors = Tensors("the-file", {name: reader(name) for name in ("a", "b")})
    taken = tensors.take("b", 2, 3)
    assert torch.equal(taken, torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))
    assert taken.dtype == torch.float32
    assert read == ["b"]


def test_names_when_asked_about_then_told_whether_there_is_such_a_tensor() -> None:
    tensors = tensors_of("a")
    assert "a" in tensors
    assert "b" not in tensors
    with pytest.raises(UnsupportedModelError, match="tensor a is unknown"):
        tensors.refuse_rest()


def test_tensor_when_missing_then_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"^the-file: tensor b is missing$"):
        tensors_of("a").take("b", 2, 3)


@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), (2, 4), ()])
def test_tensor_when_of_another_shape_then_refused_with_both(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModelError) as refusal:
        tensors_of("a").take("a", *shape)
    assert str(refusal.value) == f"the-file: tensor a has shape (2, 3), not {shape}"


def test_rest_when_everything_was_taken_then_passes() -> None:
    tensors = tensors_of("a", "b")
    for name in ("b", "a"):
        tensors.take(name, 2, 3)
    tensors.refuse_rest()


def test_rest_when_something_was_never_asked_for_then_names_the_first_and_counts_all() -> None:
    tensors = tensors_of("d", "c", "b", "a")
    tensors.take("a", 2, 3)
    with pytest.raises(UnsupportedModelError, match=r"^the-file: tensor b is unknown \(3 in all\)$"):
        tensors.refuse_rest()


def test_rest_when_what_is_left_is_ignored_then_passes_whether_it_is_there_or_not() -> None:
    tensors = tensors_of("a", "b")
    tensors.take("a", 2, 3)
    tensors.ignore("b")
    tensors.ignore("c")
    tensors.refuse_rest()


def test_tensor_when_ignored_then_can_still_be_taken() -> None:
    tensors = tensors_of("a")
    tensors.ignore("a")
    assert tensors.take("a", 2, 3).shape == (2, 3)


def test_refusals_when_the_file_has_names_of_its_own_then_show_those() -> None:
    tensors = tensors_of("a", "b", own_name=str.upper)
    with pytest.raises(UnsupportedModelError, match="tensor C is missing"):
        tensors.take("c", 2, 3)
    with pytest.raises(UnsupportedModelError, match=r"tensor A has shape \(2, 3\)"):
        tensors.take("a", 3, 2)
    with pytest.raises(UnsupportedModelError, match="tensor B is unknown"):
        tensors.refuse_rest()
