"""`tenure.v1.Admin`: what an operator looks at."""

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import grpc
from grpc import aio

from engine.runtime.units import UNIT_NAMES
from protos.v1 import admin_pb2, admin_pb2_grpc, incidents_pb2, ownership_pb2, traces_pb2
from services.admin_codec import (
    POOL_KINDS,
    decode_pool,
    encode_history,
    encode_incident,
    encode_model,
    encode_pools,
    encode_report,
    encode_snapshot,
)
from services.backend import BackendCell
from services.errors import CallError, EdgeReason, Problem, invalid_field
from services.history_codec import encode_history as encode_past
from services.kv_codec import encode_sources
from services.kv_stream import stream_kv_events
from services.shared_books import SharedBooks
from services.trace_codec import find_trace


class AdminServicer(admin_pb2_grpc.AdminServicer):
    def __init__(self, backend: BackendCell, settings: Mapping[str, str]) -> None:
        """`settings`: the configuration in force."""
        self._backend = backend
        self._settings = dict(settings)
        self._books = SharedBooks()

    async def PoolStats(
        self,
        request: admin_pb2.PoolStatsRequest,
        context: aio.ServicerContext[admin_pb2.PoolStatsRequest, admin_pb2.PoolStatsResponse],
    ) -> admin_pb2.PoolStatsResponse:
        backend = self._backend.require()
        snapshot, log = await backend.engine.snapshot(), backend.kv_log
        if log is None:
            return encode_pools(snapshot)
        # Of the same instant: nothing is awaited in between, and the engine has told all that it did so far.
        return encode_pools(snapshot, log.last_sequence, log.log_id)

    async def GetModel(
        self,
        request: admin_pb2.GetModelRequest,
        context: aio.ServicerContext[admin_pb2.GetModelRequest, admin_pb2.GetModelResponse],
    ) -> admin_pb2.GetModelResponse:
        backend = self._backend.require()
        engine = backend.engine
        return encode_model(engine.capabilities, engine.context_len, await engine.snapshot(), backend.features)

    async def Check(
        self,
        request: admin_pb2.CheckRequest,
        context: aio.ServicerContext[admin_pb2.CheckRequest, admin_pb2.CheckResponse],
    ) -> admin_pb2.CheckResponse:
        engine = self._backend.require().engine
        report = await engine.check()
        return encode_report(report, (await engine.snapshot()).checks_run)

    async def GetConfig(
        self,
        request: admin_pb2.GetConfigRequest,
        context: aio.ServicerContext[admin_pb2.GetConfigRequest, admin_pb2.GetConfigResponse],
    ) -> admin_pb2.GetConfigResponse:
        backend = self._backend.find()
        # The model may have less context than was asked for.
        in_force = {} if backend is None else {"context_len": str(backend.engine.context_len)}
        known = self._settings | in_force
        settings = [admin_pb2.Setting(name=name, value=value) for name, value in known.items()]
        return admin_pb2.GetConfigResponse(settings=settings)

    async def Explain(
        self,
        request: admin_pb2.ExplainRequest,
        context: aio.ServicerContext[admin_pb2.ExplainRequest, admin_pb2.ExplainResponse],
    ) -> admin_pb2.ExplainResponse:
        engine = self._backend.require().engine
        sizes = engine.capabilities.pool_sizes
        pool = decode_pool(request.pool)
        if pool is None or pool not in sizes:
            known = ", ".join(ownership_pb2.PoolKind.Name(POOL_KINDS[kind]) for kind in sizes)
            raise invalid_field("pool", f"is no pool of this server; known are {known}", value=request.pool)
        size = sizes[pool]
        if not 1 <= request.unit < size:
            message = f"{UNIT_NAMES[pool]}s are 1 to {size - 1}"
            raise invalid_field("unit", message, value=request.unit, limit=size - 1)
        return admin_pb2.ExplainResponse(history=encode_history(await engine.explain(pool, request.unit)))

    async def Snapshot(
        self,
        request: admin_pb2.SnapshotRequest,
        context: aio.ServicerContext[admin_pb2.SnapshotRequest, admin_pb2.SnapshotResponse],
    ) -> admin_pb2.SnapshotResponse:
        return encode_snapshot(await self._backend.require().engine.snapshot())

    async def GetHistory(
        self,
        request: admin_pb2.GetHistoryRequest,
        context: aio.ServicerContext[admin_pb2.GetHistoryRequest, admin_pb2.GetHistoryResponse],
    ) -> admin_pb2.GetHistoryResponse:
        last_s = request.last_s if request.HasField("last_s") else None
        if last_s is not None and not (math.isfinite(last_s) and last_s > 0):
            raise invalid_field("last_s", "must be above 0, and finite", value=last_s)
        backend = self._backend.require()
        assert backend.history is not None, "a server remembers its last hour"
        captured, page_size = backend.history.capture(last_s), backend.engine.capabilities.page_size

        def encode() -> admin_pb2.GetHistoryResponse:
            return encode_past(captured.history(), page_size, with_facts=not request.without_facts)

        # A whole hour takes some tenths of a second: not on the loop.
        return await asyncio.to_thread(encode)

    async def ListIncidents(
        self,
        request: incidents_pb2.ListIncidentsRequest,
        context: aio.ServicerContext[incidents_pb2.ListIncidentsRequest, incidents_pb2.ListIncidentsResponse],
    ) -> incidents_pb2.ListIncidentsResponse:
        incidents = await self._backend.require().engine.incidents()
        return incidents_pb2.ListIncidentsResponse(incidents=map(encode_incident, incidents))

    async def Dump(
        self,
        request: incidents_pb2.DumpRequest,
        context: aio.ServicerContext[incidents_pb2.DumpRequest, incidents_pb2.DumpResponse],
    ) -> incidents_pb2.DumpResponse:
        incident_id = request.incident_id if request.HasField("incident_id") else None
        engine = self._backend.require().engine
        text = await engine.dump(incident_id)
        if text is None:
            is_known = any(each.incident_id == incident_id for each in await engine.incidents())
            message = "it has no dump, or not any more" if is_known else "nothing is remembered of it"
            reason = EdgeReason.INCIDENT_UNKNOWN.value
            raise CallError(Problem(grpc.StatusCode.NOT_FOUND, reason, f"incident_id: {message}", "incident_id"))
        return incidents_pb2.DumpResponse(text=text)

    async def KvEvents(
        self,
        request: ownership_pb2.KvEventsRequest,
        context: aio.ServicerContext[ownership_pb2.KvEventsRequest, ownership_pb2.KvEventsResponse],
    ) -> AsyncGenerator[ownership_pb2.KvEventsResponse, None]:
        async with aclosing(stream_kv_events(self._backend.require(), request, self._books)) as messages:
            async for message in messages:
                yield message

    async def GetKvEventSources(
        self,
        request: ownership_pb2.GetKvEventSourcesRequest,
        context: aio.ServicerContext[ownership_pb2.GetKvEventSourcesRequest, ownership_pb2.GetKvEventSourcesResponse],
    ) -> ownership_pb2.GetKvEventSourcesResponse:
        feed = self._backend.require().kv_feed
        source = None if feed is None else feed.source()
        return encode_sources(() if source is None else (source,))

    async def GetTrace(
        self,
        request: traces_pb2.GetTraceRequest,
        context: aio.ServicerContext[traces_pb2.GetTraceRequest, traces_pb2.GetTraceResponse],
    ) -> traces_pb2.GetTraceResponse:
        found = find_trace(self._backend.require(), request)
        return await asyncio.to_thread(found.encode)

    async def FlushCache(
        self,
        request: ownership_pb2.FlushCacheRequest,
        context: aio.ServicerContext[ownership_pb2.FlushCacheRequest, ownership_pb2.FlushCacheResponse],
    ) -> ownership_pb2.FlushCacheResponse:
        freed = await self._backend.require().engine.flush()
        return ownership_pb2.FlushCacheResponse(pages=freed.pages, swa_pages=freed.swa_pages, states=freed.states)
