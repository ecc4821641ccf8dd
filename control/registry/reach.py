"""Tries which servers of ZooKeeper accept connections, all at once. Knows no session and no tree, and loads no library."""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Mapping
from typing import Final

TRY_S: Final = 1.0
LATE: Final = "no answer"


def split(hosts: str) -> dict[str, tuple[str, int]]:
    """Parse `HOST:PORT,HOST:PORT` into addresses by text."""
    parts = ((each, each.rpartition(":")) for each in hosts.split(","))
    return {each: (host.strip("[]"), int(port)) for each, (host, _, port) in parts}


def tried(hosts: str, *, one: bool = False) -> Mapping[str, str]:
    """Each server with the reason why it accepts no connection, empty if it does. With `one`, return as soon as one
    does.

    Later results are added to the returned value.
    """
    servers, said = split(hosts), queue.SimpleQueue[str]()
    found, deadline = dict.fromkeys(servers, LATE), time.monotonic() + TRY_S

    def attempt(server: str) -> None:
        found[server] = _why(*servers[server])
        said.put(found[server])

    for server in servers:
        # Daemon threads: looking up a name may take long, and no thread waits for it.
        threading.Thread(target=attempt, args=(server,), daemon=True).start()
    with contextlib.suppress(queue.Empty):
        for _ in servers:
            if not said.get(timeout=max(0.0, deadline - time.monotonic())) and one:
                break
    return found


def _why(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), TRY_S):
            return ""
    except OSError as error:
        return error.strerror or str(error)
