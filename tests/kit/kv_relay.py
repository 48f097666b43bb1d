"""The relay of smg's servicer with its check of hashes, as a process: `python -m tests.kit.kv_relay PUB ROUTER`.

Says on standard output, a line of JSON each, which batches it forwarded and what it counts. Ends when its input does.
"""

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from grpc import aio
from smg_grpc_proto.generated import common_pb2, sglang_scheduler_pb2_grpc
from smg_grpc_servicer import kv_relay


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Servicer(sglang_scheduler_pb2_grpc.SglangSchedulerServicer):  # type: ignore[misc]  # what smg ships has no types
    """What a gateway subscribes to. The relay itself is smg's, unchanged."""

    def __init__(self, source: object) -> None:
        self._source = source
        self.normalizer = kv_relay.Normalizer("sglang")

    async def SubscribeKvEvents(  # noqa: N802 - the method's name
        self, _request: object, context: object
    ) -> AsyncIterator[object]:
        relayed = kv_relay.relay(
            [self._source], kv_relay.Engine.SGLANG, 0, context, normalizer=self.normalizer, recv_timeout=0.1
        )
        async for batch in relayed:
            yield batch


async def main(endpoint: str, replay_endpoint: str) -> None:
    servicer = Servicer(kv_relay.RankSource(0, endpoint, replay_endpoint))
    server = aio.server()
    sglang_scheduler_pb2_grpc.add_SglangSchedulerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = sglang_scheduler_pb2_grpc.SglangSchedulerStub(channel)
        call = stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(start_sequence_number=0))
        await call.initial_metadata()
        say(ready=True)
        read = asyncio.create_task(_read(call, servicer))
        await asyncio.to_thread(sys.stdin.read)
        call.cancel()
        await asyncio.gather(read, return_exceptions=True)
    await server.stop(None)


async def _read(call: "aio.UnaryStreamCall[Any, Any]", servicer: Servicer) -> None:
    try:
        async for batch in call:
            kinds = [event.WhichOneof("data") for event in batch.events]
            counts = dataclasses.asdict(servicer.normalizer.counts)
            say(sequence=batch.sequence_number, kinds=kinds, counts=counts)
    except aio.AioRpcError as error:
        say(failure=f"{error.code().name}: {error.details()}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
