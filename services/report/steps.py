"""Step lines and areas in whole numbers: a sample's value holds from its beginning until the next drawn one's."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.report.markup import Markup, element
from services.report.scales import LEFT, PLOT_WIDTH, Span, ValueScale

_FINE_SPAN_S = 120.0


@dataclass(frozen=True, slots=True)
class StepGrid:
    """Where the drawn samples begin, in whole units of time from the span's start, and where the last of them ends.

    Values stay the numbers that they are: the picture scales them, so areas that stack exactly do so in the page, too.
    """

    edges: tuple[int, ...]
    """One more than there are samples."""
    units_per_s: int

    def trace(self, values: Sequence[int]) -> str:
        """The line of these values, one for each sample, from left to right."""
        return f"M{self.edges[0]} {values[0]}{self._follow(values)}"

    def fill(self, values: Sequence[int]) -> str:
        """The area from 0 up to the line of these values."""
        return f"M{self.edges[0]} 0V{values[0]}{self._follow(values)}V0z"

    def place(self, span: Span, scale: ValueScale, *paths: Markup) -> Markup:
        """Puts paths of this grid on the plot. `scale` is linear."""
        across = PLOT_WIDTH / (span.length_s * self.units_per_s)
        up = scale.height / scale.top
        move = f"translate({LEFT:.0f} {scale.base_y:.1f}) scale({across:.8g} {-up:.8g})"
        return element("g", *paths, transform=move)

    def _follow(self, values: Sequence[int]) -> str:
        parts: list[str] = []
        since = self.edges[0]
        for index in range(1, len(values)):
            if rise := values[index] - values[index - 1]:
                parts.append(f"h{self.edges[index] - since}v{rise}")
                since = self.edges[index]
        parts.append(f"h{self.edges[-1] - since}")
        return "".join(parts)


def lay_grid(span: Span, starts_s: Sequence[float], end_s: float) -> StepGrid:
    """`starts_s`: when each drawn sample begins."""
    units_per_s = 1000 if span.length_s <= _FINE_SPAN_S else 10
    edges = tuple(round((time_s - span.start_s) * units_per_s) for time_s in (*starts_s, end_s))
    return StepGrid(edges, units_per_s)
