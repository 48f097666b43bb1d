"""Why a turn stops generating. Pure."""

from engine.core.commands import FinishReason


def finish_reason(
    token_id: int, output_len: int, max_tokens: int, eos_ids: tuple[int, ...], ignore_eos: bool
) -> FinishReason | None:
    """The reason to stop after `token_id`, the `output_len`-th generated one; None to go on.

    An end-of-sequence id that is also the last allowed one stops as STOP: the limit didn't end the turn.
    """
    if token_id in eos_ids and not ignore_eos:
        return FinishReason.STOP
    return FinishReason.LENGTH if output_len >= max_tokens else None
