"""Ports for servers that tests start, kill and restart: from outside the kernel's range for arbitrary sockets."""

from muster_server.control.host.ports import Ports


def free_ports(count: int) -> list[int]:
    """This many TCP ports on the loopback, all different."""
    with Ports() as ports:
        return [ports.tcp("a server of tests", "127.0.0.1")[1] for _ in range(count)]
