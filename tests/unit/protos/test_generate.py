"""What counts as drift between the protos and the code generated from them."""

from protos.generate import find_drift

COMMITTED = {"a_pb2.py": "x = 1\n", "b_pb2.py": "y = 2\n"}


def test_drift_when_same_then_none() -> None:
    assert find_drift(dict(COMMITTED), COMMITTED) == []


def test_drift_when_text_differs_then_named() -> None:
    assert find_drift({**COMMITTED, "b_pb2.py": "y = 3\n"}, COMMITTED) == ["b_pb2.py"]


def test_drift_when_file_is_new_then_named() -> None:
    assert find_drift({**COMMITTED, "c_pb2.pyi": ""}, COMMITTED) == ["c_pb2.pyi"]


def test_drift_when_file_is_left_over_then_named() -> None:
    assert find_drift({"a_pb2.py": "x = 1\n"}, COMMITTED) == ["b_pb2.py"]
