"""What the kernel says of the server's process: memory, threads, open files."""

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.soak.trend import Trend, fit_trend

INTERVAL_S = 5.0
"""Between two readings."""
MIB = 1024 * 1024
_STATUS = re.compile(r"^(VmRSS|RssAnon|RssFile|Threads):\s+(\d+)", re.MULTILINE)
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a process."""

    time_s: float
    """Seconds since the load began."""
    resident_bytes: int
    anonymous_bytes: int
    """Of these, those that belong to no file."""
    file_bytes: int
    """Of these, those of files that are mapped: the weights, libraries."""
    threads: int
    open_files: int


def read_process(pid: int, started_s: float) -> Reading:
    """Raises OSError when the process has gone. `started_s`: when the load began, by the monotonic clock."""
    told = {name: int(number) for name, number in _STATUS.findall(Path(f"/proc/{pid}/status").read_text())}
    if "VmRSS" not in told:
        raise ProcessLookupError(f"process {pid} has ended")
    return Reading(
        time_s=time.monotonic() - started_s,
        resident_bytes=told["VmRSS"] * _KIB,
        anonymous_bytes=told.get("RssAnon", 0) * _KIB,
        file_bytes=told.get("RssFile", 0) * _KIB,
        threads=told["Threads"],
        open_files=len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208 - names only
    )


def late_readings(readings: Sequence[Reading]) -> Sequence[Reading]:
    """Those of the last two thirds: 20 of 30 minutes. What comes before is the filling of caches."""
    if not readings:
        return ()
    first_s = readings[0].time_s + (readings[-1].time_s - readings[0].time_s) / 3
    return [each for each in readings if each.time_s >= first_s]


def resident_trend(readings: Sequence[Reading]) -> Trend:
    """Of resident memory over the last two thirds. Raises ValueError for a run that was too short."""
    late = late_readings(readings)
    return fit_trend([each.time_s for each in late], [float(each.resident_bytes) for each in late])
