"""The lines of `muster status` about nodes and programs."""

from typing import Any

import pytest

from muster_server.control.cli import status
from muster_server.control.cluster.instance import Beside, Record

COLUMNS = {"restarts": 0, "epoch": 1, "pid": 1, "admin": ""}


def a_role(name: str, number: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "role": "likes", "node": number, "partition": 0, "state": "starting", **COLUMNS, **more}


@pytest.mark.parametrize("programs", [0, 2])
def test_each_nodes_notes_are_printed_once(capsys: pytest.CaptureFixture[str], programs: int) -> None:
    """A note says why a partition is not open."""
    beside = [
        Beside(name=f"redis-{at}", bind=("127.0.0.1", 1), pid=1, ready=True, restarts=0) for at in range(programs)
    ]
    record = Record(
        name="one", version="0", pid=1, started=1, token_file="", processes=[], faults=False, programs=beside
    )
    roles = [
        a_role("likes", 1, notes=["partition 3 is not open: the topic has 1 partition"]),
        a_role("likes-1", 2, notes=["serves 2 of 4 partitions"]),
        a_role("http", 3),
    ]
    status._print(record, roles, {})
    printed = capsys.readouterr().out
    assert printed.count("likes: partition 3 is not open: the topic has 1 partition") == 1
    assert printed.count("likes-1: serves 2 of 4 partitions") == 1
