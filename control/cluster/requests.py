"""Requests of commands to the supervisor of a running instance: a Unix socket in its folder, a line of JSON each way.

One request per connection, answered at once: the work that it starts takes longer, and `Look` returns its state. Owns
the requests and replies; the supervisor does the work.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec
import structlog

from muster_server.control.config.layout import PARTITIONS_MAX
from muster_server.control.config.options import SERVED
from muster_server.control.errors import FAILURE, TRY_LATER, NotRunning, UserError
from muster_server.control.host.sockets import address, listen
from muster_server.plane.kinds import partitioned

SOCKET: Final = "requests.sock"
FORMAT: Final = 1
REQUEST_MAX: Final = 4 << 10
ANSWER_MAX: Final = 256 << 10
"""Limit of an answer in bytes: 512 nodes, each of about 200 B and a line with its error."""
AT_ONCE: Final = 8
ASKED_S: Final = 5.0
"""Limit of one connection, in seconds."""

Partition = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
if TYPE_CHECKING:
    Role: TypeAlias = str
    Layered: TypeAlias = str
else:  # a request that names no role is refused while it is parsed
    Role, Layered = Literal[SERVED], Literal[tuple(sorted(partitioned()))]
Partitions = Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag=str.lower, forbid_unknown_fields=True):
    """One request."""

    format: int = FORMAT


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


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requested nodes, or the reason of a failure with its exit code."""

    nodes: list[Seated] = []
    error: str = ""
    exit_code: int = 0


Request = Look | Add | Remove | Provide | Withdraw | Counted
Take = Callable[[Request], Sequence[Seated]]
_REQUEST: Final = msgspec.json.Decoder(Request)
_ANSWER: Final = msgspec.json.Decoder(Answer)


@contextlib.asynccontextmanager
async def answered(folder: Path, take: Take, log: structlog.typing.FilteringBoundLogger) -> AsyncIterator[None]:
    """Serve while the block lasts. `take` raises `UserError` for a request that it refuses."""
    waiting = asyncio.Semaphore(AT_ONCE)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with waiting, asyncio.timeout(ASKED_S):
                answer = _taken(await reader.readline(), take, log)
                if writer.is_closing():
                    return
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()
                writer.close()
        except (OSError, TimeoutError, ValueError):  # closed, too slow, or a line without an end
            writer.transport.abort()

    with listen(folder, SOCKET) as listening:
        server = await asyncio.start_unix_server(serve, sock=listening, limit=REQUEST_MAX)
        try:
            yield
        finally:
            server.close()


def _taken(line: bytes, take: Take, log: structlog.typing.FilteringBoundLogger) -> Answer:
    try:
        request = _REQUEST.decode(line)
        if request.format != FORMAT:
            raise UserError(
                f"the instance uses format {FORMAT}, this command {request.format}; use one version of muster for both"
            )
        return Answer(nodes=list(take(request)))
    except msgspec.MsgspecError as error:
        return Answer(
            error=f"the instance does not know this request: {error}; use one version of muster for both",
            exit_code=FAILURE,
        )
    except UserError as error:
        return Answer(error=str(error), exit_code=error.exit_code)
    except Exception as error:
        log.exception("a request failed", line=line[:200].decode(errors="replace"))
        return Answer(error=f"the instance failed to carry out the request: {error!r}; see its log", exit_code=FAILURE)


def ask(folder: Path, request: Request) -> list[Seated]:
    """Ask the running instance, and wait for its answer. Raises `UserError`."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(ASKED_S)
            with address(folder, SOCKET) as path:
                asking.connect(path)
            asking.sendall(msgspec.json.encode(request) + b"\n")
            with asking.makefile("rb") as reader:
                line = reader.readline(ANSWER_MAX)
        answer = _ANSWER.decode(line)
    except FileNotFoundError:
        raise NotRunning(f"no instance accepts requests in {folder}; start one: muster up") from None
    except TimeoutError:
        raise UserError(f"the instance in {folder} does not answer; try again", TRY_LATER) from None
    except OSError as error:
        raise UserError(f"{folder / SOCKET}: {error.strerror}; try again", TRY_LATER) from None
    except msgspec.MsgspecError as error:
        raise UserError(f"{folder / SOCKET}: answer of another version of muster: {error}") from None
    if answer.error:
        raise UserError(answer.error, answer.exit_code or FAILURE)
    return answer.nodes
