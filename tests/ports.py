"""Ports for servers that tests start, kill and start again: none that the kernel gives meanwhile to who asks for any."""

from control.host.ports import Ports


def free_ports(count: int) -> list[int]:
    """So many of TCP on the loopback, each another one."""
    with Ports() as ports:
        return [ports.tcp("a server of tests", "127.0.0.1")[1] for _ in range(count)]
