"""The time of a growth in its step: since the step was first seen, by layer, and not after its end."""

from muster_server.control.registry.places import Count, Growth
from muster_server.control.registry.steps import Steps


def growing(serial: int, step: str = "prepare") -> Count:
    return Count(1, serial, Growth(2, step, 2, "somebody"))  # type: ignore[arg-type]


def test_each_step_counts_from_when_it_was_heard_of() -> None:
    steps = Steps()
    steps.take({"broker/main": growing(1), "router": Count(1)}, 10.0)
    steps.take({"broker/main": growing(1), "router": growing(5)}, 15.0)
    assert steps.seconds(20.0) == {"broker/main": 10.0, "router": 5.0}
    steps.take({"broker/main": growing(2, "switched"), "router": growing(5)}, 21.0)
    assert steps.seconds(22.0) == {"broker/main": 1.0, "router": 7.0}


def test_who_takes_a_step_over_is_at_work() -> None:
    steps = Steps()
    steps.take({"router": growing(1)}, 0.0)
    steps.take({"router": growing(2)}, 700.0)
    assert steps.seconds(701.0) == {"router": 1.0}


def test_what_ended_or_was_given_up_is_none() -> None:
    steps = Steps()
    steps.take({"router": growing(1)}, 0.0)
    steps.take({"router": Count(1, 2)}, 1.0)
    assert steps.seconds(2.0) == {}
