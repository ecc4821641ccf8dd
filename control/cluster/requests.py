"""Requests of commands to the supervisor of a running instance, by `plane/calls` at a Unix socket in its folder.

Each is answered at once: the work that it starts takes longer, and `Look` returns its state. Owns the requests; the
supervisor does the work.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, get_args

import msgspec

from muster_server.control.config.layout import PARTITIONS_MAX
from muster_server.control.config.options import SERVED
from muster_server.control.errors import FAILURE, TRY_LATER, NotRunning, UserError
from muster_server.plane.calls import LOCAL, CallError, Peer, Server
from muster_server.plane.kinds import partitioned

SOCKET: Final = "requests.sock"
ANSWER_S: Final = 5.0

Partition = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
if TYPE_CHECKING:
    Role: TypeAlias = str
    Layered: TypeAlias = str
else:  # a request that names no role is refused while it is parsed
    Role, Layered = Literal[SERVED], Literal[tuple(sorted(partitioned()))]
Partitions = Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """One request."""


class Look(Ask, frozen=True, kw_only=True):
    """List the nodes."""


class Add(Ask, frozen=True, kw_only=True):
    """Start one more node. The answer contains it."""

    role: Role
    partition: Partition = 0


class Remove(Ask, frozen=True, kw_only=True):
    """Drain a node and stop it permanently. The answer contains it."""

    node: int


class Provide(Ask, frozen=True, kw_only=True):
    """Start the missing replicas of partitions below this number: as many as the partition has that they split. The
    answer contains them."""

    role: Layered
    partitions: Partitions


class Withdraw(Ask, frozen=True, kw_only=True):
    """Stop the replicas of partitions from this number on. The answer contains them."""

    role: Layered
    partitions: Partitions


class Counted(Ask, frozen=True, kw_only=True):
    """Record the new number of partitions."""

    role: Layered
    partitions: Partitions


class Seated(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the instance. `state` is the state of its process; `error` the reason why it waits or fails."""

    name: str
    role: Role
    node: int
    partition: int
    state: str
    leaving: bool = False
    error: str = ""


Request = Look | Add | Remove | Provide | Withdraw | Counted
Take = Callable[[Request], Sequence[Seated]]


@contextlib.asynccontextmanager
async def answered(folder: Path, take: Take) -> AsyncIterator[None]:
    """Serve while the block lasts. `take` raises `UserError` for a request that it refuses."""

    async def serve(request: Request) -> list[Seated]:
        try:
            return list(take(request))
        except UserError as error:
            raise CallError(str(error.exit_code), str(error)) from None

    server = Server(LOCAL, dict.fromkeys(get_args(Request), serve))
    await server.start_at(folder / SOCKET)
    try:
        yield
    finally:
        await server.stop()


async def ask(folder: Path, request: Request) -> list[Seated]:
    """Ask the running instance, and wait for its answer. Raises `UserError`."""
    if not (folder / SOCKET).exists():
        raise NotRunning(f"no instance accepts requests in {folder}; start one: muster up")
    peer = Peer(folder / SOCKET, LOCAL)
    try:
        return await peer.ask(request, list[Seated], ANSWER_S)
    except CallError as error:
        if error.code in {"question", "reply"}:
            raise UserError(f"{error}; use one version of muster for the command and the instance") from None
        refused = int(error.code) if error.code.isdigit() else FAILURE
        raise UserError(str(error), TRY_LATER if error.code in {"away", "late", "busy"} else refused) from None
    finally:
        await peer.close()
