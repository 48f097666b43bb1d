"""The oracle of speculation: which ids may be guessed, and how many ids a verified guess must yield."""

from collections import Counter
from collections.abc import Sequence

from engine.core.config import CoreConfig
from engine.core.ids import unpack_ids
from engine.core.plan import PlanRow
from tests.kit.shadow_model import ShadowModel
from tests.sim.records import TurnRecord, expect

LONGEST_MATCH = 3


def look_up(ids: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` ids that followed the newest earlier occurrence of the last ids, the longest match first.

    Where fewer followed, they are taken to go on and on: what is right is verified anyway.
    """
    for length in range(LONGEST_MATCH, 0, -1):
        tail = ids[-length:]
        for start in range(len(ids) - length - 1, -1, -1):
            if ids[start + length - 1] == tail[-1] and ids[start : start + length] == tail:
                following = tuple(ids[start + length : start + length + count])
                return (following * count)[:count]
    return ()


def check_drafts(row: PlanRow, turn: TurnRecord, config: CoreConfig, *, is_alone: bool) -> None:
    """A row that verifies guesses: they come from the turn's own ids, are sent as ids, and overlap with nothing."""
    name = f"rid {turn.rid}"
    num_drafts = row.num_samples - 1
    expect(num_drafts <= turn.command.draft_tokens, "draft", f"{name}: {num_drafts} drafts")
    expect(row.query_len == row.num_samples, "draft", f"{name}: {row.query_len} tokens for {row.num_samples} samples")
    expect(is_alone, "draft", f"{name}: guesses while a plan of it is in flight")
    start = turn.context_len - 1
    expect(row.start_len == start, "draft", f"{name}: verifies from {row.start_len}, its last id is at {start}")
    last, *drafts = unpack_ids(row.input_ids)
    ids = turn.prompt + turn.output
    expect(last == ids[-1], "draft", f"{name}: {last} is not its last id {ids[-1]}")
    found = look_up(ids, turn.command.draft_tokens)
    expect(tuple(drafts) == found[:num_drafts], "draft", f"{name}: guesses {drafts}, its own ids give {found}")
    left = turn.max_tokens - len(turn.output) - 1
    expect(num_drafts <= left, "draft", f"{name}: {num_drafts} drafts, but only {left} ids may follow")


def due_len(turn: TurnRecord, config: CoreConfig, model: ShadowModel) -> int:
    """How many ids the answer of the turn's drafts must yield: the right ones and one more, up to the turn's end."""
    digest, position = turn.digest, turn.context_len
    left = turn.max_tokens - len(turn.output)
    for count, draft in enumerate((*turn.drafts, None), start=1):
        token_id = model.next_id(digest)
        is_stopped = token_id in config.eos_ids and not turn.ignore_eos
        if token_id != draft or is_stopped or count == left:
            return count
        digest = model.extend(digest, token_id, position)
        position += 1
    raise AssertionError("the last comparison is with no draft, and never holds")


def mark_drafts(turn: TurnRecord, due: int, marks: Counter[str]) -> None:
    """`due`: ids that its plan was to tell."""
    if turn.drafts:
        marks["drafts accepted"] += due > 1
        marks["drafts rejected"] += due < 1 + len(turn.drafts)
        marks["all drafts accepted"] += due == 1 + len(turn.drafts)
