"""The bench of tasks, small: every figure is there, and every goal is judged."""

import pytest

from bench import tasks
from bench.peers import Missing, Redis


@pytest.mark.soak  # an instance, a Redis and six workers
def test_tasks_a_second_and_the_way_to_a_handler_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        Redis.find()
    except Missing as missing:
        pytest.skip(str(missing))
    monkeypatch.setattr(tasks, "COUNT", 400)
    monkeypatch.setattr(tasks, "PROBES", 3)
    found = tasks.run(rounds=1, quick=False)
    assert [case.name for case in found if case.goal is not None] == [
        "one worker: tasks a second",
        "two workers: tasks a second",
        "idle: send to handler, p50 ms",
        "idle: p99 ms",
    ]
    assert all(case.goal.startswith("SITE-2 ") for case in found if case.goal)
    values = {case.name: case.value for case in found}
    for peer in ("dramatiq", "streaq"):
        assert values[f"{peer}: tasks a second"] > 0
        assert f"one worker, beside {peer}" in values
    assert values["idle, beside streaq"] > 0
