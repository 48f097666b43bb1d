"""The core's limits, validated in one gate, then frozen."""

from dataclasses import asdict, dataclass

from engine.core.ids import pages_for
from engine.core.pool_needs import TurnNeeds
from engine.core.states import STATES_A_TURN

VOCAB_MAX = 2**31


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Everything that can grow in the core has its limit here. Raises ValueError, naming the field, on a bad value."""

    page_size: int
    """Tokens a page."""
    pool_pages: int
    """Pages of the full pool, the padding page 0 included."""
    num_rows: int
    """Request rows, the padding row 0 included."""
    context_len: int
    """Tokens a sequence may have, generated ones included."""
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    chunk_tokens: int = 512
    """Most query tokens of one request in a step, drafts not counted."""
    step_tokens: int = 2048
    """Most query tokens of a step."""
    running_max: int = 64
    """Most requests that hold a row and run at once."""
    new_token_ratio: float = 0.1
    """Share of the tokens that running turns may still generate for which admission keeps room, from 0 to 1. Higher
    means fewer retractions and fewer turns at once. Each retraction raises the share, each step without one lowers it
    back to this, and so does an idle moment at once."""
    retractions_max: int = 3
    """How often a turn may be retracted. After the last time it comes in again only with room for all its tokens."""
    waiting_max: int = 1024
    """Most new turns of sessions, and as many without a session, that wait; retracted ones do not count."""
    priority_arrivals: int = 64
    """How many later arrivals one level of priority is worth: a turn is never overtaken by more, a level apart."""
    prefix_wait_tokens: int = 64
    """A turn waits for another's prompt that is being computed when that saves it so many tokens."""
    draft_tokens_max: int = 8
    """Most tokens a step that a turn may have guessed and verified."""
    in_flight_max: int = 1
    """Plans that may be out before the oldest is answered: 1, or 2 for overlap."""
    sessions_max: int = 1024
    session_nodes_max: int = 4096
    """Most finished turns an ordinary session remembers."""
    session_turns_max: int = 16
    """Most branches of an ordinary session that may run or wait at once."""
    history_tokens_max: int = 32 * 1024 * 1024
    """Sessions take no more turns, and are not forked, once all histories have so many tokens (of 4 bytes each)."""
    idle_timeout_s: float = 3600.0
    """After how long without a turn a session expires, unless Open says otherwise."""
    streaming_sessions: bool = True
    """False takes the session-aware decorator off: streaming sessions are then refused by name."""
    prefix_cache: bool = True
    """False keeps no KV of finished stateless and ordinary turns."""
    window: int | None = None
    """Tokens that a token attends to in the model's sliding-window layers, its own included; None: it has none."""
    swa_pages: int = 0
    """Pages of the SWA pool, the padding page 0 included; 0 without such layers."""
    state_slots: int = 0
    """State slots of the Mamba pool, the padding slot 0 included; 0 without recurrent layers."""
    state_interval: int = 256
    """Tokens between two states of one sequence that the cache may keep, rounded up to whole pages."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name in ("swa_pages", "state_slots", "new_token_ratio"):
                continue  # 0 has a meaning: see below
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if not 0 < self.idle_timeout_s < float("inf"):
            raise ValueError(f"idle_timeout_s must be above 0 and finite, not {self.idle_timeout_s}")
        if not 0 <= self.new_token_ratio <= 1:
            raise ValueError(f"new_token_ratio must be from 0 to 1, not {self.new_token_ratio}")
        if self.vocab_size > VOCAB_MAX:
            raise ValueError(f"vocab_size must be at most {VOCAB_MAX}, not {self.vocab_size}: ids are kept as int32")
        at_once = min(self.running_max, self.num_rows - 1)
        if self.step_tokens < at_once:
            raise ValueError(
                f"step_tokens must be at least {at_once}, not {self.step_tokens}: so many turns may run at once "
                "(running_max, or the rows there are), and each of them advances in every step"
            )
        if self.pool_pages < 2:
            raise ValueError(f"pool_pages must be at least 2 (page 0 is padding), not {self.pool_pages}")
        if self.num_rows < 2:
            raise ValueError(f"num_rows must be at least 2 (row 0 is padding), not {self.num_rows}")
        if self.in_flight_max > 2:
            raise ValueError(f"in_flight_max must be 1 or 2, not {self.in_flight_max}")
        if any(not 0 <= eos < self.vocab_size for eos in self.eos_ids):
            raise ValueError(f"eos_ids {self.eos_ids} must be below vocab_size {self.vocab_size}")
        self._check_kinds()

    def _check_kinds(self) -> None:
        """One turn alone has to find room in each pool, whatever it does."""
        if (self.window is None) != (self.swa_pages == 0):
            raise ValueError(f"a window of {self.window} tokens and {self.swa_pages} swa_pages: both, or neither")
        if self.window is not None and self.swa_pages - 1 < self.swa_turn_pages:
            raise ValueError(
                f"swa_pages must be at least {1 + self.swa_turn_pages} (page 0 is padding), not {self.swa_pages}: one "
                f"turn may need two windows of {self.window} tokens and what it computes in a step"
            )
        if self.state_slots and self.state_slots - 1 < STATES_A_TURN:
            raise ValueError(
                f"state_slots must be 0, or at least {1 + STATES_A_TURN} (slot 0 is padding), not {self.state_slots}: "
                f"one turn may need {STATES_A_TURN}"
            )

    @property
    def needs(self) -> TurnNeeds:
        """What one turn may need of each pool."""
        return TurnNeeds(
            page_size=self.page_size,
            context_len=self.context_len,
            chunk_tokens=self.chunk_tokens,
            in_flight_max=self.in_flight_max,
            draft_tokens_max=self.draft_tokens_max,
            window=self.window,
            has_states=self.state_slots > 0,
        )

    @property
    def drafts_max(self) -> int:
        """As `draft_tokens_max`, but none with recurrent layers: see `TurnNeeds`, as for those below."""
        return self.needs.drafts_max

    @property
    def checkpoint_interval(self) -> int:
        """`state_interval` in whole pages."""
        return pages_for(self.state_interval, self.page_size) * self.page_size

    @property
    def cut_back_max(self) -> int:
        return self.needs.cut_back_max

    @property
    def swa_span_pages(self) -> int:
        return self.needs.swa_span_pages

    @property
    def swa_pin_pages(self) -> int:
        return self.needs.swa_pin_pages

    @property
    def swa_turn_pages(self) -> int:
        """SWA pages with which any one turn can run alone."""
        return self.needs.swa_pages

    @property
    def pool_tokens(self) -> int:
        """Tokens that the empty pool holds."""
        return (self.pool_pages - 1) * self.page_size
