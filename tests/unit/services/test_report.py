"""What a person is told of an error: flags, and what to do."""

import grpc
import pytest

from services.cli.report import describe_error, is_about_an_option, report_error
from services.client import OptionError, TenureError
from services.config import to_flag

SILENCE = TenureError("UNAVAILABLE", "failed to connect", code=grpc.StatusCode.UNAVAILABLE)
NO_HOST = TenureError("UNAVAILABLE", "DNS resolution failed for h:1", code=grpc.StatusCode.UNAVAILABLE)


def invalid(field: str, problem: str) -> TenureError:
    return TenureError("FIELD_INVALID", f"{field}: {problem}", code=grpc.StatusCode.INVALID_ARGUMENT, field=field)


@pytest.mark.parametrize("name", ["max_tokens", "top_k", "stop"])
def test_describe_error_when_an_option_is_at_fault_then_its_flag_is_named(name: str) -> None:
    error = invalid(f"sampling.{name}", "can not be")
    assert describe_error(error, "h:1") == f"{to_flag(name)}: can not be"
    assert is_about_an_option(error)


def test_describe_error_when_the_text_is_at_fault_then_in_words() -> None:
    error = invalid("text", "is empty")
    assert describe_error(error, "h:1") == "the text is empty"
    assert not is_about_an_option(error)


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        ("127.0.0.1:50051", "; start one with: tenure serve"),
        ("127.0.0.1:7", "; start one with: tenure serve --port 7"),
        ("localhost:7", "; start one with: tenure serve --port 7"),
        ("[::1]:7", "; start one with: tenure serve --host ::1 --port 7"),
        ("192.0.2.1:7", "; does it run there, and can it be reached from here?"),
        ("unix:/run/t.sock", "; does it run there, and can it be reached from here?"),
    ],
)
def test_describe_error_when_nobody_answers_then_the_advice_fits_the_target(target: str, advice: str) -> None:
    assert describe_error(SILENCE, target) == f"no server answers at {target}{advice}"


def test_describe_error_when_the_host_is_unknown_then_said_so() -> None:
    assert describe_error(NO_HOST, "h:1") == "the host of h:1 can not be found"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND])
def test_describe_error_when_the_server_does_not_know_the_call_then_what_it_may_be(code: grpc.StatusCode) -> None:
    unknown = TenureError(code.name, "Method not found!", code=code)
    assert describe_error(unknown, "h:1").startswith("the server at h:1 does not know this call: it is older than ")
    ours = TenureError("SESSION_UNKNOWN", "there is no session s", code=code)
    assert describe_error(ours, "h:1") == "SESSION_UNKNOWN: there is no session s"


def test_describe_error_when_a_server_gave_its_reason_then_that() -> None:
    error = TenureError("QUEUE_FULL", "too many wait", code=grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert describe_error(error, "h:1") == "QUEUE_FULL: too many wait"


@pytest.mark.parametrize(
    ("field", "argument"),
    [("new_session_id", "--name"), ("at_turn_id", "--at-turn"), ("length", "length"), ("unit", "page")],
)
def test_describe_error_when_the_command_line_has_another_name_for_the_field_then_that(
    field: str, argument: str
) -> None:
    error = invalid(field, "can not be")
    assert describe_error(error, "h:1") == f"{argument}: can not be"
    assert is_about_an_option(error)


@pytest.mark.parametrize(("option", "argument"), [("at_length", "--at-length"), ("max_tokens", "--max-tokens")])
async def test_report_error_when_our_client_refuses_an_option_then_its_argument_and_exit_code_2(
    option: str, argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> int:
        raise OptionError(option, "is out of range")

    assert await report_error("h:1", work()) == 2
    assert capsys.readouterr().err == f"tenure: {argument}: is out of range\n"
