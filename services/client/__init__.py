"""The async Python client.

async with connect("127.0.0.1:50051") as client:
    async with client.session() as session:
        async for piece in session.turn("Hello!"):
            print(piece.text, end="")
"""

from services.client.client import Client, ClientSession, connect
from services.client.errors import TenureError
from services.client.model import CheckReport, ModelInfo
from services.client.pools import Pool, PoolStats
from services.client.requests import Message, OptionError, SamplingOptions
from services.client.sessions import SessionInfo
from services.client.turn import FinishReason, Piece, Turn, Usage

__all__ = [
    "CheckReport",
    "Client",
    "ClientSession",
    "FinishReason",
    "Message",
    "ModelInfo",
    "OptionError",
    "Piece",
    "Pool",
    "PoolStats",
    "SamplingOptions",
    "SessionInfo",
    "TenureError",
    "Turn",
    "Usage",
    "connect",
]
