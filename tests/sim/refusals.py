"""Which refusals a command must meet, told from the simulator's own records."""

from collections.abc import Mapping
from math import isfinite

from engine.core.commands import Fork, OnAbort, Open, Submit, Truncate, TurnMode
from engine.core.config import CoreConfig
from engine.core.errors import RefusalReason
from engine.core.ids import Rid, SessionId, count_ids, unpack_ids
from engine.core.sampling import Sampling
from tests.sim.records import SessionRecord, TurnRecord
from tests.sim.turns import Compiled, compile_turn, count_tokens

Expected = tuple[tuple[RefusalReason, ...], tuple[RefusalReason, ...]]
"""Reasons of which one must be given when there are any, and reasons that may be given besides."""
Sessions = Mapping[SessionId, SessionRecord]
PRIORITY_MAX = 1000


def expect_open(command: Open, config: CoreConfig, sessions: Sessions) -> Expected:
    """Refusals of Open."""
    reasons = _new_session_reasons(command.session_id, config, sessions)
    if command.streaming and not config.streaming_sessions:
        reasons.append(RefusalReason.STREAMING_DISABLED)
    if command.idle_timeout_s is not None and not (isfinite(command.idle_timeout_s) and command.idle_timeout_s > 0):
        reasons.append(RefusalReason.IDLE_TIMEOUT_INVALID)
    if abs(command.priority) > PRIORITY_MAX:
        reasons.append(RefusalReason.PRIORITY_INVALID)
    return tuple(reasons), ()


def _gone_reason(session: SessionRecord | None) -> RefusalReason:
    return RefusalReason.SESSION_UNKNOWN if session is None else RefusalReason.SESSION_CLOSING


def _new_session_reasons(name: SessionId, config: CoreConfig, sessions: Sessions) -> list[RefusalReason]:
    reasons = [RefusalReason.SESSION_EXISTS] if name in sessions else []
    return reasons + ([RefusalReason.SESSION_LIMIT] if len(sessions) >= config.sessions_max else [])


def expect_fork(command: Fork, config: CoreConfig, sessions: Sessions) -> Expected:
    """Refusals of Fork."""
    reasons = _new_session_reasons(command.new_session_id, config, sessions)
    source = sessions.get(command.session_id)
    added = sum(len(node.path) for node in source.nodes.values()) + len(source.history) if source is not None else 0
    must, maybe = _history_reasons(config, sessions, added)
    if source is None or source.is_closing:
        return (*reasons, _gone_reason(source), *must), maybe
    if command.at_turn is not None and command.at_turn not in source.nodes:
        return (*reasons, RefusalReason.PARENT_UNKNOWN, *must), (*maybe, RefusalReason.LENGTH_INVALID)
    if command.at_len is not None and not 0 <= command.at_len <= forked_len(command, source):
        reasons.append(RefusalReason.LENGTH_INVALID)
    return (*reasons, *must), maybe


def forked_len(command: Fork, source: SessionRecord) -> int:
    """Tokens up to the point, before `at_len`."""
    if command.at_turn is None:
        return source.history_len
    return len(source.nodes[command.at_turn].path)


def expect_truncate(command: Truncate, sessions: Sessions) -> Expected:
    """Refusals of Truncate."""
    session = sessions.get(command.session_id)
    if session is None or session.is_closing:
        return (_gone_reason(session),), ()
    reasons = [RefusalReason.SESSION_BUSY] if session.live else []
    if not 0 <= command.length <= session.history_len:
        reasons.append(RefusalReason.LENGTH_INVALID)
    return tuple(reasons), ()


def _history_reasons(config: CoreConfig, sessions: Sessions, added: int) -> Expected:
    """`added`: what the command may put there, at most; whether that counts is open."""
    least, most = count_tokens(sessions.values())
    if most + added < config.history_tokens_max:
        return (), ()
    return ((RefusalReason.HISTORY_LIMIT,) if least >= config.history_tokens_max else ()), (
        RefusalReason.HISTORY_LIMIT,
    )


def expect_submit(
    command: Submit, config: CoreConfig, sessions: Sessions, live: list[TurnRecord]
) -> tuple[Expected, Compiled]:
    """Refusals of Submit, and what it does when it meets none. `live` are all accepted turns without an end."""
    must = _input_reasons(command, config)
    maybe: list[RefusalReason] = []
    compiled = Compiled([])
    if command.session_id is None:
        _add_stateless_reasons(command, live, must, maybe)
    else:
        session = sessions.get(command.session_id)
        limit, perhaps = _history_reasons(config, sessions, config.context_len)
        must += limit
        maybe += perhaps
        if session is None or session.is_closing:
            must.append(_gone_reason(session))
        else:
            turns = {turn.rid: turn for turn in live}
            compiled = compile_turn(command, session, turns)
            add = _add_streaming_reasons if session.streaming else _add_ordinary_reasons
            add(command, session, config, turns, compiled, must, maybe)
    prompt_len = len(compiled.base) + count_ids(command.input_ids)
    must += [RefusalReason.PROMPT_EXCEEDS_CONTEXT] if prompt_len >= config.context_len else []
    must += [RefusalReason.PROMPT_EXCEEDS_POOL] if prompt_len >= config.pool_tokens else []
    lane = [turn for turn in live if turn.attempts == 0 and (turn.session_id is None) == (command.session_id is None)]
    stays = sum(turn.session_id != command.session_id or turn.turn_id not in compiled.replaced for turn in lane)
    must += [RefusalReason.QUEUE_FULL] if stays >= config.waiting_max else []
    maybe += [RefusalReason.QUEUE_FULL] if len(lane) >= config.waiting_max else []
    return (tuple(must), tuple(maybe)), compiled


def _input_reasons(command: Submit, config: CoreConfig) -> list[RefusalReason]:
    reasons: list[RefusalReason] = []
    if not command.input_ids:
        reasons.append(RefusalReason.EMPTY_PROMPT)
    if any(not 0 <= token_id < config.vocab_size for token_id in unpack_ids(command.input_ids)):
        reasons.append(RefusalReason.TOKEN_OUT_OF_RANGE)
    if command.max_tokens is not None and command.max_tokens < 1:
        reasons.append(RefusalReason.MAX_TOKENS_INVALID)
    if not _is_valid(command.sampling):
        reasons.append(RefusalReason.SAMPLING_INVALID)
    if command.priority is not None and abs(command.priority) > PRIORITY_MAX:
        reasons.append(RefusalReason.PRIORITY_INVALID)
    if not 0 <= command.draft_tokens <= (0 if config.state_slots else config.draft_tokens_max):
        reasons.append(RefusalReason.DRAFT_TOKENS_INVALID)
    return reasons


def _is_valid(sampling: Sampling) -> bool:
    is_seed = 0 <= sampling.seed < 2**63
    is_top = sampling.top_k >= 0 and 0 < sampling.top_p <= 1
    return is_seed and is_top and isfinite(sampling.temperature) and sampling.temperature >= 0


def _is_rewriting(command: Submit) -> bool:
    return command.mode is TurnMode.REPLACE or command.drop_previous_output


def _add_stateless_reasons(
    command: Submit, live: list[TurnRecord], must: list[RefusalReason], maybe: list[RefusalReason]
) -> None:
    is_of_session = command.parent is not None or command.offset is not None or command.on_abort is OnAbort.KEEP
    must += [RefusalReason.SESSION_REQUIRED] if is_of_session or _is_rewriting(command) else []
    maybe += [RefusalReason.PARENT_REQUIRED] if command.drop_previous_output else []
    names = [turn.turn_id for turn in live if turn.session_id is None]
    must += [RefusalReason.TURN_EXISTS] if command.turn_id in names else []


def _add_streaming_reasons(
    command: Submit,
    session: SessionRecord,
    config: CoreConfig,
    turns: Mapping[Rid, TurnRecord],
    compiled: Compiled,
    must: list[RefusalReason],
    maybe: list[RefusalReason],
) -> None:
    if session.live:
        must.append(RefusalReason.SESSION_BUSY)
    if command.turn_id in session.live:
        must.append(RefusalReason.TURN_EXISTS)
    elif command.turn_id in session.nodes:
        maybe.append(RefusalReason.TURN_EXISTS)
    parent = session.nodes.get(command.parent) if command.parent is not None else None
    is_offset = command.offset is not None and (command.offset != 0 or bool(session.history))
    is_elsewhere = command.parent is not None and (parent is None or len(parent.path) != len(session.history))
    if is_elsewhere or is_offset or _is_rewriting(command):
        must.append(RefusalReason.STREAMING_APPENDS_ONLY)
    maybe += [RefusalReason.PARENT_REQUIRED] if command.drop_previous_output else []
    maybe += [RefusalReason.OFFSET_INVALID] if command.offset is not None and is_offset else []


def _add_ordinary_reasons(
    command: Submit,
    session: SessionRecord,
    config: CoreConfig,
    turns: Mapping[Rid, TurnRecord],
    compiled: Compiled,
    must: list[RefusalReason],
    maybe: list[RefusalReason],
) -> None:
    nodes = [name for name in session.nodes if name not in compiled.forgotten]
    live = [name for name in session.live if name not in compiled.replaced]
    if command.turn_id in nodes or command.turn_id in live:
        must.append(RefusalReason.TURN_EXISTS)
    elif command.turn_id in session.nodes or command.turn_id in session.live:
        maybe.append(RefusalReason.TURN_EXISTS)
    if len(live) >= config.session_turns_max or len(nodes) + len(live) >= config.session_nodes_max:
        must.append(RefusalReason.SESSION_TURNS_LIMIT)
    if command.drop_previous_output and command.parent is None:
        must.append(RefusalReason.PARENT_REQUIRED)
    _add_parent_reasons(command, session, turns, compiled, must, maybe)


def _add_parent_reasons(
    command: Submit,
    session: SessionRecord,
    turns: Mapping[Rid, TurnRecord],
    compiled: Compiled,
    must: list[RefusalReason],
    maybe: list[RefusalReason],
) -> None:
    is_known = command.parent is None or command.parent in session.nodes
    if command.parent in session.live:
        is_known = command.mode is TurnMode.REPLACE
        must += [] if is_known else [RefusalReason.PARENT_UNFINISHED]
    elif not is_known:
        must.append(RefusalReason.PARENT_UNKNOWN)
    if any(turns[session.live[name]].cut is not None for name in compiled.replaced):
        must.append(RefusalReason.PARENT_UNFINISHED)
    if command.offset is None:
        return
    if not is_known:
        maybe.append(RefusalReason.OFFSET_INVALID)
    elif not 0 <= command.offset <= compiled.whole_base_len:
        must.append(RefusalReason.OFFSET_INVALID)
