"""Connects a subcommand to the fleet: finds its nodes, proves the cluster's secret, and turns their refusals into one
line."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from muster_server.control.cluster import instance, specs
from muster_server.control.errors import FAILURE, TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Target, found
from muster_server.plane.calls import CallError, key_of
from muster_server.plane.spec import SpecError, secret
from muster_server.systems.fleet.asking import INDEX, SCHEDULER, Asking, asking

CODES: Final = {"selector": USAGE, "pick": USAGE, "task": USAGE, "order": USAGE, "away": UNAVAILABLE, "late": TRY_LATER}
CODES_LATER: Final = frozenset({"busy", "follows", "moved", "slow", "store"})


def reaching(config: Path | None, registry: str | None, work: Callable[[Asking], Awaitable[int]]) -> int:
    """Run the work of a subcommand and return its exit code. Raises `UserError`."""
    return common.run(_reaching(Target(config, registry), work))


async def _reaching(where: Target, work: Callable[[Asking], Awaitable[int]]) -> int:
    async with found(where) as nodes:
        record = await nodes.record()
        key = _key(where, record)

        async def renew() -> None:
            nonlocal record
            record = await nodes.record()

        async with asking(lambda: record.processes, key, renew) as opened:
            with in_one_line():
                return await work(opened)


async def nodes_and_key(where: Target) -> tuple[list[instance.Process], bytes]:
    """The fleet's nodes as they are now, and the key that proves the cluster's secret to them. Raises `UserError`."""
    async with found(where) as nodes:
        record = await nodes.record()
    return [each for each in record.processes if each.role in {INDEX, SCHEDULER}], _key(where, record)


def _key(where: Target, record: instance.Record) -> bytes:
    if not {INDEX, SCHEDULER} <= {each.role for each in record.processes}:
        raise UserError("no fleet runs here; start one: muster up --with fleet", UNAVAILABLE)
    settings = where.config()
    file = specs.absolute(settings.cluster.secret_file) or str(instance.folder(settings).cluster_secret)
    try:
        return key_of(secret(file, 32))
    except SpecError as error:
        raise UserError(str(error)) from None


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Convert a refusal to an error of the user, with its exit code."""
    try:
        yield
    except CallError as error:
        code = CODES.get(error.code, TRY_LATER if error.code in CODES_LATER else FAILURE)
        raise UserError(str(error), code) from None
