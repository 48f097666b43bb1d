"""Fewer points than samples, so that no spike is lost: of each pixel's samples the highest and the lowest stay."""

from collections.abc import Iterator, Sequence

from services.report.scales import PLOT_WIDTH

NUM_COLUMNS = int(PLOT_WIDTH)
"""One a pixel."""


def pick_extremes(series: Sequence[Sequence[float | None]], num_columns: int = NUM_COLUMNS) -> list[int]:
    """Indices of the samples to draw, in order; `series` are of one length and are drawn together.

    Samples are taken as they are, never mixed. Up to `num_columns` of them all are drawn. Of more, each column keeps
    for every series the first sample at which it is lowest and the first at which it is highest; the first and the last
    sample stay as well. Then samples that equal the drawn one before them go: a step line looks the same without them.
    """
    num_samples = len(series[0]) if series else 0
    if num_samples <= num_columns:
        chosen = range(num_samples)
        return _drop_repeats(series, chosen)
    kept = {0, num_samples - 1}
    for column in range(num_columns):
        start, stop = column * num_samples // num_columns, (column + 1) * num_samples // num_columns
        for values in series:
            kept.update(_find_extremes(values, start, stop))
    return _drop_repeats(series, sorted(kept))


def _find_extremes(values: Sequence[float | None], start: int, stop: int) -> Iterator[int]:
    """The lowest and the highest one, and one that is absent."""
    present = [index for index in range(start, stop) if values[index] is not None]
    if present:
        yield min(present, key=lambda index: values[index] or 0.0)
        yield max(present, key=lambda index: values[index] or 0.0)
    if len(present) < stop - start:
        yield next(index for index in range(start, stop) if values[index] is None)


def _drop_repeats(series: Sequence[Sequence[float | None]], indices: Sequence[int]) -> list[int]:
    drawn: list[int] = []
    for index in indices:
        if not drawn or any(values[index] != values[drawn[-1]] for values in series):
            drawn.append(index)
    return drawn
