"""The runtime's one gate."""

from collections.abc import Callable

import pytest

from engine.runtime.config import RuntimeConfig


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("inbox_max", lambda: RuntimeConfig(inbox_max=0)),
        ("unread_ids_max", lambda: RuntimeConfig(unread_ids_max=0)),
        ("full_check_steps", lambda: RuntimeConfig(full_check_steps=0)),
        ("session_records_max", lambda: RuntimeConfig(session_records_max=0)),
        ("record_bytes_max", lambda: RuntimeConfig(record_bytes_max=0)),
        ("stateless_record_s", lambda: RuntimeConfig(stateless_record_s=0.0)),
        ("detach_grace_s", lambda: RuntimeConfig(detach_grace_s=float("nan"))),
        ("detach_grace_s", lambda: RuntimeConfig(detach_grace_s=-1.0)),
        ("expire_interval_s", lambda: RuntimeConfig(expire_interval_s=0.0)),
        ("stop_timeout_s", lambda: RuntimeConfig(stop_timeout_s=float("nan"))),
    ],
)
def test_runtime_config_when_a_number_can_not_be_then_refused_by_name(
    name: str, build: Callable[[], RuntimeConfig]
) -> None:
    with pytest.raises(ValueError, match=name):
        build()
