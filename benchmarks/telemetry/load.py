"""`python -m benchmarks.telemetry.load on|off`: one run of the same work, with all telemetry or with none.

A batch of sessions that decode together on the CPU executor. Prints as JSON the CPU seconds of this process, those of
all its threads but the one that computes the model, and tokens.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from engine.core.core import Core
from engine.core.ids import SessionId, TurnId, pack_ids
from engine.runtime.engine import LocalEngine
from engine.runtime.handle import Caller, Delta, TurnRequest
from services.config import ServeConfig
from services.loading import load_in_thread
from services.watching import Watching
from telemetry.spans.context import write_caller

PAGE_SIZE = 16
CONTEXT_LEN = 256
PROMPT_LEN = 24


def make_config(batch: int, endpoint: str | None) -> ServeConfig:
    is_on = endpoint is not None
    return ServeConfig(
        rows=batch,
        running_max=batch,
        context_len=CONTEXT_LEN,
        pool_tokens=batch * CONTEXT_LEN,
        step_tokens=256,
        otlp_endpoint=endpoint,
        metrics_port=0 if is_on else None,
        kv_events_port=0 if is_on else None,
    )


async def converse(engine: LocalEngine, watching: Watching | None, number: int, turns: int, max_tokens: int) -> int:
    """Turns of one session; how many tokens they generated."""
    session_id, generated = SessionId(f"s{number}"), 0
    await engine.open_session(session_id, streaming=True)
    for turn in range(turns):
        caller = Caller()
        if watching is not None:
            caller = write_caller(watching.tracer.begin(None, "load"))
        ids = [300 + (7 * number + 13 * turn + at) % 40_000 for at in range(PROMPT_LEN)]
        request = TurnRequest(
            TurnId(f"t{turn}"), pack_ids(ids), session_id, max_tokens=max_tokens, ignore_eos=True, caller=caller
        )
        async for event in await engine.submit(request):
            if isinstance(event, Delta):
                generated += len(event.token_ids)
    await engine.close_session(session_id)
    return generated


async def run(batch: int, turns: int, max_tokens: int, collector: subprocess.Popen[str] | None) -> dict[str, float]:
    endpoint = None
    if collector is not None and collector.stdout is not None:
        endpoint = collector.stdout.readline().strip()
    config = make_config(batch, endpoint)
    loaded = await load_in_thread(config, lambda _done, _what: None)
    watching = None
    if collector is not None and collector.stdin is not None:
        watching = Watching(config.telemetry({}))
        sinks = watching.attach(loaded.executor.capabilities)
        watching.start()
        source = None if sinks.kv_feed is None else sinks.kv_feed.source()
        assert source is not None, "a feed was asked for"
        collector.stdin.write(f"http://{sinks.metrics.endpoint_address}/metrics\n{source.endpoint}\n")
        collector.stdin.flush()
    engine = LocalEngine(
        Core(config.core(loaded.executor.capabilities, loaded.eos_ids)),
        loaded.executor,
        loaded.tokenizer.vocabulary,
        sinks=() if watching is None else watching.sinks,
        step_listeners=() if watching is None else watching.step_listeners,
        config=config.runtime(),
    )
    await engine.start()
    if watching is not None:
        watching.begin()
    began_s, model_began_s = time.process_time(), model_cpu_s()
    generated = await asyncio.gather(*(converse(engine, watching, n, turns, max_tokens) for n in range(batch)))
    model_s = model_cpu_s() - model_began_s
    if watching is not None:
        watching.end_of_engine()
        await watching.stop()  # sending the rest is a part of it
    cpu_s = time.process_time() - began_s
    await engine.stop()
    return {"cpu_s": cpu_s, "rest_s": cpu_s - model_s, "tokens": sum(generated)}


def model_cpu_s() -> float:
    """CPU seconds so far of the thread that computes the model, as Linux tells them in nanoseconds."""
    (thread,) = (each for each in threading.enumerate() if each.name == "tenure-executor")
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(prog="python -m benchmarks.telemetry.load", description=__doc__)
    parser.add_argument("telemetry", choices=("on", "off"))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=32)
    asked = parser.parse_args(arguments)
    collector = None
    if asked.telemetry == "on":
        command = (sys.executable, "-m", "benchmarks.telemetry.collector")
        collector = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        result = asyncio.run(run(asked.batch, asked.turns, asked.max_tokens, collector))
    finally:
        if collector is not None:
            collector.kill()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
