"""What may come in: the gate at submission, and what a waiting turn costs. Reads, never moves."""

from engine.core.commands import Submit
from engine.core.config import CoreConfig
from engine.core.errors import Refusal, RefusalReason
from engine.core.ids import pages_for, unpack_ids
from engine.core.request import Request
from engine.core.sampling import check_sampling


def check_input(config: CoreConfig, command: Submit) -> None:
    """Refused: EMPTY_PROMPT, TOKEN_OUT_OF_RANGE, MAX_TOKENS_INVALID, SAMPLING_INVALID."""
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


def accepted_max_tokens(config: CoreConfig, prompt_len: int, base_len: int, asked: int | None) -> int:
    """How many tokens the turn may generate: the least of what it asks, the context and the empty pool leave.

    Refused: PROMPT_EXCEEDS_CONTEXT, PROMPT_EXCEEDS_POOL, naming how many new tokens would fit.
    """
    limits = (
        (RefusalReason.PROMPT_EXCEEDS_CONTEXT, "context", config.context_len),
        (RefusalReason.PROMPT_EXCEEDS_POOL, "KV pool", config.pool_tokens),
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


def check_queue(config: CoreConfig, num_new_waiting: int) -> None:
    """Refused: QUEUE_FULL."""
    if num_new_waiting >= config.waiting_max:
        message = f"{num_new_waiting} turns wait, the most allowed is {config.waiting_max}; try again later"
        raise Refusal(RefusalReason.QUEUE_FULL, message, value=num_new_waiting, limit=config.waiting_max)


def pages_to_come(request: Request, page_size: int, new_token_ratio: float, num_pages: int) -> int:
    """Pages that a request, which has or would have `num_pages`, still needs for the tokens it has and those to come.

    Of the tokens that it may still generate a share counts, at least one. Even with a share of 1 this is never more
    than the empty pool, so a request that is alone always fits.
    """
    to_generate = max(1, int(new_token_ratio * (request.max_tokens - request.output_len)))
    return max(0, pages_for(request.known_len + to_generate, page_size) - num_pages)
