"""The async Python client.

async with connect("127.0.0.1:50051") as client:
    async with client.session() as session:
        async for piece in session.turn("Hello!"):
            print(piece.text, end="")
"""

from services.client.client import Client, connect
from services.client.errors import TenureError
from services.client.history import History, Sample, SessionFact, Totals
from services.client.incidents import Incident
from services.client.inspection import OwnershipChange, Plan, PlanRow, ServerState, TurnInfo, UnitHistory, UnitOwner
from services.client.kv_books import KvBooks, KvBooksError, KvGapError, KvTerms
from services.client.kv_events import KvBooksImage, KvEventInfo, KvEventSource, KvWhat, PoolImage
from services.client.model import CheckReport, Finding, ModelInfo
from services.client.options import OptionError
from services.client.pools import Flushed, Pool, PoolStats
from services.client.requests import Message, SamplingOptions, SessionTurnOptions, TurnOptions
from services.client.session import ClientSession
from services.client.sessions import Lengths, SessionInfo
from services.client.traces import Span, SpanEvent, SpanLink, Trace
from services.client.turn import FinishReason, Piece, Turn, Usage

__all__ = [
    "CheckReport",
    "Client",
    "ClientSession",
    "Finding",
    "FinishReason",
    "Flushed",
    "History",
    "Incident",
    "KvBooks",
    "KvBooksError",
    "KvBooksImage",
    "KvEventInfo",
    "KvEventSource",
    "KvGapError",
    "KvTerms",
    "KvWhat",
    "Lengths",
    "Message",
    "ModelInfo",
    "OptionError",
    "OwnershipChange",
    "Piece",
    "Plan",
    "PlanRow",
    "Pool",
    "PoolImage",
    "PoolStats",
    "Sample",
    "SamplingOptions",
    "ServerState",
    "SessionFact",
    "SessionInfo",
    "SessionTurnOptions",
    "Span",
    "SpanEvent",
    "SpanLink",
    "TenureError",
    "Totals",
    "Trace",
    "Turn",
    "TurnInfo",
    "TurnOptions",
    "UnitHistory",
    "UnitOwner",
    "Usage",
    "connect",
]
