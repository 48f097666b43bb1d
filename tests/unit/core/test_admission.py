"""The gate at submission, the limits of the configuration, the contract of a plan, and why turns stop."""

from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.core.admission import accepted_max_tokens, check_input, check_queue
from engine.core.commands import FinishReason, Submit
from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import Rid, StepNo, TurnId, pack_ids
from engine.core.plan import PlanRow, StepPlan, assert_well_formed
from engine.core.request import Lane
from engine.core.sampling import Sampling
from engine.core.stops import finish_reason

CONFIG = CoreConfig(page_size=4, pool_pages=9, num_rows=4, context_len=24, vocab_size=100, draft_tokens_max=4)


def submit(ids: list[int], max_tokens: int | None = None) -> Submit:
    return Submit(Rid(1), TurnId("t"), pack_ids(ids), max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("command", "reason", "value", "limit"),
    [
        (submit([]), RefusalReason.EMPTY_PROMPT, 0, 1),
        (submit([5, 100]), RefusalReason.TOKEN_OUT_OF_RANGE, 100, 99),
        (submit([-1, 5]), RefusalReason.TOKEN_OUT_OF_RANGE, -1, 99),
        (submit([5], 0), RefusalReason.MAX_TOKENS_INVALID, 0, 1),
        (submit([5], -(2**63)), RefusalReason.MAX_TOKENS_INVALID, -(2**63), 1),
        (replace(submit([5]), priority=1001), RefusalReason.PRIORITY_INVALID, 1001, 1000),
        (replace(submit([5]), priority=-1001), RefusalReason.PRIORITY_INVALID, -1001, 1000),
        (replace(submit([5]), draft_tokens=5), RefusalReason.DRAFT_TOKENS_INVALID, 5, 4),
        (replace(submit([5]), draft_tokens=-1), RefusalReason.DRAFT_TOKENS_INVALID, -1, 4),
    ],
)
def test_input_when_it_is_bad_then_the_refusal_names_value_and_limit(
    command: Submit, reason: RefusalReason, value: int, limit: int
) -> None:
    with pytest.raises(Refusal) as caught:
        check_input(CONFIG, command)
    assert (caught.value.reason, caught.value.value, caught.value.limit) == (reason, value, limit)


@pytest.mark.parametrize(
    "command",
    [
        submit([0, 99], 1),
        replace(submit([5]), priority=1000, draft_tokens=4),
        replace(submit([5]), priority=-1000, draft_tokens=0),
    ],
)
def test_input_when_it_is_at_its_limits_then_it_is_taken(command: Submit) -> None:
    check_input(CONFIG, command)


@pytest.mark.parametrize(
    ("field", "sampling"),
    [
        ("temperature", Sampling(temperature=float("nan"))),
        ("temperature", Sampling(temperature=float("inf"))),
        ("temperature", Sampling(temperature=-0.1)),
        ("top_p", Sampling(top_p=0.0)),
        ("top_p", Sampling(top_p=1.1)),
        ("top_p", Sampling(top_p=float("nan"))),
        ("top_k", Sampling(top_k=-1)),
        ("seed", Sampling(seed=-1)),
        ("seed", Sampling(seed=2**63)),
    ],
)
def test_sampling_when_a_value_is_out_of_range_then_the_refusal_names_it(field: str, sampling: Sampling) -> None:
    with pytest.raises(Refusal) as caught:
        check_input(CONFIG, replace(submit([5]), sampling=sampling))
    assert (caught.value.reason, caught.value.field) == (RefusalReason.SAMPLING_INVALID, field)


@pytest.mark.parametrize(
    ("prompt_len", "asked", "accepted"), [(1, None, 23), (23, None, 1), (20, 2**63, 4), (20, 3, 3), (20, 4, 4)]
)
def test_max_tokens_when_accepted_then_it_is_the_least_of_what_is_asked_and_left(
    prompt_len: int, asked: int | None, accepted: int
) -> None:
    assert accepted_max_tokens(CONFIG.context_len, CONFIG.pool_tokens, prompt_len, 0, asked) == accepted


@pytest.mark.parametrize("prompt_len", [24, 25, 240])
def test_prompt_when_the_context_has_no_room_for_one_more_then_it_is_refused(prompt_len: int) -> None:
    with pytest.raises(Refusal, match="13 new tokens would fit") as caught:
        accepted_max_tokens(CONFIG.context_len, CONFIG.pool_tokens, prompt_len, 10, None)
    assert (caught.value.reason, caught.value.limit) == (RefusalReason.PROMPT_EXCEEDS_CONTEXT, 24)


def test_prompt_when_the_pool_is_smaller_than_the_context_then_the_pool_is_the_limit() -> None:
    small = replace(CONFIG, pool_pages=4)
    assert accepted_max_tokens(small.context_len, small.pool_tokens, 11, 0, None) == 1
    with pytest.raises(Refusal) as caught:
        accepted_max_tokens(small.context_len, small.pool_tokens, 12, 0, None)
    assert (caught.value.reason, caught.value.limit) == (RefusalReason.PROMPT_EXCEEDS_POOL, 12)


@pytest.mark.parametrize("lane", Lane)
def test_queue_when_full_then_the_next_turn_is_refused(lane: Lane) -> None:
    limited = replace(CONFIG, waiting_max=2)
    check_queue(limited, lane, 1)
    with pytest.raises(Refusal) as caught:
        check_queue(limited, lane, 2)
    assert (caught.value.reason, caught.value.value, caught.value.limit) == (RefusalReason.QUEUE_FULL, 2, 2)


BAD_CONFIGS: dict[str, Callable[[], CoreConfig]] = {
    "page_size": lambda: replace(CONFIG, page_size=0),
    "pool_pages": lambda: replace(CONFIG, pool_pages=1),
    "num_rows": lambda: replace(CONFIG, num_rows=1),
    "chunk_tokens": lambda: replace(CONFIG, chunk_tokens=0),
    "in_flight_max": lambda: replace(CONFIG, in_flight_max=3),
    "idle_timeout_s": lambda: replace(CONFIG, idle_timeout_s=float("nan")),
    "new_token_ratio": lambda: replace(CONFIG, new_token_ratio=1.1),
    "vocab_size": lambda: replace(CONFIG, vocab_size=2**31 + 1),
    "step_tokens": lambda: replace(CONFIG, step_tokens=2, running_max=3),
    "eos_ids": lambda: replace(CONFIG, eos_ids=(100,)),
    "retractions_max": lambda: replace(CONFIG, retractions_max=0),
    "priority_arrivals": lambda: replace(CONFIG, priority_arrivals=0),
    "prefix_wait_tokens": lambda: replace(CONFIG, prefix_wait_tokens=0),
    "draft_tokens_max": lambda: replace(CONFIG, draft_tokens_max=0),
    "waiting_max": lambda: replace(CONFIG, waiting_max=0),
}


@pytest.mark.parametrize("field", BAD_CONFIGS)
def test_config_when_a_limit_is_bad_then_it_says_which(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        BAD_CONFIGS[field]()


@pytest.mark.parametrize(
    ("token", "output_len", "ignore_eos", "reason"),
    [
        (2, 1, False, FinishReason.STOP),
        (2, 8, False, FinishReason.STOP),
        (2, 1, True, None),
        (2, 8, True, FinishReason.LENGTH),
        (5, 8, False, FinishReason.LENGTH),
        (5, 7, False, None),
    ],
)
def test_finish_reason_when_a_token_arrives_then_length_only_if_the_limit_ended_it(
    token: int, output_len: int, ignore_eos: bool, reason: FinishReason | None
) -> None:
    assert finish_reason(token, output_len, 8, (2,), ignore_eos) is reason


ROW = PlanRow(Rid(1), 0, 1, 2, 2, pack_ids([7, 8]), False, 1, array("i", [3, 0]))


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (ROW._replace(query_len=0),),
        (ROW._replace(start_len=-1),),
        (ROW, ROW._replace(rid=Rid(2))),
        (ROW._replace(input_ids=b""),),
        (ROW._replace(uses_sampled=True, input_ids=b""),),
        (ROW._replace(start_len=3),),
        (ROW._replace(start_len=7),),
        (ROW._replace(num_samples=-1),),
        (ROW._replace(num_samples=3),),
    ],
)
def test_plan_when_a_row_breaks_the_contract_then_it_is_caught(rows: tuple[PlanRow, ...]) -> None:
    for num_samples in (0, 1, 2):
        assert_well_formed(StepPlan(StepNo(1), 4, (ROW._replace(num_samples=num_samples),)))
    with pytest.raises(AssertionError):
        assert_well_formed(StepPlan(StepNo(1), 4, rows))
