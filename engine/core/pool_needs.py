"""What one turn may need of each pool: the one formula by which pools are sized, checked and admitted to."""

from dataclasses import dataclass

from engine.core.ids import pages_for
from engine.core.states import STATES_A_TURN
from engine.core.window import leave_pages, window_pages


@dataclass(frozen=True, slots=True)
class TurnNeeds:
    """Limits of a turn, and what follows from them. One place, for one turn at once, is:

    pages        of its whole context
    SWA pages    two windows, that in which it computes and that of its last commit, a third one with states, that of
                 its checkpoint, and what its plans in flight compute; never more than its context has
    states       STATES_A_TURN
    """

    page_size: int
    """Tokens a page."""
    context_len: int
    chunk_tokens: int
    """Most query tokens of one turn in a plan, drafts not counted."""
    in_flight_max: int
    """Plans that may be out."""
    draft_tokens_max: int
    """Most guesses of one turn in a plan that may be asked for."""
    window: int | None
    """Tokens of the window of the SWA layers; None: the model has none."""
    has_states: bool
    """Whether the model has recurrent layers."""

    @property
    def drafts_max(self) -> int:
        """Most guesses of one turn in a plan: none with states, which can't go back to before a wrong one."""
        return 0 if self.has_states else self.draft_tokens_max

    @property
    def cut_back_max(self) -> int:
        """Tokens by which a turn that generates may be cut once they are answered, and still find its window: those of
        one step, drafts included, and of the step behind it."""
        return self.drafts_max + 2

    @property
    def full_pages(self) -> int:
        """Pages of the full pool."""
        return pages_for(self.context_len, self.page_size)

    @property
    def swa_span_pages(self) -> int:
        """Most SWA pages that a running turn holds for itself: a window, and what plans in flight compute."""
        assert self.window is not None, "no window, no span"
        tokens = self.window + self.cut_back_max + self.in_flight_max * (self.chunk_tokens + self.drafts_max)
        return pages_for(tokens, self.page_size) + 3

    @property
    def swa_pin_pages(self) -> int:
        """Most SWA pages of the window of a session's last commit, or of a prefix of the cache, and what of the cache's
        is not worth giving up yet."""
        assert self.window is not None, "no window, nothing to pin"
        return window_pages(self.window, self.page_size) + leave_pages(self.window, self.page_size) - 1

    @property
    def swa_pages(self) -> int:
        """Pages of the SWA pool; 0 without such layers."""
        if self.window is None:
            return 0
        num_pins = 2 if self.has_states else 1
        return min(self.full_pages + 1, self.swa_span_pages + num_pins * self.swa_pin_pages)

    @property
    def states(self) -> int:
        """State slots; 0 without recurrent layers."""
        return STATES_A_TURN if self.has_states else 0
