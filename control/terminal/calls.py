"""Requests of a command to nodes, by `plane.calls`: the nodes of a role, the key, and refusals in one line."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from muster_server.control.cluster import instance, specs
from muster_server.control.cluster.instance import Record
from muster_server.control.errors import FAILURE, TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.terminal.found import LocalNodes, Nodes, Target
from muster_server.plane.asking import Address, Look
from muster_server.plane.calls import CallError, key_of
from muster_server.plane.spec import SpecError, secret

LATER: Final = ("busy", "full", "late", "slow", "stale", "store")
CODES: Final[Mapping[str, int]] = {"question": USAGE, "away": UNAVAILABLE} | dict.fromkeys(LATER, TRY_LATER)
"""Exit codes by the code of a `CallError`."""


def look(where: Target, nodes: Nodes, record: Record, role: str) -> Look:
    """Returns the ready nodes of a role; those of the local instance as they are at each call."""
    place = instance.folder(where.config())

    def now() -> list[Address]:
        processes = instance.find(place).processes if isinstance(nodes, LocalNodes) else record.processes
        return [each.bind for each in processes if each.role == role and each.bind and each.ready]

    return now


def key(where: Target) -> bytes:
    """The key that proves the cluster's secret to nodes. Raises `UserError`."""
    settings = where.config()
    file = specs.absolute(settings.cluster.secret_file) or str(instance.folder(settings).cluster_secret)
    try:
        return key_of(secret(file, 32))
    except SpecError as error:
        raise UserError(str(error)) from None


@contextlib.contextmanager
def in_one_line(codes: Mapping[str, int] = CODES) -> Iterator[None]:
    """Convert a refusal to an error of the user, with its exit code."""
    try:
        yield
    except CallError as error:
        raise UserError(str(error), codes.get(error.code, FAILURE)) from None
