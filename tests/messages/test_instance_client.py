"""Messages to users: which outcomes end a message, and which ask for another attempt."""

import pytest

from muster import DeviceResult
from muster_server.systems.messages.instance_client import missed


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        (["delivered"], ""),
        (["not_online", "delivered", "expired"], ""),
        (["not_online"], "not_online"),
        (["not_online", "expired"], "expired"),
        (["not_online", "unknown"], "unknown"),
        ([], "not_online"),
    ],
)
def test_one_device_that_has_a_message_is_enough(outcomes: list[str], why: str) -> None:
    results = [DeviceResult(f"device {place}", outcome) for place, outcome in enumerate(outcomes)]  # type: ignore[arg-type]
    said = missed("7", results)
    assert said.partition(":")[0] == why
    assert not said or "user 7" in said
