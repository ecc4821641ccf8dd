"""The routes over HTTP that erase a user from likes and leaderboards, and export what is known of one.

The base owns keys, limits and problems (`systems/http/`); `systems/likes/erasure.py` has the requests to nodes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from litestar import MediaType, Response, get, post
from litestar.di import NamedDependency
from litestar.params import PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

from muster_server.systems.http import cursors
from muster_server.systems.http.access import Caller
from muster_server.systems.http.described import IdempotencyKey, problems, success
from muster_server.systems.http.face import AnyRequest, Base
from muster_server.systems.http.idempotency import Answer, repeatable
from muster_server.systems.http.problems import Problem
from muster_server.systems.likes.erasure import Exported, Phase
from muster_server.systems.likes.http.answers import USER
from muster_server.systems.likes.http.leaderboards import finite
from muster_server.systems.likes.reach import PAGE, USER_MAX

if TYPE_CHECKING:  # the Redis library is imported only when a node is asked
    from muster_server.systems.likes.client import Likes

ERASE: Final = "/users/{user:str}/likes/erase"
EXPORT: Final = "export"
"""The name of the list for its cursors."""
JOB_MAX: Final = (1 << 64) - 1

User = Annotated[str, PathParameter(pattern=USER, description="The user, from 0 to 2^64-1")]


class Begun(msgspec.Struct, frozen=True):
    """An erasure that has begun. `job`: its number, to ask for its progress."""

    user: str
    job: str


class ErasureShown(msgspec.Struct, frozen=True):
    """The progress of an erasure.

    `phase`: `likes`, `leaderboards`, `check`, `files` or `done`, of the slowest partition; `likes`: likes taken back by
    kind; `derived`: results of `BITOP` that the user was taken out of; `scores`: entries removed from leaderboards;
    `looked` `of` all slots gone through; `at_ms`: when it began, or when it was done, in milliseconds since 1970;
    `snapshots` and `segments`: the files that are left, all from after the user's id was dropped.
    """

    user: str
    job: str
    phase: Phase
    likes: dict[str, int]
    derived: int
    scores: int
    looked: int
    of: int
    at_ms: int
    snapshots: int
    segments: int


class ExportEntry(msgspec.Struct, frozen=True, gc=False):
    """One thing of a user: a `like` with its kind and second since 1970, null if unknown; or a `score` in the leaderboard
    `item`."""

    type: Literal["like", "score"]
    kind: str
    item: str
    at_s: int | None
    score: float | None


class ExportPage(msgspec.Struct, frozen=True):
    """A page of an export. `next`: the `after` of the next page; a page may be empty although another one follows."""

    user: str
    entries: list[ExportEntry]
    next: str | None


class ErasureNodes:
    """The nodes as the routes reach them. `node`: a client, whose refusals become problems."""

    def __init__(self, base: Base, node: "Callable[[], AbstractAsyncContextManager[Likes]]") -> None:
        self.base, self.node = base, node


@post(
    ERASE,
    operation_id="likes_erase",
    status_code=200,
    responses={200: success(Begun, "The erasure has begun"), **problems(400, 401, 403, 409, 422, 429, 503, 504)},
)
async def begin_erasure(
    request: AnyRequest,
    user: User,
    caller: NamedDependency[Caller],
    erasures: NamedDependency[ErasureNodes],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Erase a user: all likes, reactions and entries in leaderboards, and every file that names the user.

    It runs in the nodes, and survives their restarts. The user's changes are refused until it is done.
    """
    number = _number(user)
    caller.need("erase", user)

    async def do() -> Answer:
        with repeatable():  # a second job finds nothing more
            async with erasures.node() as node:
                job = await node.erasures.begin(number)
        return Answer(200, msgspec.json.encode(Begun(user, str(job))))

    return await erasures.base.once(request, caller, await request.body(), do)


@get(
    ERASE,
    operation_id="likes_erasure",
    responses={200: success(ErasureShown, "Its progress"), **problems(400, 401, 403, 429, 503)},
)
async def show_erasure(
    user: User,
    caller: NamedDependency[Caller],
    erasures: NamedDependency[ErasureNodes],
    job: Annotated[str, QueryParameter(pattern=USER, description="The `job` of the answer to POST")],
) -> Response[bytes]:
    """The progress of an erasure, with what it found. A node lists the last 1,000 that have ended."""
    _number(user)
    caller.need("erase", user)
    if int(job) > JOB_MAX:
        raise Problem("bad_request", f"invalid job {job} (limit 2^64-1)")
    async with erasures.node() as node:
        shown = await node.erasures.show(int(job))
    return _json(
        ErasureShown(
            user,
            job,
            shown.phase,
            shown.likes,
            shown.derived,
            shown.scores,
            shown.looked,
            shown.of,
            shown.at_ms,
            shown.snapshots,
            shown.segments,
        )
    )


@get(
    "/users/{user:str}/likes/export",
    operation_id="likes_export",
    responses={200: success(ExportPage, "A page of what is known of the user"), **problems(400, 401, 403, 429, 503)},
)
async def export(
    user: User,
    caller: NamedDependency[Caller],
    erasures: NamedDependency[ErasureNodes],
    limit: Annotated[int, QueryParameter(ge=1, le=PAGE, description="Number of entries to list")] = 1_000,
    after: cursors.After = "",
) -> Response[bytes]:
    """All likes, reactions and entries in leaderboards of a user, without a limit of their number.

    Needs the scopes `likes:*` and `leaderboards:*`.
    """
    number = _number(user)
    caller.need("likes", "*", whole=True)
    caller.need("leaderboards", "*", whole=True)
    former = cursors.read(EXPORT, after, str)
    async with erasures.node() as node:
        found, next_place = await node.erasures.page(number, former or "", limit)
    entries = [entry(each) for each in found]
    return _json(ExportPage(user, entries, cursors.written(EXPORT, next_place) if next_place else None))


def entry(exported: Exported) -> ExportEntry:
    """One thing of a user as JSON has it; text that is not UTF-8 is replaced."""
    item = exported.item.decode(errors="replace")
    kind, colon, _ = item.partition(":")
    if exported.score is None:
        return ExportEntry("like", kind if colon else "", item, exported.at_s, None)
    return ExportEntry("score", "", item, None, finite(exported.score))


HANDLERS: Final[Sequence[ControllerRouterHandler]] = (begin_erasure, show_erasure, export)


def _number(user: str) -> int:
    number = int(user)
    if number > USER_MAX:
        raise Problem("bad_request", f"invalid user {user} (limit 2^64-1)")
    return number


def _json(document: msgspec.Struct) -> Response[bytes]:
    return Response(msgspec.json.encode(document) + b"\n", status_code=200, media_type=MediaType.JSON)
