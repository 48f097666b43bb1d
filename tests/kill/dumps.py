"""What a dump says, in a few words."""

from collections.abc import Sequence

from tests.kill.server_log import Entry


def verdict(dump: Entry) -> str:
    """What it says first. Raises AssertionError when that is not whether the books balance."""
    heads = [line for line in dump.lines if line and not line.startswith(" ")]
    place = next((place for place, line in enumerate(heads) if line.startswith("books: ")), None)
    assert place is not None, f"the dump does not tell of the books: {dump.lines[:10]}"
    assert place <= 2, f"the books come late in the dump: {heads[:6]}"
    return "books DO NOT BALANCE" if "DO NOT BALANCE" in heads[place] else "books balance"


def blame(dump: Entry) -> str:
    """Whose fault it says it is: the model's, the loop's or the books'. Raises AssertionError: it does not say."""
    found = [line for line in dump.lines if line.startswith("why: the books ")]
    assert found, f"the dump does not say whether it is the books' fault: {dump.lines[:10]}"
    return found[0].removeprefix("why: ").partition(";")[0]


def threads(dump: Entry) -> dict[str, list[str]]:
    """Names of threads → their frames, innermost last."""
    found: dict[str, list[str]] = {}
    name = None
    for line in dump.lines:
        if line.startswith("thread: "):
            name = line.removeprefix("thread: ")
            found[name] = []
        elif line.startswith("  ") and name is not None:
            found[name].append(line.strip())
        else:
            name = None
    return found


def main_thread(dump: Entry) -> list[str]:
    """Frames of the event loop's thread, innermost last. Raises AssertionError: they are not told."""
    for name, frames in threads(dump).items():
        if name.startswith("MainThread"):
            assert frames, f"no frame of the main thread: {dump.lines}"
            return frames
    raise AssertionError(f"the main thread is not in the dump: {sorted(threads(dump))}")


def executor_thread(dump: Entry) -> list[str]:
    """Frames of the thread that computes, innermost last. Raises AssertionError: they are not told."""
    for frames in threads(dump).values():
        if any("executor" in frame for frame in frames):
            return frames
    raise AssertionError(f"the executor's thread is not in the dump: {sorted(threads(dump))}")


def function_of(frame: str) -> str:
    """`path:line function: source` → `path function`."""
    place, _, rest = frame.partition(" ")
    return f"{place.rpartition(':')[0]} {rest.partition(':')[0]}"


def ours(frames: Sequence[str]) -> str:
    """The innermost frame of our own code, for people."""
    rooms = ("engine/", "services/", "telemetry/")
    own = [frame for frame in frames if frame.startswith(rooms)]
    assert own, f"none of our code in {frames}"
    return f"`{function_of(own[-1])}`"
