"""The number of descriptors that the HTTP face may open, and of connections that it accepts. Knows no connection."""

import resource
from typing import Final

import structlog

OWN: Final = 256
"""Descriptors of files, listeners, clients that read rooms, requests to nodes."""
SESSION: Final = 8
"""Descriptors of one user: two clients, each with sockets and the wake-up of its loop."""
CONNECTIONS_MIN: Final = 16


def fitting(connections: int, sessions: int, soft: int, hard: int) -> tuple[int, int]:
    """The wanted soft limit, never above `hard` nor below `soft`, and the number of connections that fit below it."""
    wanted = connections + SESSION * sessions + OWN
    limit = max(soft, min(wanted, hard))
    return limit, min(connections, max(CONNECTIONS_MIN, connections - (wanted - limit)))


def connections_possible(connections: int, sessions: int, log: structlog.typing.FilteringBoundLogger) -> int:
    """Raise this process's limit, and return how many of the connections fit; logs if not all do."""
    infinite = resource.RLIM_INFINITY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == infinite:
        return connections
    limit, possible = fitting(connections, sessions, soft, (1 << 30) if hard == infinite else hard)
    if limit != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if possible < connections:
        log.warning("fewer connections fit than http.connections_max; raise ulimit -n", possible=possible, files=limit)
    return possible
