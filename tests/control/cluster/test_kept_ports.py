"""The ports of an instance's servers stay from one start to the next."""

import socket
from pathlib import Path

from muster_server.control.cluster.kept_ports import KeptPorts
from muster_server.control.host.ports import Ports


def started(file: Path, port: int = 0) -> int:
    """The port of one start."""
    kept = KeptPorts(file)
    with Ports(marks=False) as ports:
        _, chosen = kept.bound("likes-1 likes.bind", ports.tcp, "likes.bind", "127.0.0.1", port)
    kept.keep()
    return chosen


def test_restarted_instance_has_its_port_again(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = started(file)
    assert [started(file) for _ in range(3)] == [first] * 3
    named = started(file, 45_131)
    assert named == 45_131, "a configured port is the operator's"
    assert started(file) == first


def test_port_that_another_process_has_is_not_insisted_on(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = started(file)
    with socket.create_server(("127.0.0.1", first)):
        other = started(file)
    assert other != first
    assert started(file) == other


def test_damaged_file_of_ports_only_chooses_others(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    file.write_text("nonsense")
    first = started(file)
    assert started(file) == first
