"""The async Python client.

async with connect("127.0.0.1:50051") as client:
    async with client.session() as session:
        async for piece in session.turn("Hello!"):
            print(piece.text, end="")
"""

from services.client.client import Client, ClientSession, Message, connect
from services.client.errors import TenureError
from services.client.pools import Pool, PoolStats
from services.client.turn import FinishReason, Piece, Turn, Usage

__all__ = [
    "Client",
    "ClientSession",
    "FinishReason",
    "Message",
    "Piece",
    "Pool",
    "PoolStats",
    "TenureError",
    "Turn",
    "Usage",
    "connect",
]
