"""Ports for servers that tests start, kill and restart: from outside the kernel's range for arbitrary sockets."""

from muster_server.control.errors import UserError
from muster_server.control.host.ports import Ports

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """This many ports on the loopback, all different, each of them free for both TCP and UDP."""
    found: list[int] = []
    with Ports() as ports:
        while len(found) < count:
            _, port = ports.tcp("a server of tests", HOST)
            try:
                ports.udp("a server of tests", HOST, port)
            except UserError:  # a node listens there for datagrams
                continue
            found.append(port)
    return found
