"""What may come in: the gate at submission, and what a waiting turn costs. Reads, never moves."""

from engine.core.commands import Submit
from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import pages_for, unpack_ids
from engine.core.priorities import check_priority
from engine.core.request import Lane, Request
from engine.core.sampling import check_sampling

RAISED_MIN = 0.2
LOWERED_A_STEP = 0.001
"""From 1 it takes a thousand steps to 0: longer than most answers, so that one lesson outlasts those who taught it."""


def check_input(config: CoreConfig, command: Submit) -> None:
    """What can be judged without a look at the state.

    Refused: EMPTY_PROMPT, TOKEN_OUT_OF_RANGE, MAX_TOKENS_INVALID, SAMPLING_INVALID, PRIORITY_INVALID,
    DRAFT_TOKENS_INVALID.
    """
    if not command.input_ids:
        raise Refusal(
            RefusalReason.EMPTY_PROMPT, "a turn needs at least one new token", field="input", value=0, limit=1
        )
    ids = unpack_ids(command.input_ids)
    bad = next((token for token in (min(ids), max(ids)) if not 0 <= token < config.vocab_size), None)
    if bad is not None:
        message = f"token id {bad} is not in the vocabulary: ids are from 0 to {config.vocab_size - 1}"
        limit = config.vocab_size - 1
        raise Refusal(RefusalReason.TOKEN_OUT_OF_RANGE, message, field="token_ids", value=bad, limit=limit)
    if command.max_tokens is not None and command.max_tokens < 1:
        message = f"max_tokens must be at least 1, not {command.max_tokens}"
        reason = RefusalReason.MAX_TOKENS_INVALID
        raise Refusal(reason, message, field="max_tokens", value=command.max_tokens, limit=1)
    check_sampling(command.sampling)
    check_priority(command.priority or 0)
    if not 0 <= command.draft_tokens <= config.drafts_max:
        limit = config.drafts_max
        message = f"draft_tokens must be from 0 to {limit}, not {command.draft_tokens}"
        if config.state_slots:
            message = (
                f"draft_tokens must be 0, not {command.draft_tokens}: this model's recurrent states can't be taken "
                "back to before a wrong guess"
            )
        reason = RefusalReason.DRAFT_TOKENS_INVALID
        raise Refusal(reason, message, field="draft_tokens", value=command.draft_tokens, limit=limit)


def accepted_max_tokens(context_len: int, pool_tokens: int, prompt_len: int, base_len: int, asked: int | None) -> int:
    """How many tokens the turn may generate: the least of what it asks, the context and the empty pool leave.

    `pool_tokens`: what the empty pool holds, without what is in quarantine.

    Refused: PROMPT_EXCEEDS_CONTEXT, PROMPT_EXCEEDS_POOL, naming how many new tokens would fit.
    """
    limits = (
        (RefusalReason.PROMPT_EXCEEDS_CONTEXT, "context", context_len),
        (RefusalReason.PROMPT_EXCEEDS_POOL, "KV pool", pool_tokens),
    )
    for reason, name, limit in limits:
        if prompt_len >= limit:
            message = (
                f"{prompt_len} tokens ({base_len} of history) and one to generate exceed the {name} of {limit}: "
                f"{max(0, limit - 1 - base_len)} new tokens would fit"
            )
            raise Refusal(reason, message, field="input", value=prompt_len, limit=limit)
    room = min(limit for _, _, limit in limits) - prompt_len
    return room if asked is None else min(asked, room)


def check_queue(config: CoreConfig, lane: Lane, num_new_waiting: int) -> None:
    """Refused: QUEUE_FULL. Each lane has its own places: a flood of one kind does not shut out the other."""
    if num_new_waiting >= config.waiting_max:
        kind = "of sessions" if lane is Lane.SESSIONS else "without a session"
        message = f"{num_new_waiting} turns {kind} wait, the most allowed is {config.waiting_max}; try again later"
        raise Refusal(RefusalReason.QUEUE_FULL, message, value=num_new_waiting, limit=config.waiting_max)


def pages_to_come(request: Request, page_size: int, new_token_ratio: float, num_pages: int) -> int:
    """Pages that a request, which has or would have `num_pages`, still needs for the tokens it has and those to come.

    Of the tokens that it may still generate a share counts, at least those of one step; all on its last attempt.
    Even then this is never more than the empty pool: a request that is alone always fits.
    """
    left = request.max_tokens - request.output_len
    share = 1.0 if request.is_last_attempt else new_token_ratio
    to_generate = max(min(1 + request.draft_tokens, left), int(share * left))
    return max(0, pages_for(request.known_len + to_generate, page_size) - num_pages)


def windows_to_come(config: CoreConfig, pages: int, num_held: int, num_locked: int, *, is_pinned: bool) -> int:
    """SWA pages that a request, which has `num_held`, still needs while `pages` more are added at its end.

    It gives up at its begin what it has left behind: so never more than one span, the window that `is_pinned`, of which
    `num_locked` are the cache's, and with states that of its checkpoint.
    """
    pinned = max(0, config.swa_pin_pages - num_locked) if is_pinned else 0
    most = config.swa_span_pages + pinned + (config.swa_pin_pages if config.state_slots else 0)
    return max(0, min(num_held + pages, most) - num_held)


class NewTokenRatio:
    """How much room is kept for tokens to come, as the load teaches: doubled by a retraction, slowly lowered again."""

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self.value = floor

    def raise_(self) -> None:
        """A turn had to be retracted: too little room was kept."""
        self.value = min(1.0, max(2 * self.value, RAISED_MIN))

    def lower(self) -> None:
        """A step was planned."""
        self.value = max(self._floor, self.value - LOWERED_A_STEP)

    def reset(self) -> None:
        """Nothing is left to run: what was learned was about another load."""
        self.value = self._floor
