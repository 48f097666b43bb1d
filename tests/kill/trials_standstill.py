"""The event loop, the interpreter or the whole process stands still for a while."""

import asyncio
import signal

from engine.runtime.clock import PAUSE_S
from protos.v1 import faults_pb2
from tests.kill.dumps import blame, main_thread, ours, verdict
from tests.kill.load import Load, begin_load
from tests.kill.row import HARD, Row, Scale, Trial
from tests.kill.stage import Stage
from tests.kill.trials_forward import LATE_S
from tests.kill.watch import Condition, Timeline


async def loop_blocked(stage: Stage, scale: Scale) -> Row:
    load = await begin_load(stage.client)
    await stage.plant(faults_pb2.FAULT_KIND_LOOP_BLOCKED, seconds=scale.blocked_s)
    going = await _go_on_after(stage, load, scale.blocked_s)
    probe, public = stage.probe.since(stage.planted_s), stage.public.since(stage.planted_s)
    # A loop that is busy in Python leaves the other threads little: on a shared machine not each answer is in time.
    assert probe.answers == [Condition.READY, Condition.NOT_READY, Condition.NOT_ALIVE, Condition.READY], probe
    stated = {Condition.NOT_READY: scale.limit_s, Condition.NOT_ALIVE: HARD * scale.limit_s}
    for condition, due_s in stated.items():
        assert due_s - 0.5 < probe.first_s(condition) < due_s + LATE_S, probe
    assert public.first_s(Condition.SILENT) < LATE_S, public
    assert public.conditions[-1] is Condition.READY, public
    assert Condition.NOT_READY not in public.conditions[: public.conditions.index(Condition.SILENT)], public
    tripped = await stage.entry("watchdog_tripped", "loop_stuck")
    await stage.entry("watchdog_gave_up", "loop_stuck")
    assert (await stage.entry("watchdog_recovered", "loop_stuck")).incident_id == tripped.incident_id
    dump = await stage.entry("engine_dump")
    books = verdict(dump)
    assert books == "books balance", dump.lines[:20]
    well = await stage.prove_well(load)
    return Row(
        clients=f"nothing for {scale.blocked_s:g} s, then {going} streams go on",
        health=f"{probe}; public port: {public}",
        dump=f"after {stage.at_s(dump):.1f} s: {blame(dump)}; the loop's thread is in {ours(main_thread(dump))}",
        recovered=f"all by itself; {well}",
    )


async def interpreter_held(stage: Stage, scale: Scale) -> Row:
    load = await begin_load(stage.client)
    await stage.plant(faults_pb2.FAULT_KIND_INTERPRETER_HELD, seconds=scale.held_s)
    return await _row_of_pause(stage, load, scale)


async def process_stopped(stage: Stage, scale: Scale) -> Row:
    load = await begin_load(stage.client)
    await stage.sure_ready()
    stage.mark()
    stage.server.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(scale.held_s)
    finally:
        stage.server.process.send_signal(signal.SIGCONT)
    return await _row_of_pause(stage, load, scale)


async def _row_of_pause(stage: Stage, load: Load, scale: Scale) -> Row:
    """Nothing answers meanwhile; afterwards all is as before, and the watchdog has not counted it."""
    going = await _go_on_after(stage, load, scale.held_s)
    for watch in (stage.probe, stage.public):
        told = watch.since(stage.planted_s)
        assert told.conditions == [Condition.READY, Condition.SILENT, Condition.READY], told
        assert told.first_s(Condition.SILENT) < LATE_S, told
        assert scale.held_s - 0.5 < told.last_s() < scale.held_s + LATE_S, told
    probe = stage.probe.since(stage.planted_s)
    assert not stage.entries("watchdog_tripped"), stage.tail()
    paused = await stage.entry("process_paused")
    seconds = sum(float(entry.facts["seconds"]) - PAUSE_S for entry in stage.entries("process_paused"))
    assert 0 < seconds <= scale.held_s + LATE_S, paused
    well = await stage.prove_well(load)
    return Row(
        clients=f"nothing for {scale.held_s:g} s, then {going} streams go on",
        health=_both(probe, stage.public.since(stage.planted_s)),
        dump=f"none: no hang; the log says that the process was paused, {seconds:.1f} s of it are not counted",
        recovered=f"all by itself; {well}",
    )


async def _go_on_after(stage: Stage, load: Load, until_s: float) -> int:
    """Waits until the fault is over. Returns how many streams got further tokens then: all of them."""
    await asyncio.sleep(max(0.0, until_s - stage.age_s - 1.0))
    assert not load.has_ended, [stream.task for stream in load.streams if stream.task.done()]
    await asyncio.sleep(max(0.0, until_s - stage.age_s))
    going = await load.go_on()
    await stage.sure_ready()
    return going


def _both(probe: Timeline, public: Timeline) -> str:
    return f"{probe}; public port: {public}"


BLOCKED = Trial(
    "loop_blocked", lambda scale: f"a busy callback blocks the event loop for {scale.blocked_s:g} s", loop_blocked
)
HELD = Trial(
    "interpreter_held", lambda scale: f"something holds the interpreter for {scale.held_s:g} s", interpreter_held
)
STOPPED = Trial("process_stopped", lambda scale: f"SIGSTOP for {scale.held_s:g} s, then SIGCONT", process_stopped)
