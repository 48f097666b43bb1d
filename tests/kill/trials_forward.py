"""Forwards that hang, fail or take the executor with them."""

import asyncio
from collections.abc import Awaitable, Callable

from protos.v1 import faults_pb2
from tests.kill.dumps import blame, executor_thread, ours, verdict
from tests.kill.load import Ending, Load, Stream, begin_load, one_incident
from tests.kill.row import HARD, Group, Row, Scale, Trial
from tests.kill.stage import Stage
from tests.kill.watch import Condition, Timeline

LATE_S = 4.0
"""How much later than stated something may happen: the machine is shared."""
FAILURES = 8
_FAILURES_TRIES = 60


async def forward_sleeps(stage: Stage, scale: Scale) -> Row:
    load = await begin_load(stage.client)
    await stage.plant(faults_pb2.FAULT_KIND_FORWARD_SLEEPS, seconds=scale.asleep_s)
    endings, incident_id = await _end_stuck(stage, load, scale)
    late = Stream(stage.client.generate("Too late?", max_tokens=4, ignore_eos=True))
    assert (await stage.client.pools()).balanced, "the operator's view is answered meanwhile"
    ending = await asyncio.wait_for(late.task, scale.asleep_s + 60)
    assert ending.code == "OK", ending
    assert ending.at_s - stage.planted_s > scale.asleep_s - 0.5, "it waited for the forward"
    await stage.sure_ready()
    assert (await stage.entry("watchdog_gave_up", "forward_stuck")).incident_id == incident_id
    recovered = await stage.entry("watchdog_recovered", "forward_stuck")
    assert recovered.incident_id == incident_id
    probe = _require_story(stage, scale, back_s=scale.asleep_s)
    (incident,) = [each for each in await stage.client.incidents() if each.incident_id == incident_id]
    assert incident.over_s is not None
    assert "books:" in await stage.client.dump(incident_id)
    well = await stage.prove_well(load)
    return Row(
        clients=f"{_tell_endings(stage, endings)}; a turn sent meanwhile waits and ends well",
        health=str(probe),
        dump=await _tell_stuck(stage),
        recovered=f"the engine, once the forward was back; {well}",
    )


async def forward_lost(stage: Stage, scale: Scale) -> Row:
    load = await begin_load(stage.client)
    await stage.plant(faults_pb2.FAULT_KIND_FORWARD_SLEEPS, seconds=600)
    endings, incident_id = await _end_stuck(stage, load, scale)
    code, ended_s = await stage.exit_code(HARD * scale.limit_s + scale.exit_s + 20)
    due_s = HARD * scale.limit_s + scale.exit_s
    assert code == 1, f"exit code {code}; {stage.tail()}"
    assert due_s - 0.5 < ended_s < due_s + LATE_S, f"the end came {ended_s:.1f} s after the fault, due at {due_s:g} s"
    assert (await stage.entry("watchdog_gave_up", "forward_stuck")).incident_id == incident_id
    await stage.entry("watchdog_exit", "forward_stuck")
    probe = stage.probe.since(stage.planted_s)
    assert probe.answers == [Condition.READY, Condition.NOT_READY, Condition.NOT_ALIVE, Condition.GONE], probe
    return Row(
        clients=_tell_endings(stage, endings),
        health=str(probe),
        dump=await _tell_stuck(stage),
        recovered=f"the process ended with exit code 1 after {ended_s:.1f} s: something outside starts it anew",
    )


def _failing(kind: faults_pb2.FaultKind.ValueType, steps_max: int = 1) -> Callable[[Stage, Scale], Awaitable[Row]]:
    """One forward fails: its turns end, and that is all. With it at most `steps_max` steps fail: one that was in flight
    already may have been made of what it returned."""

    async def act(stage: Stage, scale: Scale) -> Row:
        load = await begin_load(stage.client)
        await stage.plant(kind)
        endings = await load.endings(30)
        incident_id = one_incident(endings, "FORWARD_FAILED")
        incident = await stage.entry("incident", "forward_failed")
        assert incident.incident_id == incident_id
        steps = [int(entry.facts["step"]) for entry in stage.entries("incident")]
        assert steps == [*range(steps[0], steps[0] + len(steps))][:steps_max], stage.tail()
        well = await stage.prove_well(load)
        await asyncio.sleep(scale.quiet_s)
        probe = _require_steady(stage)
        return Row(
            clients=_tell_endings(stage, endings),
            health=str(probe),
            dump=f"none; {_tell_steps(len(steps))}: {incident.rest.partition(': ')[2]}",
            recovered=f"at once; {well}",
        )

    return act


async def failures_in_a_row(stage: Stage, scale: Scale) -> Row:
    await stage.plant(faults_pb2.FAULT_KIND_FORWARD_RAISES, count=0)
    incidents = await _fail_until_gone(stage)
    code, ended_s = await stage.exit_code()
    assert code == 1, f"exit code {code}; {stage.tail()}"
    assert len(incidents) >= FAILURES, incidents
    assert len(set(incidents)) == len(incidents), "each step is an incident of its own"
    logged = [entry.incident_id for entry in stage.entries("incident")]
    assert set(incidents) <= set(logged), "each error's id is in the log"
    tripped = await stage.entry("watchdog_tripped", "failing")
    assert tripped.facts["severity"] == "hard"
    dump = await stage.entry("engine_dump")
    probe = stage.probe.since(stage.planted_s)
    assert probe.answers == [Condition.READY, Condition.NOT_ALIVE, Condition.GONE], probe
    return Row(
        clients=f"{len(incidents)} turns, one after the other: INTERNAL FORWARD_FAILED, each with its own incident id",
        health=str(probe),
        dump=f"{verdict(dump)}; {FAILURES} forwards failed one after the other",
        recovered=f"the process ended with exit code 1 after {ended_s:.1f} s ({scale.exit_s:g} s after it gave up)",
    )


async def _fail_until_gone(stage: Stage) -> list[str]:
    """Turns one after the other, until the process has ended. Returns the incident of each."""
    endings: list[Ending] = []
    for number in range(_FAILURES_TRIES):
        turn = stage.client.generate(f"Try {number}", max_tokens=4, ignore_eos=True)
        ending = await Stream(turn).task
        if ending.code == "UNAVAILABLE":
            break
        endings.append(ending)
        await asyncio.sleep(0.1)
    # The last one may run when the engine is told that it is lost, which ends it under the incident of all.
    if endings and endings[-1].reason == "ENGINE_FAILED":
        one_incident([endings.pop()], "ENGINE_FAILED")
    return [one_incident([ending], "FORWARD_FAILED") for ending in endings]


async def executor_dies(stage: Stage, _scale: Scale) -> Row:
    load = await begin_load(stage.client)
    await stage.plant(faults_pb2.FAULT_KIND_EXECUTOR_DIES)
    endings = await load.endings(30)
    incident_id = one_incident(endings, "ENGINE_FAILED")
    code, ended_s = await stage.exit_code()
    assert code == 1, f"exit code {code}; {stage.tail()}"
    halted = await stage.entry("engine_halted")
    assert halted.incident_id == incident_id
    dump = await stage.entry("engine_dump")
    assert dump.incident_id == incident_id
    books = verdict(dump)
    assert books == "books balance", dump.lines[:20]
    probe = stage.probe.since(stage.planted_s)
    assert probe.conditions[0] is Condition.READY, probe
    assert probe.conditions[-1] is Condition.GONE, probe
    return Row(
        clients=_tell_endings(stage, endings),
        health=str(probe),
        dump=f"{books}; why: {halted.rest.partition('reason=')[2]}",
        recovered=f"the process ended with exit code 1 after {ended_s:.1f} s",
    )


async def _end_stuck(stage: Stage, load: Load, scale: Scale) -> tuple[tuple[Ending, ...], str]:
    """All turns of a stuck forward end at the limit, under the incident that the watchdog opened."""
    endings = await load.endings(scale.limit_s + 20)
    incident_id = one_incident(endings, "FORWARD_FAILED")
    tripped = await stage.entry("watchdog_tripped", "forward_stuck")
    assert tripped.incident_id == incident_id
    for ending in endings:
        after_s = ending.at_s - stage.planted_s
        assert scale.limit_s - 0.5 < after_s < scale.limit_s + LATE_S, f"a stream ended after {after_s:.1f} s"
    return endings, incident_id


def _require_story(stage: Stage, scale: Scale, back_s: float) -> Timeline:
    """Not ready at the limit, not alive at three times it, ready again when the fault is over; on both ports."""
    for watch in (stage.public, stage.probe):
        told = watch.since(stage.planted_s)
        expected = [Condition.READY, Condition.NOT_READY, Condition.NOT_ALIVE, Condition.READY]
        assert told.answers == expected, told
        stated = {Condition.NOT_READY: scale.limit_s, Condition.NOT_ALIVE: HARD * scale.limit_s}
        for condition, due_s in stated.items():
            assert due_s - 0.5 < told.first_s(condition) < due_s + LATE_S, told
        assert back_s - 0.5 < told.last_s() < back_s + LATE_S, told
    return stage.probe.since(stage.planted_s)


def _require_steady(stage: Stage) -> Timeline:
    for watch in (stage.public, stage.probe):
        told = watch.since(stage.planted_s)
        assert told.conditions == [Condition.READY], told
    return stage.probe.since(stage.planted_s)


def _tell_steps(count: int) -> str:
    if count == 1:
        return "one line"
    return "a line for the step, and one for the step that was in flight with what it had returned"


async def _tell_stuck(stage: Stage) -> str:
    """The first dump of a stuck forward: the books are well, and where the executor's thread is."""
    dump = await stage.entry("engine_dump")
    books = verdict(dump)
    assert books == "books balance", dump.lines[:20]
    return f"after {stage.at_s(dump):.1f} s: {blame(dump)}; the executor's thread is in {ours(executor_thread(dump))}"


def _tell_endings(stage: Stage, endings: tuple[Ending, ...]) -> str:
    """Of streams that ended alike."""
    first, last = min(ending.at_s for ending in endings), max(ending.at_s for ending in endings)
    after = [f"{moment - stage.planted_s:.1f}" for moment in (first, last)]
    span = after[0] if after[0] == after[1] else f"{after[0]} to {after[1]}"
    ending = endings[0]
    return f"{len(endings)} streams: {ending.code} {ending.reason} after {span} s, one incident id, that of the log"


STUCK = Trial("forward_sleeps", lambda scale: f"a forward sleeps {scale.asleep_s:g} s", forward_sleeps)
LOST = Group(
    "lost",
    lambda scale: scale.lost,
    (Trial("forward_lost", lambda _scale: "a forward does not come back", forward_lost),),
)
FAILING = (
    Trial("forward_raises", lambda _scale: "a forward raises", _failing(faults_pb2.FAULT_KIND_FORWARD_RAISES)),
    Trial("forward_nan", lambda _scale: "a forward returns NaN", _failing(faults_pb2.FAULT_KIND_FORWARD_NAN)),
    Trial(
        "forward_bad_token",
        lambda _scale: "a forward chooses an id that is out of range",
        _failing(faults_pb2.FAULT_KIND_FORWARD_BAD_TOKEN, steps_max=2),
    ),
)
FAILURES_IN_A_ROW = Group(
    "failures",
    lambda scale: scale.lost,
    (Trial("failures_in_a_row", lambda _scale: f"{FAILURES} forwards fail one after the other", failures_in_a_row),),
)
EXECUTOR = Group(
    "executor",
    lambda scale: scale.lost,
    (Trial("executor_dies", lambda _scale: "the executor's thread dies", executor_dies),),
)
