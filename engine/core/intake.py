"""How a turn comes in: every refusal first, then what it takes the place of ends, then it stands in the queue."""

from engine.core import admission
from engine.core.commands import AbortReason, Submit
from engine.core.config import CoreConfig
from engine.core.endings import Endings
from engine.core.errors import Refusal, RefusalReason, require
from engine.core.events import EventLog, TurnAccepted
from engine.core.ids import count_ids
from engine.core.ownership import PoolKind
from engine.core.pools import Pools
from engine.core.priorities import rank_of
from engine.core.queues import Queues
from engine.core.request import Lane, Phase, Request
from engine.core.sessions import Session, SessionController
from engine.core.turn_tree import LiveTurn
from engine.core.turns import CompiledTurn, compile_turn


class Intake:
    """Turns commands into requests that wait."""

    def __init__(
        self,
        config: CoreConfig,
        queues: Queues,
        sessions: SessionController,
        endings: Endings,
        pools: Pools,
        log: EventLog,
    ) -> None:
        self._config = config
        self._queues = queues
        self._sessions = sessions
        self._endings = endings
        self._pools = pools
        self._log = log

    def submit(self, command: Submit, now: float) -> None:
        """Accepts a turn into the queue. Raises Refusal, and then nothing has changed."""
        config = self._config
        require(command.rid not in self._queues.live, f"rid {command.rid} was minted twice")
        admission.check_input(config, command)
        session = self._sessions.find_admissible(command)
        turn = compile_turn(session, command)
        if session is not None:
            self._check_replaced(turn)
            self._sessions.check_room(session, len(turn.aborts), len(turn.forgets))
        prompt_len = count_ids(turn.ids)
        pool_tokens = self._pools.in_circulation(PoolKind.FULL) * config.page_size
        max_tokens = admission.accepted_max_tokens(
            config.context_len, pool_tokens, prompt_len, turn.base_len, command.max_tokens
        )
        lane = Lane.PLAIN if session is None else Lane.SESSIONS
        admission.check_queue(config, lane, self._queues.num_new_waiting(lane))
        # From here on nothing is refused any more.
        if session is not None:
            self._replace(session, turn, now)
        self._accept(command, session, turn, prompt_len, max_tokens)

    def _check_replaced(self, turn: CompiledTurn) -> None:
        """What is being stored can't be taken back."""
        for rid in turn.aborts:
            request = self._queues.live[rid]
            if request.phase is Phase.COMMITTING:
                message = f"turn {request.turn_id!r} is being committed, so it can't be replaced; try again later"
                reason = RefusalReason.PARENT_UNFINISHED
                raise Refusal(reason, message, field="parent_turn_id", value=request.turn_id)

    def _replace(self, session: Session, turn: CompiledTurn, now: float) -> None:
        for rid in turn.aborts:
            self._endings.abort(self._queues.live[rid], AbortReason.REPLACED, now)
        self._sessions.forget(session, turn.forgets)

    def _accept(
        self, command: Submit, session: Session | None, turn: CompiledTurn, prompt_len: int, max_tokens: int
    ) -> None:
        priority = command.priority
        if priority is None:
            priority = session.priority if session is not None else 0
        request = Request(
            rid=command.rid,
            turn_id=command.turn_id,
            session=session,
            namespace=session.namespace if session is not None else command.namespace,
            ids=bytearray(turn.ids),
            base_len=turn.base_len,
            prompt_len=prompt_len,
            max_tokens=max_tokens,
            ignore_eos=command.ignore_eos,
            sampling=command.sampling,
            rank=rank_of(self._queues.next_arrival(), priority, self._config.priority_arrivals),
            trace_id=command.trace_id,
            on_abort=command.on_abort,
            draft_tokens=command.draft_tokens,
        )
        self._pools.ledger.follow(request.owner, request.trace_id)
        self._queues.live[request.rid] = request
        self._queues.wait(request)
        prompt = turn.ids if session is not None and not session.streaming else b""
        self._sessions.begin_turn(session, request.turn_id, LiveTurn(request.rid, turn.place, prompt))
        self._log.emit(
            TurnAccepted(
                rid=request.rid,
                turn_id=request.turn_id,
                session_id=command.session_id,
                context_len=prompt_len,
                new_len=prompt_len - turn.base_len,
                max_tokens=max_tokens,
                trace_id=command.trace_id,
                caller_span=command.caller_span,
                parent=turn.place.parent,
            )
        )
