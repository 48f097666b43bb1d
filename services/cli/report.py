"""What a person is told when a command did not succeed."""

import sys
from collections.abc import Coroutine

import grpc

from services.client import TenureError


async def report_error(target: str, command: Coroutine[None, None, int]) -> int:
    """Awaits `command`. A TenureError, or a value that can't be sent, becomes one line on standard error, and 1."""
    try:
        return await command
    except TenureError as error:
        if error.code is grpc.StatusCode.UNAVAILABLE and error.reason == "UNAVAILABLE":
            print(f"tenure: no server answers at {target}; start one with: tenure serve", file=sys.stderr)
        else:
            print(f"tenure: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"tenure: {error}", file=sys.stderr)
        return 1
