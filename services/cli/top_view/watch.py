"""Looks at a server again and again, and at keys; what is shown stays when the server does not answer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from rich.text import Text

from services.cli.top_view.frame import View, render_frame
from services.cli.top_view.reading import SORTS, Reading, Server, Sort, take_reading
from services.client import TenureError

PATIENCE_S = 5.0
"""A server that needs longer for an answer does not answer."""
_TICK_S = 1.0
"""How often the time without an answer is told anew."""


class Screen(Protocol):
    """Where frames are shown."""

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def has_keys(self) -> bool: ...

    def show(self, lines: Sequence[Text]) -> None: ...


class Watch:
    """One live view. All is done on the event loop; `run` returns once `leave` was called."""

    def __init__(
        self,
        server: Server,
        screen: Screen,
        target: str,
        *,
        interval_s: float,
        sort: Sort,
        clock: Callable[[], float],
        describe: Callable[[TenureError], str],
    ) -> None:
        self._server = server
        self._screen = screen
        self._target = target
        self._interval_s = interval_s
        self._sort: Sort = sort
        self._clock = clock
        self._describe = describe
        self._reading: Reading | None = None
        self._answered_s = clock()
        self._silence: str | None = None
        """Why nobody has answered since then."""
        self._is_paused = False
        self._left = asyncio.Event()

    async def run(self) -> None:
        """Raises OSError when the terminal is gone."""
        self.draw()
        tasks = [
            asyncio.create_task(work, name=name)
            for name, work in (("look", self._look()), ("tick", self._tick()), ("leave", self._left.wait()))
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    def leave(self) -> None:
        self._left.set()

    def press(self, key: str) -> None:
        """q leaves, p stops and goes on, s goes through what the tables are sorted by. Others do nothing."""
        if key == "q":
            self.leave()
        elif key == "p":
            self._is_paused = not self._is_paused
            self.draw()
        elif key == "s":
            self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
            self.draw()

    def draw(self) -> None:
        width, height = self._screen.size
        view = View(
            self._target,
            self._reading,
            self._sort,
            silent_s=None if self._silence is None else self._clock() - self._answered_s,
            silence=self._silence or "",
            is_paused=self._is_paused,
        )
        self._screen.show(render_frame(view, width, height, self._describe_keys()))

    def _describe_keys(self) -> str:
        if not self._screen.has_keys:
            return "Ctrl-C quits"
        pause = "go on" if self._is_paused else "pause"
        return f"q quit   p {pause}   s sorted by {self._sort}   every {self._interval_s:g} s"

    async def _look(self) -> None:
        while True:
            begun_s = self._clock()
            if not self._is_paused:
                await self._take_reading(begun_s)
                self.draw()
            await asyncio.sleep(max(0.0, begun_s + self._interval_s - self._clock()))

    async def _take_reading(self, begun_s: float) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                reading = await take_reading(self._server)
        except TimeoutError:
            self._silence = f"no answer within {PATIENCE_S:g} s"
        except TenureError as error:
            self._silence = self._describe(error)
        else:
            self._reading, self._answered_s, self._silence = reading, begun_s, None

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self._silence is not None:
                self.draw()
