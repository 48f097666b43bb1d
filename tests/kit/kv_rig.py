"""An engine over the shadow executor whose KV events can be followed over gRPC, and books that follow them."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from grpc import aio

from engine.core.image import BooksImage
from engine.core.ownership import OwnerKind
from protos.v1 import admin_pb2_grpc
from services.admin import AdminServicer
from services.backend import Backend, BackendCell
from services.client import Client, KvBooks, KvBooksImage, KvEventInfo, UnitOwner, connect
from services.interceptors import ErrorInterceptor
from services.limits import server_options
from telemetry.kv.event_log import EVENTS_MAX, KvEventLog
from tests.kit.runtime_rig import QUICK, RuntimeRig, running
from tests.kit.server_rig import byte_tokenizer
from tests.kit.shadow_executor import shadow_capabilities

LOG_ID = "log-1"
BRISK = replace(QUICK, full_check_steps=100)
"""Most steps are without a proof of the books: the replay is one."""
Items = AsyncGenerator[KvBooksImage | KvEventInfo, None]


@dataclass(frozen=True, slots=True)
class Pools:
    """Units of an engine, and tokens of its window."""

    pool_pages: int = 64
    window: int | None = None
    swa_pages: int = 0
    state_slots: int = 0


@dataclass(frozen=True, slots=True)
class KvRig:
    runtime: RuntimeRig
    log: KvEventLog
    backend: Backend
    client: Client
    target: str


@asynccontextmanager
async def following(
    pools: Pools = Pools(),
    *,
    in_flight_max: int = 2,
    events_max: int = EVENTS_MAX,
) -> AsyncIterator[KvRig]:
    """An engine whose log keeps so many events, and the Admin service of it."""
    sizes = shadow_capabilities(
        pool_pages=pools.pool_pages,
        window=pools.window,
        swa_pages=pools.swa_pages,
        state_slots=pools.state_slots,
    ).pool_sizes
    log = KvEventLog(sizes, LOG_ID, events_max=events_max)
    async with running(
        sinks=(log,),
        in_flight_max=in_flight_max,
        pool_pages=pools.pool_pages,
        window=pools.window,
        swa_pages=pools.swa_pages,
        state_slots=pools.state_slots,
        runtime=BRISK,
    ) as runtime:
        backend = Backend(runtime.engine, byte_tokenizer(), None, kv_log=log)
        async with serving(backend) as target, connect(target) as client:
            yield KvRig(runtime, log, backend, client, target)


@asynccontextmanager
async def serving(backend: Backend) -> AsyncIterator[str]:
    """The Admin service alone. Returns its address."""
    cell = BackendCell()
    cell.fill(backend)
    server = aio.server(interceptors=(ErrorInterceptor(),), options=server_options())
    admin_pb2_grpc.add_AdminServicer_to_server(AdminServicer(cell, {}), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def begin_books(items: Items) -> KvBooks:
    """From the image that a stream begins with."""
    image = await anext(items)
    assert isinstance(image, KvBooksImage), "a stream begins with the books"
    return KvBooks(image)


async def replay_to(items: Items, books: KvBooks, sequence: int) -> list[KvEventInfo | KvBooksImage]:
    """Applies items until that event, or books that are further. Returns them."""
    applied: list[KvEventInfo | KvBooksImage] = []
    while books.sequence < sequence:
        item = await anext(items)
        books.apply(item)
        applied.append(item)
    return applied


def assert_same(books: KvBooks, image: BooksImage) -> None:
    """Unit by unit: owners, what is in use, what drains."""
    assert books.kinds == tuple(str(pool.pool) for pool in image.pools)
    for pool in image.pools:
        replayed, kind = books.image(pool.pool), pool.pool
        for unit, owner in enumerate(pool.owners):
            told = UnitOwner(str(owner.kind), owner.name)
            assert replayed.owners[unit] == told, f"{kind} {unit} after event {books.sequence}"
        assert replayed.protected == pool.protected, f"{kind} after event {books.sequence}"
        assert replayed.draining == pool.draining, f"{kind} after event {books.sequence}"


def owners_of(books: KvBooks, kind: str = "full") -> set[str]:
    """Kinds of owners that have something."""
    return {owner.kind for owner in books.owners(kind)[1:]} - {str(OwnerKind.FREE)}
