"""Which refusals a command must meet, told from the simulator's own records."""

from math import isfinite

from engine.core.commands import Open, Submit
from engine.core.config import CoreConfig
from engine.core.errors import RefusalReason
from engine.core.ids import SessionId, count_ids, unpack_ids
from engine.core.sampling import Sampling
from tests.sim.records import SessionRecord, TurnRecord

Expected = tuple[tuple[RefusalReason, ...], tuple[RefusalReason, ...]]
"""Reasons of which one must be given when there are any, and reasons that may be given besides."""


def expect_open(command: Open, config: CoreConfig, sessions: dict[SessionId, SessionRecord]) -> Expected:
    """Refusals of Open."""
    reasons: list[RefusalReason] = []
    if command.session_id in sessions:
        reasons.append(RefusalReason.SESSION_EXISTS)
    if len(sessions) >= config.sessions_max:
        reasons.append(RefusalReason.SESSION_LIMIT)
    if command.streaming and not config.streaming_sessions:
        reasons.append(RefusalReason.STREAMING_DISABLED)
    if command.idle_timeout_s is not None and not (isfinite(command.idle_timeout_s) and command.idle_timeout_s > 0):
        reasons.append(RefusalReason.IDLE_TIMEOUT_INVALID)
    return tuple(reasons), ()


def expect_submit(
    command: Submit, config: CoreConfig, session: SessionRecord | None, live: list[TurnRecord]
) -> Expected:
    """Refusals of Submit. `session` is the open one of that name; `live` are all accepted turns without an end."""
    reasons = _input_reasons(command, config)
    maybe: list[RefusalReason] = []
    base_len = 0
    if command.session_id is None:
        reasons += [RefusalReason.PARENT_WITHOUT_SESSION] if command.parent is not None else []
        names = [turn.turn_id for turn in live if turn.session_id is None]
        reasons += [RefusalReason.TURN_EXISTS] if command.turn_id in names else []
    elif session is None or session.is_closing:
        reasons.append(RefusalReason.SESSION_UNKNOWN)
    else:
        reasons += _streaming_reasons(command, session) if session.streaming else []
        reasons += _ordinary_reasons(command, session, config) if not session.streaming else []
        maybe += [RefusalReason.TURN_EXISTS] if session.streaming and command.turn_id in session.nodes else []
        base = session.history if session.streaming else session.nodes.get(command.parent) if command.parent else None
        base_len = len(base) if base else 0
    prompt_len = base_len + count_ids(command.input_ids)
    reasons += [RefusalReason.PROMPT_EXCEEDS_CONTEXT] if prompt_len >= config.context_len else []
    reasons += [RefusalReason.PROMPT_EXCEEDS_POOL] if prompt_len >= config.pool_tokens else []
    num_new = sum(turn.attempts == 0 for turn in live)
    reasons += [RefusalReason.QUEUE_FULL] if num_new >= config.waiting_max else []
    return tuple(reasons), tuple(maybe)


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
    return reasons


def _is_valid(sampling: Sampling) -> bool:
    is_seed = 0 <= sampling.seed < 2**63
    is_top = sampling.top_k >= 0 and 0 < sampling.top_p <= 1
    return is_seed and is_top and isfinite(sampling.temperature) and sampling.temperature >= 0


def _streaming_reasons(command: Submit, session: SessionRecord) -> list[RefusalReason]:
    reasons: list[RefusalReason] = []
    if session.live:
        reasons.append(RefusalReason.SESSION_BUSY)
    if command.turn_id in session.live:
        reasons.append(RefusalReason.TURN_EXISTS)
    if command.parent is not None and command.parent != session.last_turn:
        reasons.append(RefusalReason.STREAMING_APPENDS_ONLY)
    return reasons


def _ordinary_reasons(command: Submit, session: SessionRecord, config: CoreConfig) -> list[RefusalReason]:
    reasons: list[RefusalReason] = []
    if command.turn_id in session.live or command.turn_id in session.nodes:
        reasons.append(RefusalReason.TURN_EXISTS)
    if len(session.live) >= config.session_turns_max:
        reasons.append(RefusalReason.SESSION_TURNS_LIMIT)
    if len(session.nodes) + len(session.live) >= config.session_nodes_max:
        reasons.append(RefusalReason.SESSION_TURNS_LIMIT)
    if command.parent in session.live:
        reasons.append(RefusalReason.PARENT_UNFINISHED)
    elif command.parent is not None and command.parent not in session.nodes:
        reasons.append(RefusalReason.PARENT_UNKNOWN)
    return reasons
