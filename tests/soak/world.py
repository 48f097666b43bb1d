"""What scenarios play with: a connection, the client's books, and seeded choices."""

import asyncio
import hashlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Unpack

from protos.v1 import generate_pb2, generate_pb2_grpc
from services.client import Client, ClientSession, SessionTurnOptions
from services.client.errors import answer
from services.client.requests import Message, TurnInput, build_request
from tests.soak.ledger import Ledger
from tests.soak.stream import TurnStream

_WORDS = (
    "river stone lantern copper window garden thunder silver market letter engine forest "
    "winter bottle ladder compass harbor candle meadow bridge paper orange hollow violet"
)
WORDS = tuple(_WORDS.split())
SHARED_PROMPTS = tuple(f"Chapter {number}. " + " ".join(WORDS[number:] + WORDS[:number]) * 2 for number in range(6))
"""Prompts that come again and again, so that the prefix cache has them."""
IDLE_TIMEOUT_S = 60.0
"""Of sessions that are closed by hand: the server's setting."""
ALWAYS_EXPECTED = frozenset({"FORWARD_FAILED"})
"""3 % of the forwards fail on purpose."""


@dataclass(slots=True)
class World:
    """One worker's."""

    client: Client
    # In quotes: the class exists in the published types only.
    generate: "generate_pb2_grpc.GenerateAsyncStub"
    ledger: Ledger
    rng: random.Random
    name: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    # Choices

    def prompt(self, words_min: int = 3, words_max: int = 40) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(words_min, words_max)))

    def options(self, max_tokens: int | None = None) -> SessionTurnOptions:
        """Greedy or sampled, with guesses or without, to its length or as the model likes."""
        rng = self.rng
        options = SessionTurnOptions(
            max_tokens=rng.randint(4, 24) if max_tokens is None else max_tokens, ignore_eos=rng.random() < 0.7
        )
        if rng.random() < 0.4:
            options["temperature"] = rng.choice((0.5, 0.8, 1.2))
            options["top_k"] = rng.choice((0, 20))
            options["top_p"] = rng.choice((0.8, 1.0))
            options["seed"] = rng.randrange(2**63)
        if rng.random() < 0.3:
            options["draft_tokens"] = rng.randint(1, 8)
        if rng.random() < 0.2:
            options["stop"] = (rng.choice(("the", ".", "and")),)
        if rng.random() < 0.3:
            options["priority"] = rng.randint(-5, 5)
        return options

    def new_name(self, kind: str) -> str:
        return f"{kind}-{self.name}-{next(self._numbers)}"

    # Calls

    async def open(self, *, streaming: bool = True, idle_timeout_s: float | None = None) -> ClientSession:
        """Raises TenureError."""
        session = self.client.session(self.new_name("s"), streaming=streaming, idle_timeout_s=idle_timeout_s)
        await session.open()
        self.ledger.sessions_opened += 1
        return session

    async def fork(self, session: ClientSession, at_turn: str | None = None) -> ClientSession:
        """Raises TenureError."""
        fork = await session.fork(self.new_name("f"), at_turn=at_turn)
        self.ledger.sessions_opened += 1
        return fork

    def build(
        self,
        given: TurnInput,
        session: ClientSession | None = None,
        *,
        parent: str | None = None,
        **options: Unpack[SessionTurnOptions],
    ) -> generate_pb2.GenerateRequest:
        request = build_request(given, self.new_name("t"), options)
        if session is not None:
            request.session_id = session.session_id
        if parent is not None:
            request.parent_turn_id = parent
        return request

    def send(self, request: generate_pb2.GenerateRequest, timeout_s: float | None = None) -> TurnStream:
        return TurnStream(self.generate.Generate(request, timeout=timeout_s), self.ledger)

    def turn(
        self,
        session: ClientSession | None = None,
        *,
        prompt: str | None = None,
        max_tokens: int | None = None,
        parent: str | None = None,
    ) -> TurnStream:
        """A turn of any kind, under way."""
        text = self.prompt() if prompt is None else prompt
        is_chat = prompt is None and parent is None and self.rng.random() < 0.2
        given = TurnInput(messages=(Message("user", text),)) if is_chat else TurnInput(text=text)
        return self.send(self.build(given, session, parent=parent, **self.options(max_tokens)))

    def resume(self, lost: TurnStream) -> TurnStream:
        """Goes on with a turn whose stream was lost."""
        assert lost.key is not None, "a turn that has not started can not be resumed"
        held = b"".join(token_id.to_bytes(4, "little", signed=True) for token_id in lost.ids)
        request = generate_pb2.ResumeRequest(
            session_id=lost.key.session_id or None,
            turn_id=lost.key.turn_id,
            from_token=len(lost.ids),
            held_ids_sha256=hashlib.sha256(held).digest(),
        )
        return TurnStream(self.generate.Resume(request), self.ledger, tuple(lost.ids))

    async def abort(self, stream: TurnStream) -> None:
        """Raises TenureError."""
        assert stream.key is not None, "a turn that has not started has no name here"
        request = generate_pb2.AbortRequest(session_id=stream.key.session_id or None, turn_id=stream.key.turn_id)
        await answer(self.generate.Abort(request))

    # Ends

    async def finish(self, what: str, stream: TurnStream, *expected: str) -> None:
        """Reads to the end, which has to be a good one or one that is expected."""
        await stream.read_all()
        self.judge(what, stream, *expected)

    async def finish_all(self, what: str, streams: list[TurnStream], *expected: str) -> None:
        await asyncio.gather(*(self.finish(what, stream, *expected) for stream in streams))

    def judge(self, what: str, stream: TurnStream, *expected: str) -> None:
        error = stream.error
        if error is None:
            return
        if error.reason not in ALWAYS_EXPECTED and error.reason not in expected:
            self.ledger.surprises[f"{what}: {error}"] += 1
        elif stream.key is None:
            self.ledger.refusals[error.reason] += 1

    async def pause(self, longest_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(0, longest_s))
