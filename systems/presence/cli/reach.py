"""Connects a subcommand to the readers: finds them, proves the cluster's secret, and turns their refusals into one
line."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from muster_server.control.cluster.instance import Process
from muster_server.control.errors import UNAVAILABLE, UserError
from muster_server.control.terminal import calls
from muster_server.control.terminal.found import Target, found
from muster_server.control.terminal.texts import Texts
from muster_server.plane.users import HASHED
from muster_server.systems.presence.asking import ROLE, Readers

NONE_RUNS: Final = "no presence runs here; start it: muster up --with presence"


async def reaching(
    where: Target, work: Callable[[Readers, Texts], Awaitable[int]], known: Mapping[int, str] | None = None
) -> int:
    """Run the work of a subcommand and return its exit code. `known`: names of users that the subcommand has. Raises
    `UserError`."""
    async with found(where) as nodes:
        record = await nodes.record()
        if ROLE not in {each.role for each in record.processes}:
            raise UserError(NONE_RUNS, UNAVAILABLE)

        async def nodes_now() -> Iterable[Process]:
            return (await nodes.record()).processes

        readers = Readers(calls.look(where, nodes, record, ROLE), calls.key(where))
        try:
            with calls.in_one_line():
                return await work(readers, Texts(nodes_now, known))
        finally:
            await readers.close()


def texts_among(users: Iterable[tuple[int, str]]) -> dict[int, str]:
    """The names of those users that are text, by number."""
    return {number: text for number, text in users if number >= HASHED and str(number) != text}


def named_json(user: int, texts: Mapping[int, str]) -> dict[str, str]:
    """A user in JSON: a number of 64 bits as text, and its name if it is text and known."""
    return {"user": str(user)} | ({"text": texts[user]} if user in texts else {})
