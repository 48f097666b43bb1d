"""The core's limits, validated in one gate, then frozen."""

from dataclasses import asdict, dataclass

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

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
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

    @property
    def pool_tokens(self) -> int:
        """Tokens that the empty pool holds."""
        return (self.pool_pages - 1) * self.page_size
