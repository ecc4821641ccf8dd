"""What limits a node, from two of its readings."""

import pytest

from muster_server.control.errors import UserError
from muster_server.control.terminal.limits import FILES, FILES_MAX, LAG, limiting
from muster_server.control.terminal.readings import CPU, NO_ANSWER, RSS, Reading

MEMORY = 1 << 30


def read(cpu: float, **values: float) -> tuple[Reading, Reading]:
    """Two readings, two seconds apart, in which the node used `cpu` cores and counters grew to `values`."""
    counters = {f"muster_{name}_total": value for name, value in values.items()}
    before = Reading(0.0, "ready", dict.fromkeys(counters, 0.0) | {CPU: 1.0})
    gauges = {RSS: 1 << 20, FILES: 20.0, FILES_MAX: 1_000.0, LAG: 0.002}
    return before, Reading(2.0, "ready", gauges | counters | {CPU: 1.0 + 2 * cpu}, status={"memory_bytes_max": MEMORY})


@pytest.mark.parametrize(
    ("cpu", "values", "what", "text"),
    [
        (0.2, {}, "nothing", "nothing"),
        (0.92, {}, "cpu", "CPU: 92% of a core"),
        (0.92, {"udp_lost_stale": 4.0}, "sockets", "a socket's queue is full: udp_lost_stale 2.0/s"),
        (0.2, {"dropped_queue_full": 3.0, "refused_full": 9.0}, "tables", "refused_full 4.5/s"),
        (0.2, {"dropped_old": 9.0}, "nothing", "nothing"),
    ],
)
def test_a_node_is_limited_by(cpu: float, values: dict[str, float], what: str, text: str) -> None:
    limit = limiting(*read(cpu, **values))
    assert limit is not None
    assert (limit.what, text in limit.text) == (what, True), limit


def test_a_node_is_limited_by_memory_files_and_a_core_that_others_have() -> None:
    before, now = read(0.2)
    found = {
        name: limiting(before, Reading(2.0, "ready", {**now.values, **values}, status=now.status))
        for name, values in {
            "memory": {RSS: 0.95 * MEMORY},
            "files": {FILES: 950.0},
            "cores": {LAG: 0.14},
        }.items()
    }
    assert {name: limit and limit.what for name, limit in found.items()} == {name: name for name in found}
    assert [limit and limit.text for limit in found.values()] == [
        "memory: 973 of 1,024 MiB",
        "open files: 950 of 1,000",
        "cores: its loop waited 140 ms for one",
    ]


def test_of_a_node_that_does_not_answer_nothing_is_known() -> None:
    before, now = read(0.2)
    assert limiting(before, Reading(2.0, NO_ANSWER, {}, UserError("gone"))) is None
    restarted = limiting(None, now)
    assert restarted is not None
    assert restarted.what == "nothing"
