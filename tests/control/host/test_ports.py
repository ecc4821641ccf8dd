"""Addresses are chosen once: named ones as they are, free ones outside the kernel's range."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster_server.control.errors import UserError
from muster_server.control.host import ports
from muster_server.control.host.ports import Ports
from tests.ports import free_ports


def kernels() -> range:
    low, high = map(int, ports.KERNELS.read_text().split())
    return range(low, high + 1)


@pytest.fixture
def chosen() -> Iterator[Ports]:
    with Ports() as chosen:
        yield chosen


def test_a_free_port_is_none_that_the_kernel_gives_to_who_asks_for_any(chosen: Ports) -> None:
    """A client's socket could take it while its node is away, which then never returns."""
    given = [chosen.udp("a", "127.0.0.1", 0) for _ in range(50)] + [chosen.tcp("b", "127.0.0.1") for _ in range(50)]
    assert not {port for _, port in given} & set(kernels())
    assert len(set(given[:50])) == len(set(given[50:])) == 50


def unused(count: int) -> list[int]:
    """Ports that no process has or has chosen."""
    found: list[int] = []
    while len(found) < count:
        for port in ports._free():
            with (
                contextlib.suppress(OSError),
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark,
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own,
            ):
                mark.bind(f"\0muster-port-{port}")
                own.bind(("127.0.0.1", port))
                found.append(port)
    return found[:count]


def test_a_port_that_another_start_has_chosen_is_not_chosen_until_its_node_has_it(
    chosen: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instances that started together had one port once in some hundred starts, and one of them ended."""
    free, other = unused(2)
    monkeypatch.setattr(ports, "_free", lambda: [free, other])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs:
        theirs.bind(f"\0muster-port-{free}")
        assert chosen.udp("a", "127.0.0.1", 0) == ("127.0.0.1", other)
    assert chosen.udp("b", "127.0.0.1", 0) == ("127.0.0.1", free)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs, pytest.raises(OSError, match="in use"):
        theirs.bind(f"\0muster-port-{free}")
    ports._MARKS.update({port: (0.0, mark) for port, (_, mark) in ports._MARKS.items()})
    assert ports._mark(other)
    assert set(ports._MARKS) == {other}, "the time of the others is over"


def test_a_port_is_chosen_once_though_its_server_does_not_listen_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's Redis and one of its nodes had one port once in some hundred starts, and one of them ended."""
    first, second = unused(2)
    monkeypatch.setattr(ports, "_free", lambda: [first, second])
    given = []
    for _ in range(2):
        with Ports() as chosen:
            given.append(chosen.tcp("a", "127.0.0.1")[1])
    assert given == [first, second]


def test_a_port_for_tests_is_free_for_datagrams_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The links of nodes are UDP. A node of another test may have the port, where TCP is free."""
    taken, free = unused(2)
    monkeypatch.setattr(ports, "_free", lambda: [taken, free])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as node:
        node.bind(("127.0.0.1", taken))
        assert free_ports(1) == [free]


def test_where_the_kernel_gives_all_ports_one_of_them_is_taken(
    chosen: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("1024 65535", "no range"):
        (tmp_path / "range").write_text(text)
        monkeypatch.setattr(ports, "KERNELS", tmp_path / "range")
        assert chosen.udp("a", "127.0.0.1", 0)[1] > 0
    monkeypatch.setattr(ports, "KERNELS", tmp_path / "absent")
    assert chosen.udp("a", "127.0.0.1", 0)[1] > 0


def test_an_address_of_another_machine_is_named(chosen: Ports) -> None:
    with pytest.raises(UserError, match=r"gateway\.bind: 192\.0\.2\.1:0 is not an address of this machine"):
        chosen.udp("gateway.bind", "192.0.2.1", 0)


def test_a_port_whose_last_node_ended_its_connections_is_there_for_the_next_one(chosen: Ports) -> None:
    """As with each request that says `Connection: close`, which leaves the address in use for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    assert chosen.tcp("serve.admin", *address) == address


def test_a_port_that_somebody_listens_on_is_taken(chosen: Ports) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with pytest.raises(UserError, match=rf"serve\.admin: 127\.0\.0\.1:{address[1]} is in use by another process"):
            chosen.tcp("serve.admin", *address)
