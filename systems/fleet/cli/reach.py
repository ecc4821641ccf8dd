"""Connects a subcommand to the fleet: finds its nodes, proves the cluster's secret, and turns their refusals into one
line."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from muster_server.control.cluster import instance
from muster_server.control.errors import TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.terminal import calls, common
from muster_server.control.terminal.found import Target, found
from muster_server.systems.fleet.asking import INDEX, SCHEDULER, Asking, asking

CODES: Final = {
    **calls.CODES,
    **dict.fromkeys(("selector", "pick", "task", "order"), USAGE),
    **dict.fromkeys(("follows", "moved"), TRY_LATER),
}


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
            with calls.in_one_line(CODES):
                return await work(opened)


async def nodes_and_key(where: Target) -> tuple[list[instance.Process], bytes]:
    """The fleet's nodes as they are now, and the key that proves the cluster's secret to them. Raises `UserError`."""
    async with found(where) as nodes:
        record = await nodes.record()
    return [each for each in record.processes if each.role in {INDEX, SCHEDULER}], _key(where, record)


def _key(where: Target, record: instance.Record) -> bytes:
    if not {INDEX, SCHEDULER} <= {each.role for each in record.processes}:
        raise UserError("no fleet runs here; start one: muster up --with fleet", UNAVAILABLE)
    return calls.key(where)
