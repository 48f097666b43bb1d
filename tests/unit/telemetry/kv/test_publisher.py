"""What a publisher says of where it listens."""

import pytest

from telemetry.kv.publisher import to_told


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("tcp://10.1.2.3:5557", "tcp://10.1.2.3:5557"),
        ("tcp://[::1]:5557", "tcp://[::1]:5557"),
        ("tcp://0.0.0.0:5557", "tcp://*:5557"),
        ("tcp://[::]:5558", "tcp://*:5558"),
    ],
)
def test_endpoint_when_it_is_all_addresses_then_a_star_in_place_of_one_that_is_nobodys(bound: str, told: str) -> None:
    assert to_told(bound) == told
