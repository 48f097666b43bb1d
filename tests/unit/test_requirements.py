"""A missing part is a skip with its reason, or a failure when all parts are required."""

import pytest

from tests.kit.requirements import check_part, requires


@pytest.mark.parametrize("require", [None, "all"])
def test_check_part_when_present_then_the_test_runs(require: str | None) -> None:
    check_part("nvcc", present=True, reason="kernels are not compiled", require=require)


def test_check_part_when_missing_then_skips_with_name_and_reason() -> None:
    with pytest.raises(pytest.skip.Exception, match="nvcc is missing: kernels are not compiled"):
        check_part("nvcc", present=False, reason="kernels are not compiled", require=None)


def test_check_part_when_missing_and_all_required_then_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="nvcc is missing: kernels are not compiled"):
        check_part("nvcc", present=False, reason="kernels are not compiled", require="all")


@requires("nothing", present=True, reason="never")
def test_requires_when_present_then_mark_reaches_the_test(request: pytest.FixtureRequest) -> None:
    mark = request.node.get_closest_marker("requires")
    assert mark is not None
    assert mark.args == ("nothing",)
    assert mark.kwargs == {"present": True, "reason": "never"}


def test_time_limit_when_unit_room_then_twenty_seconds(request: pytest.FixtureRequest) -> None:
    mark = request.node.get_closest_marker("timeout")
    assert mark is not None
    assert mark.args == (20,)
