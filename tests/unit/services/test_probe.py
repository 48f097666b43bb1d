"""The probe port answers on threads of its own, from what was last published."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from engine.runtime.lifecycle import EngineState
from engine.runtime.vitals import Vitals, WatchdogConfig
from services.config import ConfigError
from services.health import SERVICES
from services.probe import ProbePort
from tests.kit.health_probe import HealthProbe, ProbeRefused, health_probe

CONFIG = WatchdogConfig()


@contextmanager
def probed(vitals: Vitals) -> Iterator[HealthProbe]:
    port = ProbePort("127.0.0.1", 0, vitals, CONFIG)
    port.start()
    try:
        with health_probe(port.address) as probe:
            yield probe
    finally:
        port.stop()


def test_check_when_the_state_changes_then_the_next_answer_says_so_without_any_event_loop() -> None:
    vitals = Vitals()
    with probed(vitals) as probe:
        assert (probe.is_serving("liveness"), probe.is_serving("readiness")) == (True, False)
        vitals.enter(EngineState.SERVING)
        assert [probe.is_serving(name) for name in SERVICES] == [True] * 4
        vitals.enter(EngineState.FAILED)
        assert [probe.is_serving(name) for name in SERVICES] == [False] * 4


def test_check_when_the_service_is_unknown_then_not_found_with_the_known_ones() -> None:
    with probed(Vitals()) as probe, pytest.raises(ProbeRefused) as caught:
        probe.is_serving("nonsense")
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    assert "'liveness'" in caught.value.details


def test_watch_when_the_state_changes_then_each_change_is_told_once() -> None:
    vitals = Vitals()
    with probed(vitals) as probe:
        answers = probe.watch("readiness")
        assert next(answers) is False
        vitals.enter(EngineState.SERVING)
        assert next(answers) is True
        vitals.enter(EngineState.DRAINING)
        assert next(answers) is False


def test_watch_when_too_many_watch_then_refused_and_checks_are_answered_still() -> None:
    with probed(Vitals()) as probe:
        watches = [probe.watch("") for _ in range(3)]
        assert [next(answers) for answers in watches[:2]] == [False, False]
        with pytest.raises(ProbeRefused) as caught:
            next(watches[2])
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert probe.is_serving("liveness")


def test_port_when_it_is_taken_then_the_flag_is_named() -> None:
    first = ProbePort("127.0.0.1", 0, Vitals(), CONFIG)
    first.start()
    try:
        with pytest.raises(ConfigError, match="--health-port"):
            ProbePort("127.0.0.1", int(first.address.rsplit(":", 1)[1]), Vitals(), CONFIG)
    finally:
        first.stop()
