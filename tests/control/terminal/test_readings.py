"""Nodes that share a process of the system report its figures once each: they are counted once."""

from muster_server.control.cluster.instance import Process
from muster_server.control.terminal.readings import BEGAN, Reading, processes_of


def node(number: int, host: str = "127.0.0.1") -> Process:
    return Process(
        name=f"node-{number}",
        role="broker",
        node=number,
        partition=0,
        pid=0,
        epoch=1,
        restarts=0,
        ready=True,
        link=(host, 1),
        admin=(host, 1),
    )


def reading(pid: int | None, began: float = 1.0) -> Reading:
    return Reading(at=0.0, state="ready", values={BEGAN: began}, status={} if pid is None else {"pid": pid})


def test_nodes_of_one_process_are_together_and_all_others_apart() -> None:
    nodes = [node(1), node(2), node(3, "10.0.0.1"), node(4), node(5), node(6)]
    now = {1: reading(7), 2: reading(7), 3: reading(7), 4: reading(7, began=2.0), 5: reading(None), 6: reading(None)}
    assert [[each.node for each in group] for group in processes_of(nodes, now)] == [[1, 2], [3], [4], [5], [6]]
