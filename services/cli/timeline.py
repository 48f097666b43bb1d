"""`tenure timeline`: what happened to one session of a running server, in order."""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from services.cli.run import run_work
from services.cli.tables import format_table
from services.cli.top_view.numbers import format_span
from services.client import connect
from services.client.history import History, SessionFact
from services.client.pools import count_units

_COLUMNS = ("time", "step", "what", "turn", "")
_NAMES_MAX = 8
_BY_CALL = "by a call of Session.Truncate"


def run_timeline(target: str, session_id: str, last_s: float | None) -> int:
    """The exit code is 1 when nothing is remembered of the session."""
    return run_work(target, _timeline(target, session_id, last_s))


async def _timeline(target: str, session_id: str, last_s: float | None) -> int:
    async with connect(target) as client:
        history = await client.history(last_s)
    print(format_timeline(history, session_id))
    return 0 if _facts_of(history, session_id) else 1


def format_timeline(history: History, session_id: str) -> str:
    """A table for each session that had the name, the oldest first, and what is not there any more."""
    facts = _facts_of(history, session_id)
    if not facts:
        return _explain_absence(history, session_id)
    numbers = dict.fromkeys(fact.session_number for fact in facts)
    parts = [_format_session([fact for fact in facts if fact.session_number == number]) for number in numbers]
    if len(numbers) > 1:
        parts.insert(0, f"{len(numbers)} sessions had the name {session_id}, one after the other:")
    return "\n\n".join((*parts, *_note_dropped(history)))


def tell_fact(fact: SessionFact) -> str:
    """What a fact says beside its name, as in `context 31 tokens = 22 of history + 9 new`."""
    tokens = _count(fact.tokens, "token")
    match fact.what:
        case "turn_accepted":
            new = _read_numbers(fact.detail)["new"]
            return f"context {tokens} = {fact.tokens - new:,} of history + {new:,} new"
        case "turn_admitted":
            parts = (f"{count:,} {name}" for name, count in _read_numbers(fact.detail).items())
            return f"KV of {tokens} = {' + '.join(parts)}"
        case "turn_retracted":
            return f"gave its KV back to make room, after {tokens} of output"
        case "turn_ended":
            return f"{fact.detail}, {fact.tokens:,} generated"
        case "history":
            return f"{tokens}: the turn is {'a part of it' if fact.detail == 'committed' else 'not a part of it'}"
        case "kv":
            return f"{fact.detail}, {tokens}" if fact.tokens else fact.detail
        case "closed":
            return f"{fact.detail}, {tokens} of history"
        case "forked":
            return f"from {fact.detail}, {tokens} of history"
        case "truncated":
            return f"to {tokens}, {_BY_CALL}"
        case "opened" | "forgotten":
            return fact.detail
        case _:
            return count_units(fact.detail, fact.units)


def _facts_of(history: History, session_id: str) -> list[SessionFact]:
    return [fact for fact in history.facts if fact.session_id == session_id]


def _format_session(told: Sequence[SessionFact]) -> str:
    facts = put_cuts_first(told)
    first, last = facts[0], facts[-1]
    begins = "" if first.what == "opened" else "; its beginning lies further back"
    head = f"session {first.session_id}, number {first.session_number}, {_describe_state(facts)}{begins}"
    times = f"{_local(first.time_s):%Y-%m-%d}, {format_span(last.time_s - first.time_s)} of it:"
    rows = [_cells(fact, text) for fact, text in zip(facts, _tell_all(facts), strict=True)]
    alive = (f"  turn {turn_id} {does}" for turn_id, does in find_alive(facts).items())
    return "\n".join((f"{head}; {times}", format_table([_COLUMNS, *rows], indent="  "), *alive))


def put_cuts_first(facts: Sequence[SessionFact]) -> list[SessionFact]:
    """Turns that were forgotten because of a cut come right after it, and not before, as the server has them."""
    cut_times_s = {fact.time_s for fact in facts if fact.what == "truncated"}
    forgotten = [fact for fact in facts if fact.what == "forgotten" and fact.time_s in cut_times_s]
    ordered: list[SessionFact] = []
    for fact in facts:
        if fact not in forgotten:
            ordered.append(fact)
        if fact.what == "truncated":
            ordered += [taken for taken in forgotten if taken.time_s == fact.time_s]
    return ordered


def find_alive(facts: Iterable[SessionFact]) -> dict[str, str]:
    """Turns that have not ended, by id: `waits` before it is admitted and once it gave its KV back, else `runs`."""
    alive: dict[str, str] = {}
    for fact in facts:
        match fact.what:
            case "turn_accepted" | "turn_retracted":
                alive[fact.turn_id] = "waits"
            case "turn_admitted":
                alive[fact.turn_id] = "runs"
            case "turn_ended":
                alive.pop(fact.turn_id, None)
    return alive


def _tell_all(facts: Sequence[SessionFact]) -> list[str]:
    """As `tell_fact`, but for what the facts before it say better."""
    told = zip(facts, _tell_cuts(facts), _tell_lost_kv(facts), strict=True)
    return [cut or lost or tell_fact(fact) for fact, cut, lost in told]


def _tell_cuts(facts: Iterable[SessionFact]) -> Iterator[str | None]:
    """Whence a session was cut, where that is known, and which turns went with that; None for other facts.

    A session that is a tree of turns has no one length.
    """
    history_len: int | None = None
    cut_s: float | None = None
    is_tree = False
    for fact in facts:
        is_tree = is_tree or (fact.what, fact.detail) == ("opened", "ordinary")
        if fact.what == "truncated" and history_len is not None:
            yield f"from {history_len:,} {tell_fact(fact)}"
        elif fact.what == "forgotten" and fact.time_s == cut_s:  # all facts of one command have one time
            yield f"{fact.detail} with it"
        else:
            yield None
        cut_s = fact.time_s if fact.what == "truncated" else cut_s
        history_len = None if is_tree else _find_history_len(fact, history_len)


def _tell_lost_kv(facts: Sequence[SessionFact]) -> Iterator[str | None]:
    """For KV of which the server says `demoted`, though none of it went to the prefix cache; None for other facts.

    That is so when a session is cut to where it has no KV of its own, and when a turn or a fork brings none: only KV
    that is held can give way.
    """
    state: str | None = None
    for fact in facts:
        told = None
        if fact.what == "opened":
            state = "empty"
        elif fact.what == "kv":
            if fact.detail == "demoted" and state is not None:
                if state != "held":
                    told = "none of its own"
                elif _is_cut(fact, facts):
                    told = "none of its own: the session was cut"
            state = fact.detail
        yield told


def _find_history_len(fact: SessionFact, before: int | None) -> int | None:
    """Of a streaming session after that fact; `before` it, None is unknown."""
    match fact.what:
        case "opened":
            return 0
        case "history" | "forked" | "truncated":
            return fact.tokens
        case "turn_accepted":
            return fact.tokens - _read_numbers(fact.detail)["new"]
        case _:
            return before


def _is_cut(demotion: SessionFact, facts: Sequence[SessionFact]) -> bool:
    """Whether it came with a cut, and without pages that went to the cache. All facts of one command have one time."""
    same = {fact.what for fact in facts if fact.time_s == demotion.time_s}
    return "truncated" in same and "demote" not in same


def _describe_state(facts: Iterable[SessionFact]) -> str:
    return next((f"closed ({fact.detail})" for fact in facts if fact.what == "closed"), "open")


def _cells(fact: SessionFact, told: str) -> tuple[str, ...]:
    time = _local(fact.time_s).isoformat(timespec="milliseconds")[11:23]
    return (time, str(fact.step), fact.what.replace("_", " "), fact.turn_id, told)


def _local(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s).astimezone()


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _read_numbers(detail: str) -> dict[str, int]:
    """Of `slot=46 tree=0 computed=9`."""
    return {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", detail)}


def _explain_absence(history: History, session_id: str) -> str:
    names = dict.fromkeys(fact.session_id for fact in reversed(history.facts))
    shown = ", ".join(list(names)[:_NAMES_MAX]) + (f" and {len(names) - _NAMES_MAX} more" * (len(names) > _NAMES_MAX))
    known = f"sessions of that time, the newest first: {shown}" if names else "nothing happened to any session"
    return "\n".join((f"nothing is remembered of a session {session_id}; {known}", *_note_dropped(history)))


def _note_dropped(history: History) -> list[str]:
    if not history.facts_dropped:
        return []
    oldest = f": what is told begins at {_local(history.facts[0].time_s):%H:%M:%S}" if history.facts else ""
    return [f"{_count(history.facts_dropped, 'older fact')} of all sessions are not kept any more{oldest}"]
