"""Books that are broken on purpose: a page that nobody owns, and one that two own."""

import asyncio

from protos.v1 import faults_pb2
from tests.kill.dumps import verdict
from tests.kill.load import begin_load, one_incident
from tests.kill.row import Group, Row, Scale, Trial
from tests.kill.stage import Stage
from tests.kill.watch import Condition

_TOLD_CHARS = 120
_FOUND_S = 30.0


async def leak(stage: Stage, scale: Scale) -> Row:
    before = (await stage.client.pools()).find("full").quarantined
    load = await begin_load(stage.client)
    await stage.plant(faults_pb2.FAULT_KIND_LEAK)
    async with asyncio.timeout(_FOUND_S):
        while (await stage.client.pools()).find("full").quarantined == before:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.01)
    found_s = stage.age_s
    going = await load.go_on()
    incident = await stage.entry("incident", "leak")
    known = {each.incident_id: each for each in await stage.client.incidents()}
    assert known[incident.incident_id or ""].kind == "leak"
    well = await stage.prove_well(load, quarantined=before + 1)
    await asyncio.sleep(scale.quiet_s)
    probe = stage.probe.since(stage.planted_s)
    assert probe.conditions == [Condition.READY], probe
    return Row(
        clients=f"nothing: {going} streams go on",
        health=str(probe),
        dump=f"none; one line: {_cut(known[incident.incident_id or ''].message)}",
        recovered=f"the page was quarantined within {found_s:.1f} s; {well}",
    )


async def double_owner(stage: Stage, _scale: Scale) -> Row:
    load = await begin_load(stage.client)
    await stage.plant(faults_pb2.FAULT_KIND_DOUBLE_OWNER)
    endings = await load.endings(30)
    incident_id = one_incident(endings, "ENGINE_FAILED")
    code, ended_s = await stage.exit_code()
    assert code == 1, f"exit code {code}; {stage.tail()}"
    assert (await stage.entry("engine_halted")).incident_id == incident_id
    dump = await stage.entry("engine_dump")
    books = verdict(dump)
    assert books == "books DO NOT BALANCE", dump.lines[:20]
    findings = [line for line in dump.lines if line.startswith("finding: conflict")]
    assert findings, dump.lines
    probe = stage.probe.since(stage.planted_s)
    assert probe.conditions[-1] is Condition.GONE, probe
    return Row(
        clients=f"{len(endings)} streams: INTERNAL ENGINE_FAILED, one incident id, that of the log",
        health=str(probe),
        dump=f"{books}; {_cut(findings[0].removeprefix('finding: '))}",
        recovered=f"the process ended with exit code 1 after {ended_s:.1f} s: its books can not be trusted",
    )


def _cut(text: str) -> str:
    return text if len(text) <= _TOLD_CHARS else f"{text[:_TOLD_CHARS]}…"


LEAK = Trial("leak", lambda _scale: "a page is lost from the books", leak)
DOUBLE_OWNER = Group(
    "double_owner",
    lambda scale: scale.lost,
    (Trial("double_owner", lambda _scale: "a page gets two owners", double_owner),),
)
