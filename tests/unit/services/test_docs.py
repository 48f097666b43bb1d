"""What docs/sessions.md says of errors is all of them, and nothing else."""

import re
from pathlib import Path

import grpc

from engine.core.errors import RefusalReason
from engine.runtime.handle import StreamReason
from services.errors import ABORTS, REFUSALS, STREAMS, EdgeReason

PAGE = (Path(__file__).parents[3] / "docs" / "sessions.md").read_text("utf-8")


def told() -> dict[str, set[str]]:
    """Reason → the statuses of the table rows that name it."""
    found: dict[str, set[str]] = {}
    for line in PAGE.splitlines():
        cells = line.strip("| ").split(" | ")
        status = next((cell for cell in cells if cell in grpc.StatusCode.__members__), None)
        if status is not None:
            for reason in re.findall(r"`([A-Z_]{5,})`", line):
                found.setdefault(reason, set()).add(status)
    return found


def test_error_tables_when_read_then_every_reason_is_there_with_its_status_and_no_other() -> None:
    rows = [(str(reason), row.code) for reason, row in (*REFUSALS.items(), *STREAMS.items())]
    rows += [(row.reason, row.code) for row in ABORTS.values()]
    tables = told()
    assert {reason: {code.name} for reason, code in rows} == {
        reason: statuses for reason, statuses in tables.items() if reason not in set(EdgeReason)
    }
    assert set(EdgeReason) <= set(tables)
    assert set(RefusalReason) | set(StreamReason) <= set(tables)
