"""The whole server in this process, over the shadow executor and a tokenizer of bytes, with a client of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from grpc import aio
from grpc_reflection.v1alpha import reflection_pb2
from tokenizers import pre_tokenizers

from engine.executor.protocol import Capabilities
from services.client import Client, Turn, connect
from services.config import ServeConfig
from services.loading import LoadedModel, Loader, Progress
from services.server import Announcer, Server
from services.tokenization.chat import ChatTemplate
from services.tokenization.tokenizer import Tokenizer, byte_level_encoders
from services.tokenization.vocabulary import NORMAL, Vocabulary, byte_alphabet
from tests.kit.shadow_executor import ShadowExecutor, shadow_capabilities

CONFIG = ServeConfig(port=0, page_size=4, pool_tokens=252, rows=7, context_len=128, chunk_tokens=8, full_check_steps=1)

NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})


def byte_tokenizer(prompt_prefix_ids: tuple[int, ...] = ()) -> Tokenizer:
    """256 tokens, one a byte."""
    alphabet = byte_alphabet()
    vocabulary = Vocabulary([alphabet[byte] for byte in range(256)], [NORMAL] * 256)
    encoders = byte_level_encoders(vocabulary, [], pre_tokenizers.ByteLevel(add_prefix_space=False))
    return Tokenizer(vocabulary, encoders, prompt_prefix_ids)


@dataclass(slots=True)
class ServerRig:
    executor: ShadowExecutor
    stop: asyncio.Event
    run: asyncio.Task[int]
    client: Client
    target: str
    health: str | None
    """The probe port's address, where there is one."""
    metrics: str | None = None
    """Where metrics are scraped, where they are."""

    async def collect(self, turn: Turn) -> list[int]:
        return [token_id async for piece in turn for token_id in piece.token_ids]


@dataclass(slots=True)
class Lines:
    """What the server announces."""

    ready: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    health: str | None = None
    metrics: str | None = None
    told: list[str] = field(default_factory=list)

    def hear(self, line: str) -> None:
        self.told.append(line)
        if line.startswith("ready on "):
            self.ready.set_result(line.removeprefix("ready on "))
        if line.startswith("health on "):
            self.health = line.removeprefix("health on ")
        if line.startswith("metrics on "):
            self.metrics = line.removeprefix("metrics on ")


@dataclass(frozen=True, slots=True)
class Serving:
    stop: asyncio.Event
    run: asyncio.Task[int]
    target: str
    lines: Lines


@asynccontextmanager
async def serving(
    config: ServeConfig, load: Loader, environment: Mapping[str, str] = NO_ENVIRONMENT
) -> AsyncIterator[Serving]:
    """A server that is ready; stopped at the end."""
    lines, stop = Lines(), asyncio.Event()
    server = Server(config, Announcer(lines.hear, lambda _done, _what: None), load, environment=environment)
    run = asyncio.create_task(server.run(stop))
    try:
        async with asyncio.timeout(60):
            await asyncio.wait((run, lines.ready), return_when=asyncio.FIRST_COMPLETED)
        assert lines.ready.done(), f"the server did not start: {server.start_failure}"
        yield Serving(stop, run, lines.ready.result(), lines)
    finally:
        stop.set()
        await run


@asynccontextmanager
async def running_server(
    config: ServeConfig = CONFIG,
    build_template: Callable[[Tokenizer], ChatTemplate | None] = lambda _tokenizer: None,
    capabilities: Capabilities | None = None,
    environment: Mapping[str, str] = NO_ENVIRONMENT,
) -> AsyncIterator[ServerRig]:
    """`capabilities`: of the shadow executor; its usual ones fit `CONFIG`. `environment`: of the process."""
    executor = ShadowExecutor(capabilities or shadow_capabilities())

    async def load(_config: ServeConfig, _progress: Progress) -> LoadedModel:
        tokenizer = byte_tokenizer()
        return LoadedModel(executor, tokenizer, build_template(tokenizer), ())

    async with serving(config, load, environment) as server, connect(server.target) as client:
        lines = server.lines
        yield ServerRig(executor, server.stop, server.run, client, server.target, lines.health, lines.metrics)


async def list_services(target: str) -> list[str]:
    """What a client such as grpcurl sees, without our protos."""
    async with aio.insecure_channel(target) as channel:
        ask = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        answers = [answer async for answer in call]
    return [service.name for service in answers[0].list_services_response.service]
