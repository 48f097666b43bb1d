"""`python -m benchmarks.telemetry`: CPU a token with all telemetry beside that with none, in interleaved pairs.

Two figures. The ratio of all CPU has the noise of the model's own thread in it, several percent on most machines. What
telemetry adds is told by the other threads alone (event loop, exporters, feed, scrapes), as a share of all CPU a token.
"""

import json
import math
import statistics
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core.results import hardware, read_commit

T_95 = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 11: 2.201, 14: 2.145, 19: 2.093}
"""Student's t for 95 %, by degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU milliseconds a token: of everything, and of all threads but the model's."""

    all_ms: float
    rest_ms: float


def measure(telemetry: str, rest: Sequence[str]) -> Cost:
    """Of one run in a process of its own."""
    command = (sys.executable, "-m", "benchmarks.telemetry.load", telemetry, *rest)
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return Cost(1000 * told["cpu_s"] / told["tokens"], 1000 * told["rest_s"] / told["tokens"])


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval."""
    mean, freedom = statistics.fmean(values), len(values) - 1
    t = T_95[max(known for known in T_95 if known <= freedom)]
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--out", type=Path, help="file for the results as JSON")
    parser.add_argument("--commit", help="hash that the results belong to (default: what git says)")
    asked, rest = parser.parse_known_args(arguments)
    offs: list[Cost] = []
    ons: list[Cost] = []
    for number in range(asked.pairs):
        order = ("off", "on") if number % 2 == 0 else ("on", "off")
        told = {telemetry: measure(telemetry, rest) for telemetry in order}
        offs.append(told["off"])
        ons.append(told["on"])
        print(f"pair {number + 1}: off {told['off']}, on {told['on']}", flush=True)
    pairs = tuple(zip(offs, ons, strict=True))
    ratio = tuple(map(math.exp, interval([math.log(on.all_ms / off.all_ms) for off, on in pairs])))
    share = interval([(on.rest_ms - off.rest_ms) / off.all_ms for off, on in pairs])
    print(f"all CPU, on / off: {ratio[0]:.4f}, 95 % interval {ratio[1]:.4f} to {ratio[2]:.4f}")
    print(f"added beside the model: {share[0]:.2%} of all CPU, 95 % interval {share[1]:.2%} to {share[2]:.2%}")
    if asked.out is not None:
        figures = [[off.all_ms, off.rest_ms, on.all_ms, on.rest_ms] for off, on in pairs]
        found = {"ratio": ratio, "added_share": share, "pairs_off_all_off_rest_on_all_on_rest_ms": figures}
        told_of = {"hardware": hardware(), "commit": asked.commit or read_commit(), "arguments": rest}
        asked.out.write_text(json.dumps(found | told_of, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
