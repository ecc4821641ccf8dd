"""The routes of leaderboards over HTTP: set, raise and remove scores; a member's rank; the top.

The base owns keys, limits and problems (`systems/http/`); `systems/likes/leaderboards.py` has the requests to nodes.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from litestar import MediaType, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.openapi.spec import Example
from litestar.params import PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Meta

from muster_server.systems.http import cursors
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.described import IdempotencyKey, problems, success
from muster_server.systems.http.face import AnyRequest, Base
from muster_server.systems.http.idempotency import Answer, repeatable
from muster_server.systems.http.problems import Problem
from muster_server.systems.likes.reach import MEMBERS, PAGE, WINDOWS, Only

if TYPE_CHECKING:  # the Redis library is imported only when a node is asked
    from muster_server.systems.likes.client import Likes

ALL: Final = "/leaderboards/{leaderboard:str}"
ONE: Final = "/leaderboards/{leaderboard:str}/members/{member:str}"
SCORE_MAX: Final = 1.7976931348623157e308

Name = Annotated[str, PathParameter(description="The leaderboard, percent-encoded", examples=[Example(value="game:7")])]
Member = Annotated[str, PathParameter(description="The member, percent-encoded", examples=[Example(value="alice")])]
Window = Annotated[str, QueryParameter(pattern=r"^(1h|24h|7d)?\Z", description=f"{', '.join(WINDOWS)}, or none")]
Lowest = Annotated[bool, QueryParameter(description="The lowest score is at the top")]
Score = Annotated[float, Meta(ge=-SCORE_MAX, le=SCORE_MAX)]
MemberName = Annotated[str, Meta(max_length=512)]


class NewScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A score to set. `only`: `new`, `existing`, `greater` or `less` members; empty: all."""

    score: Score
    only: Only = ""


class MemberScore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member and its score."""

    member: MemberName
    score: Score


class NewScores(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scores to set together, all or none. `only` as for one score."""

    scores: Annotated[list[MemberScore], Meta(max_length=MEMBERS)]
    only: Only = ""


class Raise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number that is added to a score; below 0 it is lowered."""

    by: Score


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a leaderboard. `ties`: what decides between equal scores: `time`, the first one above, or `name`."""

    ties: Annotated[str, Meta(pattern=r"^(time|name)\Z")]


class Changed(msgspec.Struct, frozen=True):
    """A durable change. `changed`: members that are new, have another score, or were removed."""

    leaderboard: str
    changed: int


class MemberRank(msgspec.Struct, frozen=True):
    """A member's score, and its rank among `of` members: 0 is the top."""

    leaderboard: str
    member: str
    score: float
    rank: int
    of: int


class Raised(msgspec.Struct, frozen=True):
    """A member's new score."""

    leaderboard: str
    member: str
    score: float


class RankedMember(msgspec.Struct, frozen=True):
    """A member of a page."""

    rank: int
    member: str
    score: float


class MembersPage(msgspec.Struct, frozen=True):
    """A page of a leaderboard, best first. `next`: the `after` of the next page."""

    leaderboard: str
    window: str
    members: list[RankedMember]
    next: str | None


class LeaderboardNodes:
    """The nodes of leaderboards as the routes reach them. `node`: a client, whose refusals become problems."""

    def __init__(self, base: Base, node: "Callable[[], AbstractAsyncContextManager[Likes]]") -> None:
        self.base, self.node = base, node


@put(
    ALL,
    status_code=200,
    opt={"body": Body((Settings,))},
    responses={200: success(Settings, "The settings"), **problems(400, 401, 403, 413, 429, 503)},
)
async def set_leaderboard(
    request: AnyRequest,
    leaderboard: Name,
    caller: NamedDependency[Caller],
    leaderboards: NamedDependency[LeaderboardNodes],
) -> Response[bytes]:
    """Set what decides between equal scores: the time of a score, or the member's name."""
    asked = decoded(await request.body(), Settings)
    caller.need("leaderboard", leaderboard)
    async with leaderboards.node() as node:
        await node.leaderboards.put_ties(leaderboard.encode(), by_time=asked.ties == "time")
    return _json(asked)


@delete(
    ALL,
    status_code=200,
    responses={200: success(Changed, "It is gone"), **problems(400, 401, 403, 429, 503)},
)
async def delete_leaderboard(
    leaderboard: Name, caller: NamedDependency[Caller], leaderboards: NamedDependency[LeaderboardNodes]
) -> Response[bytes]:
    """Remove all members and the settings of a leaderboard."""
    caller.need("leaderboard", leaderboard)
    async with leaderboards.node() as node:
        size = await node.leaderboards.size(leaderboard.encode())
        deleted = await node.leaderboards.delete(leaderboard.encode())
    return _json(Changed(leaderboard, size if deleted else 0))


@post(
    ALL,
    status_code=200,
    opt={"body": Body((NewScores,))},
    responses={
        200: success(Changed, "The scores are durable"),
        **problems(400, 401, 403, 409, 413, 422, 429, 503, 504),
    },
)
async def put_scores(
    request: AnyRequest,
    leaderboard: Name,
    caller: NamedDependency[Caller],
    leaderboards: NamedDependency[LeaderboardNodes],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Set the scores of up to 500 members together: `{"scores": [{"member": "alice", "score": 120}]}`."""
    body = await request.body()
    asked = decoded(body, NewScores)
    caller.need("leaderboard", leaderboard)
    scores = [(each.member.encode(), each.score) for each in asked.scores]

    async def do() -> Answer:
        with repeatable():
            caller.spend(max(1, len(scores)))
            async with leaderboards.node() as node:
                changed = await node.leaderboards.put(leaderboard.encode(), scores, asked.only)
        return Answer(200, msgspec.json.encode(Changed(leaderboard, changed)))

    return await leaderboards.base.once(request, caller, body, do)


@get(
    ALL,
    responses={200: success(MembersPage, "A page of the members"), **problems(400, 401, 403, 429, 503)},
)
async def leaderboard_top(
    leaderboard: Name,
    caller: NamedDependency[Caller],
    leaderboards: NamedDependency[LeaderboardNodes],
    limit: Annotated[int, QueryParameter(ge=1, le=PAGE, description="Number of entries to list")] = 100,
    after: cursors.After = "",
    window: Window = "",
    lowest: Lowest = False,
) -> Response[bytes]:
    """The members of a leaderboard with their scores, the highest first; by a window, points gained lately count more."""
    caller.need("leaderboards", leaderboard)
    name = f"leaderboard {leaderboard}@{window}{' lowest' if lowest else ''}"
    former = cursors.read(name, after, cursors.Anchored)
    async with leaderboards.node() as node:

        async def fetch(start: int, count: int) -> Sequence[tuple[bytes, float]]:
            found: list[tuple[bytes, float]] = []
            while len(found) < count:
                most = min(count - len(found), PAGE)
                page = await node.leaderboards.top(
                    leaderboard.encode(), start + len(found), most, window, lowest=lowest
                )
                found += page
                if len(page) < most:
                    break
            return found

        first, found, next = await cursors.page_by_place(name, fetch, lambda each: each[0], former, limit)
    members = [
        RankedMember(first + at, member.decode(errors="replace"), finite(score))
        for at, (member, score) in enumerate(found)
    ]
    return _json(MembersPage(leaderboard, window, members, next))


@put(
    ONE,
    status_code=200,
    opt={"body": Body((NewScore,))},
    responses={200: success(Changed, "The score is durable"), **problems(400, 401, 403, 413, 429, 503)},
)
async def put_score(
    request: AnyRequest,
    leaderboard: Name,
    member: Member,
    caller: NamedDependency[Caller],
    leaderboards: NamedDependency[LeaderboardNodes],
) -> Response[bytes]:
    """Set a member's score: `{"score": 120}`; with `"only": "greater"`, only if that is more than before."""
    asked = decoded(await request.body(), NewScore)
    caller.need("leaderboard", leaderboard)
    async with leaderboards.node() as node:
        changed = await node.leaderboards.put(leaderboard.encode(), [(member.encode(), asked.score)], asked.only)
    return _json(Changed(leaderboard, changed))


@post(
    f"{ONE}/raise",
    status_code=200,
    opt={"body": Body((Raise,))},
    responses={
        200: success(Raised, "The score is durable"),
        **problems(400, 401, 403, 409, 413, 422, 429, 503, 504),
    },
)
async def raise_score(
    request: AnyRequest,
    leaderboard: Name,
    member: Member,
    caller: NamedDependency[Caller],
    leaderboards: NamedDependency[LeaderboardNodes],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Add to a member's score: `{"by": 5}`; a new member begins at 0. With an `Idempotency-Key`, a repeated request does
    not add again."""
    body = await request.body()
    asked = decoded(body, Raise)
    caller.need("leaderboard", leaderboard)

    async def do() -> Answer:
        async with leaderboards.node() as node:
            score = await node.leaderboards.add(leaderboard.encode(), member.encode(), asked.by)
        return Answer(200, msgspec.json.encode(Raised(leaderboard, member, finite(score))))

    return await leaderboards.base.once(request, caller, body, do)


@get(
    ONE,
    responses={200: success(MemberRank, "The member"), **problems(400, 401, 403, 404, 429, 503)},
)
async def show_member(
    leaderboard: Name,
    member: Member,
    caller: NamedDependency[Caller],
    leaderboards: NamedDependency[LeaderboardNodes],
    window: Window = "",
    lowest: Lowest = False,
) -> Response[bytes]:
    """A member's score and rank."""
    caller.need("leaderboards", leaderboard)
    async with leaderboards.node() as node:
        found = await node.leaderboards.standing(leaderboard.encode(), member.encode(), window, lowest=lowest)
    if found is None:
        raise Problem("not_found", f"no member {member!r:.80} in {leaderboard!r:.80}")
    return _json(MemberRank(leaderboard, member, finite(found.score), found.rank, found.of))


@delete(
    ONE,
    status_code=200,
    responses={200: success(Changed, "It is not there any more"), **problems(400, 401, 403, 429, 503)},
)
async def remove_member(
    leaderboard: Name,
    member: Member,
    caller: NamedDependency[Caller],
    leaderboards: NamedDependency[LeaderboardNodes],
) -> Response[bytes]:
    """Remove a member."""
    caller.need("leaderboard", leaderboard)
    async with leaderboards.node() as node:
        removed = await node.leaderboards.remove(leaderboard.encode(), [member.encode()])
    return _json(Changed(leaderboard, removed))


HANDLERS: Final[Sequence[ControllerRouterHandler]] = (
    set_leaderboard,
    delete_leaderboard,
    put_scores,
    leaderboard_top,
    put_score,
    raise_score,
    show_member,
    remove_member,
)


def finite(score: float) -> float:
    """A score as JSON has it: infinity becomes the greatest number."""
    return max(-SCORE_MAX, min(score, SCORE_MAX))


def _json(document: msgspec.Struct) -> Response[bytes]:
    return Response(msgspec.json.encode(document) + b"\n", status_code=200, media_type=MediaType.JSON)
