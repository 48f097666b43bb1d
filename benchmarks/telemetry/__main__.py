"""`python -m benchmarks.telemetry`: CPU a token with all telemetry over that with none, in interleaved pairs."""

import json
import math
import statistics
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from benchmarks.core.results import hardware, read_commit

T_95 = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 11: 2.201, 14: 2.145, 19: 2.093}
"""Student's t for 95 %, by degrees of freedom."""


def measure(telemetry: str, rest: Sequence[str]) -> float:
    """CPU milliseconds a token, of one run in a process of its own."""
    command = (sys.executable, "-m", "benchmarks.telemetry.load", telemetry, *rest)
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return float(1000 * told["cpu_s"] / told["tokens"])


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of the ratios, by the logarithms of the pairs."""
    logs = list(map(math.log, ratios))
    mean, freedom = statistics.fmean(logs), len(logs) - 1
    t = T_95[max(known for known in T_95 if known <= freedom)]
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--out", type=Path, help="file for the results as JSON")
    parser.add_argument("--commit", help="hash that the results belong to (default: what git says)")
    asked, rest = parser.parse_known_args(arguments)
    pairs: list[tuple[float, float]] = []
    for number in range(asked.pairs):
        order = ("off", "on") if number % 2 == 0 else ("on", "off")
        told = {telemetry: measure(telemetry, rest) for telemetry in order}
        pairs.append((told["off"], told["on"]))
        print(f"pair {number + 1}: off {told['off']:.3f} on {told['on']:.3f} ms of CPU a token", flush=True)
    mean, low, high = interval([on / off for off, on in pairs])
    print(f"on / off: {mean:.4f}, 95 % interval {low:.4f} to {high:.4f}, over {len(pairs)} pairs")
    if asked.out is not None:
        found = {"ratio": mean, "low_95": low, "high_95": high, "cpu_ms_per_token": pairs, "arguments": rest}
        told_of = {"hardware": hardware(), "commit": asked.commit or read_commit()}
        asked.out.write_text(json.dumps(found | told_of, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
