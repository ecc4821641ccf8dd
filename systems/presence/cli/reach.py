"""Connects a subcommand to the readers: finds them, proves the cluster's secret, and turns their refusals into one
line."""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from muster_server.control.cluster import instance, specs
from muster_server.control.cluster.instance import Process
from muster_server.control.errors import FAILURE, TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.terminal.found import LocalNodes, Target, found
from muster_server.control.terminal.texts import Texts
from muster_server.plane.calls import CallError, key_of
from muster_server.plane.spec import SpecError, secret
from muster_server.plane.users import HASHED
from muster_server.systems.presence.asking import ROLE, Address, Readers

CODES: Final = {"question": USAGE, "away": UNAVAILABLE}
LATER: Final = frozenset({"late", "stale", "store", "busy", "slow"})
NONE_RUNS: Final = "no presence runs here; start it: muster up --with presence"


async def reaching(
    where: Target, work: Callable[[Readers, Texts], Awaitable[int]], known: Mapping[int, str] | None = None
) -> int:
    """Run the work of a subcommand and return its exit code. `known`: names of users that the subcommand has. Raises
    `UserError`."""
    settings = where.config()
    async with found(where) as nodes:
        record = await nodes.record()
        if ROLE not in {each.role for each in record.processes}:
            raise UserError(NONE_RUNS, UNAVAILABLE)
        place = instance.folder(settings)
        file = specs.absolute(settings.cluster.secret_file) or str(place.cluster_secret)
        try:
            key = key_of(secret(file, 32))
        except SpecError as error:
            raise UserError(str(error)) from None

        def look() -> list[Address]:
            processes = instance.find(place).processes if isinstance(nodes, LocalNodes) else record.processes
            return [each.bind for each in processes if each.role == ROLE and each.bind and each.ready]

        async def nodes_now() -> Iterable[Process]:
            return (await nodes.record()).processes

        readers = Readers(look, key)
        try:
            with in_one_line():
                return await work(readers, Texts(nodes_now, known))
        finally:
            await readers.close()


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Convert a refusal to an error of the user, with its exit code."""
    try:
        yield
    except CallError as error:
        raise UserError(str(error), CODES.get(error.code, TRY_LATER if error.code in LATER else FAILURE)) from None


def texts_among(users: Iterable[tuple[int, str]]) -> dict[int, str]:
    """The names of those users that are text, by number."""
    return {number: text for number, text in users if number >= HASHED and str(number) != text}


def named_json(user: int, texts: Mapping[int, str]) -> dict[str, str]:
    """A user in JSON: a number of 64 bits as text, and its name if it is text and known."""
    return {"user": str(user)} | ({"text": texts[user]} if user in texts else {})
