"""How a word reaches the readers: finds them, proves the cluster's secret, and turns their refusals into one line."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from control.cluster import instance, specs
from control.console.found import LocalNodes, Target, found
from control.errors import FAILURE, TRY_LATER, UNAVAILABLE, USAGE, UserError
from control.presence.asking import ROLE, USER_MAX, Address, Readers
from plane import users
from plane.calls import CallError, key_of
from plane.spec import SpecError, secret

CODES: Final = {"question": USAGE, "away": UNAVAILABLE}
LATER: Final = frozenset({"late", "stale", "store", "busy", "slow"})
NONE_RUNS: Final = "no presence runs here; start it: muster up --with presence"


async def reaching(where: Target, work: Callable[[Readers], Awaitable[int]]) -> int:
    """Run a word's work and return its exit code. Raises `UserError`."""
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

        readers = Readers(look, key)
        try:
            with in_one_line():
                return await work(readers)
        finally:
            await readers.close()


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """A refusal as an error of the user, with its exit code."""
    try:
        yield
    except CallError as error:
        raise UserError(str(error), CODES.get(error.code, TRY_LATER if error.code in LATER else FAILURE)) from None


def user_of(where: Target, text: str) -> int:
    """The number of a user. Raises `UserError` unless it is one, or text, for which the key of room names is needed."""
    if text.isascii() and text.isdigit() and int(text) <= USER_MAX:
        return int(text)
    try:
        users.check_user(text)
        return users.user_of(text, secret(specs.names_file(where.config()), 16))
    except (ValueError, SpecError) as error:
        raise UserError(f"{text!r} is not a user: {error}", USAGE) from None
