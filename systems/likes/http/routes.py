"""The routes of likes over HTTP: like, unlike, query, batches, feeds, likers, a user's items, rankings.

The base owns keys, limits and problems (`systems/http/`); `client.py` has the requests to nodes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from litestar import MediaType, Response, Router, delete, get, post, put
from litestar.di import NamedDependency, Provide
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

import muster
from muster_server.control.errors import UserError
from muster_server.plane.ownership.errors import Away, StoreError
from muster_server.systems.http import cursors
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.deprecated import Deprecated
from muster_server.systems.http.described import IdempotencyKey, problems, success
from muster_server.systems.http.face import AnyRequest, Base
from muster_server.systems.http.idempotency import Answer, repeatable
from muster_server.systems.http.problems import Problem
from muster_server.systems.likes.http import erasures
from muster_server.systems.likes.http.answers import (
    USER,
    Batch,
    BatchEntry,
    Change,
    Curve,
    Failure,
    FeedAsked,
    FeedEntry,
    FeedPage,
    Items,
    Liked,
    Likers,
    Placed,
    Rank,
    Shown,
    Toggled,
    Top,
    Users,
)
from muster_server.systems.likes.http.curves import EVERY_S, Curves
from muster_server.systems.likes.http.imports import Import, ImportAsked, Importer, Imports
from muster_server.systems.likes.http.leaderboards import HANDLERS, LeaderboardNodes
from muster_server.systems.likes.partitions import Partitions
from muster_server.systems.likes.partitions import partitions as read_partitions
from muster_server.systems.likes.reach import MISSING, PAGE, USER_MAX, WINDOWS, Denied, Reach, account

if TYPE_CHECKING:  # the Redis library is imported only when a node is asked
    from muster_server.systems.likes.client import Likes

R = TypeVar("R")
BATCH_MAX: Final = 10_000
ITEMS_MAX: Final = 100
LOOK_S: Final = 1.0
"""Shortest time between two searches for a node that does not answer, in seconds."""
ONE: Final = "/likes/{kind:str}/{item:str}/{user:str}"

Kind = Annotated[str, PathParameter(description="The item's kind", examples=[Example(value="share")])]
Item = Annotated[str, PathParameter(description="The item's id, percent-encoded", examples=[Example(value="1000")])]
User = Annotated[str, PathParameter(pattern=USER, description="The user, from 0 to 2^64-1")]
Start = Annotated[int, QueryParameter(ge=0, le=1 << 32, description="Number of entries to skip")]
STARTS: Final = {"start": Deprecated("after")}
Limit = Annotated[int, QueryParameter(ge=1, le=PAGE, description="Number of entries to list")]


def _responses(of: Any, text: str, *codes: int) -> dict[int, ResponseSpec]:
    return {200: success(of, text), **problems(400, 401, 403, 429, 503, *codes)}


class LikesFace:
    """The part of likes in the HTTP face. It is always ready: without a node of likes each route reports that."""

    ready = True

    def __init__(self, base: Base) -> None:
        self.base = base
        told = base.told.get("likes", {})
        self._users_file, self._ca_file = str(told.get("users_file", "")), str(told.get("tls_cert_file", ""))
        self._likes: Likes | None = None
        self.curves, self.importer = Curves(self._counted), Importer(self.node)
        self._looking = asyncio.Lock()
        self._looked = -LOOK_S
        for outcome in ("done", "failed"):
            self.count(outcome, 0)

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """As `Face.start`: a node is looked up when it is needed."""

    def redirect(self, address: muster.Address) -> None:
        """As `Face.redirect`: nodes of likes are found by their own reports."""

    def access_changed(self) -> None:
        """As `Face.access_changed`: no request lasts."""

    def drain(self) -> None:
        """As `Face.drain`: no request lasts."""

    async def stop(self) -> None:
        """As `Face.stop`."""
        await self.curves.stop()
        await self.importer.stop()
        if self._likes is not None:
            await self._likes.close()

    def status(self) -> dict[str, Any]:
        """As `Face.status`."""
        return {}

    async def _counted(self, items: Sequence[bytes]) -> Sequence[int]:
        async with self.node() as likes:
            return await likes.counts(items)

    def count(self, outcome: str, changes: int) -> None:
        """Count changes."""
        self.base.counts.add("http_likes", "Likes changed over HTTP, by outcome", changes, outcome=outcome)

    # --- the node -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def node(self) -> "AsyncIterator[Likes]":
        """A client of a node; a node's refusal while the block lasts becomes a `Problem`."""
        likes = await self._found()
        try:
            yield likes
        except StoreError as error:
            if isinstance(error, Away | Denied) and self._likes is likes:
                self._likes = None  # the node may have moved
                await likes.close()
            raise problem(error) from None

    async def _found(self) -> "Likes":
        async with self._looking:
            if self._likes is None:
                loop = asyncio.get_running_loop()
                if loop.time() - self._looked < LOOK_S:
                    raise Problem("unavailable", "no node of likes answers")
                try:
                    nodes = await self.base.nodes()
                    user, password = account(self._users_file) or (None, None)
                except (UserError, OSError) as error:
                    raise Problem("unavailable", str(error)) from None
                doors = [each.bind for each in nodes if each.role == "likes" and each.bind]
                if not doors:
                    self._looked = loop.time()
                    raise Problem("unavailable", "no node of likes runs")
                if find_spec("redis") is None:
                    raise Problem("unavailable", MISSING)
                from muster_server.systems.likes.client import Likes

                self._likes = Likes(Reach(doors, user, password, self._ca_file))
            return self._likes

    def routes(self) -> Sequence[ControllerRouterHandler]:
        """As `Face.routes`."""

        def likes_face(caller: NamedDependency[Caller]) -> LikesFace:  # sync, as for rooms
            return self

        def leaderboards(caller: NamedDependency[Caller]) -> LeaderboardNodes:
            return LeaderboardNodes(self.base, self.node)

        def erasure_nodes(caller: NamedDependency[Caller]) -> erasures.ErasureNodes:
            return erasures.ErasureNodes(self.base, self.node)

        handlers = [
            like,
            unlike,
            liked,
            shown,
            curve,
            partitions,
            begin_import,
            imports,
            stop_import,
            likers,
            batch,
            feed,
            both,
            items,
            top,
            top_of,
            *HANDLERS,
            *erasures.HANDLERS,
        ]
        provided = {
            "likes_face": Provide(likes_face, sync_to_thread=False),
            "leaderboards": Provide(leaderboards, sync_to_thread=False),
            "erasures": Provide(erasure_nodes, sync_to_thread=False),
        }
        return [Router("/api/v1", route_handlers=handlers, dependencies=provided, tags=["likes"])]


@put(ONE, status_code=200, responses=_responses(Toggled, "The change is durable"))
async def like(
    kind: Kind, item: Item, user: User, caller: NamedDependency[Caller], likes_face: NamedDependency[LikesFace]
) -> Response[bytes]:
    """Add a user's like of an item. A second like changes nothing; the answer comes once the change is durable."""
    return await _toggle(likes_face, caller, f"{kind}:{item}", user, True)


@delete(ONE, status_code=200, responses=_responses(Toggled, "The change is durable"))
async def unlike(
    kind: Kind, item: Item, user: User, caller: NamedDependency[Caller], likes_face: NamedDependency[LikesFace]
) -> Response[bytes]:
    """Remove a user's like of an item."""
    return await _toggle(likes_face, caller, f"{kind}:{item}", user, False)


@get(ONE, responses=_responses(Liked, "Whether that user likes it"))
async def liked(
    kind: Kind, item: Item, user: User, caller: NamedDependency[Caller], likes_face: NamedDependency[LikesFace]
) -> Response[bytes]:
    """Whether a user likes an item."""
    name, number = f"{kind}:{item}", user_of(user)
    caller.need("likes", name)
    async with likes_face.node() as node:
        likes = await node.likes(name.encode(), number)
        (count,) = await node.counts([name.encode()])
    return _json(Liked(name, user, likes, count))


@get("/likes/{kind:str}/{item:str}", responses=_responses(Shown, "The item"))
async def shown(
    kind: Kind,
    item: Item,
    caller: NamedDependency[Caller],
    likes_face: NamedDependency[LikesFace],
    newest: Annotated[int, QueryParameter(ge=0, le=32, description="Number of newest likers to list")] = 10,
) -> Response[bytes]:
    """An item's count, its newest likers, and its rank in each ranking."""
    name = f"{kind}:{item}"
    caller.need("likes", name)
    async with likes_face.node() as node:
        said = await node.show(name.encode(), newest)
    ranks = [Rank(each.field, each.place, each.of) for each in said.ranks]
    return _json(Shown(name, said.count, list(map(str, said.newest)), ranks, said.trends))


@get("/likes/{kind:str}/{item:str}/curve", responses=_responses(Curve, "The counts"))
async def curve(
    kind: Kind, item: Item, caller: NamedDependency[Caller], likes_face: NamedDependency[LikesFace]
) -> Response[bytes]:
    """An item's count over the last hour. The series begins with the first request, and ends an hour after the last one."""
    name = f"{kind}:{item}"
    caller.need("likes", name)
    series = await likes_face.curves.look(name.encode())
    return _json(Curve(name, EVERY_S, list(series.at), list(series.count)))


@get("/likes/partitions", operation_id="likes_partitions", responses=_responses(Partitions, "Partitions and nodes"))
async def partitions(caller: NamedDependency[Caller], likes_face: NamedDependency[LikesFace]) -> Response[bytes]:
    """The partitions of likes with their slots, nodes and positions in the log. Needs the scope `likes:*`."""
    caller.need("likes", "*", whole=True)
    try:
        nodes = await likes_face.base.nodes()
    except UserError as error:
        raise Problem("unavailable", str(error)) from None
    return _json(await asyncio.to_thread(read_partitions, nodes))


@post(
    "/likes/imports",
    operation_id="likes_import",
    status_code=200,
    opt={"body": Body((ImportAsked,))},
    responses={200: success(Import, "The import has begun"), **problems(400, 401, 403, 409, 413, 422, 429, 503, 504)},
)
async def begin_import(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    likes_face: NamedDependency[LikesFace],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Move bitmaps of a Redis: each bit of 1 becomes a like of the item with the key's name. The Redis is only read.

    One import runs at a time. Needs the scope `import:*`.
    """
    body = await request.body()
    asked = decoded(body, ImportAsked)
    caller.need("import", "*", whole=True)
    request.scope["state"]["note"] = f"keys {asked.pattern}"

    async def do() -> Answer:
        if find_spec("redis") is None:
            raise Problem("unavailable", MISSING)
        return Answer(200, msgspec.json.encode(likes_face.importer.begin(asked)))

    return await likes_face.base.once(request, caller, body, do)


@get("/likes/imports", operation_id="likes_imports", responses=_responses(Imports, "The last imports"))
async def imports(caller: NamedDependency[Caller], likes_face: NamedDependency[LikesFace]) -> Response[bytes]:
    """The last 20 imports of this process, the newest first. Needs the scope `import:*`."""
    caller.need("import", "*", whole=True)
    return _json(likes_face.importer.all())


@delete(
    "/likes/imports",
    operation_id="likes_import_stop",
    status_code=200,
    responses=_responses(Imports, "The import has stopped", 404),
)
async def stop_import(
    caller: NamedDependency[Caller],
    likes_face: NamedDependency[LikesFace],
    id: Annotated[str, QueryParameter(pattern=r"^[0-9]{1,20}\Z", description="The id of the running import")],
) -> Response[bytes]:
    """Stop the running import. Likes that it has set stay. Needs the scope `import:*`."""
    caller.need("import", "*", whole=True)
    await likes_face.importer.stop(id)
    return _json(likes_face.importer.all())


@get(
    "/likes/{kind:str}/{item:str}/likers",
    opt={"deprecated": STARTS},
    responses=_responses(Likers, "A page of the users who like it"),
)
async def likers(
    kind: Kind,
    item: Item,
    caller: NamedDependency[Caller],
    likes_face: NamedDependency[LikesFace],
    limit: Limit = 100,
    after: cursors.After = "",
    start: Start = 0,
) -> Response[bytes]:
    """The users who like an item, in a stable order."""
    name = f"{kind}:{item}"
    caller.need("likes", name)
    former = cursors.read("likers", after, cursors.Anchored)
    async with likes_face.node() as node:
        fetch = _long(partial(node.likers, name.encode()))
        _, found, next = await cursors.page_by_place("likers", fetch, _bytes, former, limit, start)
    return _json(Likers(list(map(str, found)), next))


@post(
    "/likes/batch",
    status_code=200,
    opt={"body": Body((list[Change],))},
    responses=_responses(Batch, "Each change with its outcome", 409, 413, 422, 504),
)
async def batch(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    likes_face: NamedDependency[LikesFace],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Make many changes: an array of `{"item": "share:1000", "user": "2017", "likes": true}`.

    They are made in this order, independently; those that fail have a reason.
    """
    body = await request.body()
    changes = decoded(body, list[Change])
    if len(changes) > BATCH_MAX:
        raise Problem("too_long", f"too many changes in a batch (limit {BATCH_MAX})")
    for item in {change.item for change in changes}:
        caller.need("like", item)
    wanted = [(change.item.encode(), user_of(change.user), change.likes) for change in changes]

    async def do() -> Answer:
        with repeatable():
            caller.spend(len(changes))
            async with likes_face.node() as node:
                outcomes = await node.put_all(wanted) if wanted else []
        entries = [
            BatchEntry(error=Failure(**problem(each).short()))
            if isinstance(each, StoreError)
            else BatchEntry(before=each)
            for each in outcomes
        ]
        failed = sum(entry.error is not None for entry in entries)
        likes_face.count("done", len(entries) - failed)
        likes_face.count("failed", failed)
        return Answer(200, msgspec.json.encode(Batch(len(entries) - failed, failed, entries)))

    return await likes_face.base.once(request, caller, body, do)


@post(
    "/likes/feed",
    status_code=200,
    opt={"body": Body((FeedAsked,)), "reads": True},
    responses=_responses(FeedPage, "The items, in the order of the request", 413),
)
async def feed(
    request: AnyRequest, caller: NamedDependency[Caller], likes_face: NamedDependency[LikesFace]
) -> Response[bytes]:
    """A page of a feed: the count, the viewer's like and the newest likers of each of up to 1,000 items.

    `{"items": ["share:1000", "share:1001"], "viewer": "2017", "newest": 3}`; without `viewer`, `likes` is null.
    """
    asked = decoded(await request.body(), FeedAsked)
    for item in set(asked.items):
        caller.need("likes", item)
    viewer = None if asked.viewer is None else user_of(asked.viewer)
    async with likes_face.node() as node:
        page = await node.feed([item.encode() for item in asked.items], viewer, asked.newest)
    entries = [
        FeedEntry(item, entry.count, entry.likes, list(map(str, entry.newest)))
        for item, entry in zip(asked.items, page, strict=True)
    ]
    return _json(FeedPage(entries))


@get("/likes/both", responses=_responses(Users, "The users who like all of them"))
async def both(
    caller: NamedDependency[Caller],
    likes_face: NamedDependency[LikesFace],
    item: Annotated[
        list[str],
        QueryParameter(min_items=2, max_items=ITEMS_MAX, description="KIND:ID; repeat it, at least two items"),
    ],
) -> Response[bytes]:
    """The users who like all of these items, at most 10,000."""
    for each in item:
        caller.need("likes", each)
    async with likes_face.node() as node:
        return _json(Users(list(map(str, await node.both([each.encode() for each in item])))))


@get(
    "/users/{user:str}/likes",
    opt={"deprecated": STARTS},
    responses=_responses(Items, "A page of the items that the user likes"),
)
async def items(
    user: User,
    caller: NamedDependency[Caller],
    likes_face: NamedDependency[LikesFace],
    limit: Limit = 100,
    after: cursors.After = "",
    start: Start = 0,
) -> Response[bytes]:
    """The items that a user likes and the time of each like, newest first, as far as the key may read them. A page may have
    fewer than `limit`."""
    number, former = user_of(user), cursors.read("items", after, cursors.Anchored)
    async with likes_face.node() as node:
        fetch = _long(partial(node.items, number))
        _, liked, next = await cursors.page_by_place("items", fetch, lambda each: each.item, former, limit, start)
    named = [(each.item.decode(errors="replace"), each.at_s) for each in liked]
    shown = [(item, at_s) for item, at_s in named if caller.may("likes", item)]
    return _json(Items(user, [item for item, _ in shown], [at_s for _, at_s in shown], next))


@get("/ranks", opt={"deprecated": STARTS}, responses=_responses(Top, "The top"))
async def top(
    caller: NamedDependency[Caller],
    likes_face: NamedDependency[LikesFace],
    limit: Limit = 100,
    after: cursors.After = "",
    start: Start = 0,
    window: Annotated[
        str, QueryParameter(pattern=r"^(1h|24h|7d)?\Z", description=f"{', '.join(WINDOWS)}, or none")
    ] = "",
) -> Response[bytes]:
    """The ranking of all items, by count or by a window in which newer likes count more."""
    return await _top(likes_face, caller, "", start, after, limit, window)


@get("/ranks/{field:str}", opt={"deprecated": STARTS}, responses=_responses(Top, "The top"))
async def top_of(
    field: Annotated[
        str, PathParameter(description="The field, such as an item's kind", examples=[Example(value="share")])
    ],
    caller: NamedDependency[Caller],
    likes_face: NamedDependency[LikesFace],
    limit: Limit = 100,
    after: cursors.After = "",
    start: Start = 0,
    window: Annotated[
        str, QueryParameter(pattern=r"^(1h|24h|7d)?\Z", description=f"{', '.join(WINDOWS)}, or none")
    ] = "",
) -> Response[bytes]:
    """The ranking of a field."""
    return await _top(likes_face, caller, field, start, after, limit, window)


async def _toggle(face: LikesFace, caller: Caller, item: str, user: str, likes: bool) -> Response[bytes]:
    number = user_of(user)
    caller.need("like", item)
    async with face.node() as node:
        try:
            was = await node.put(item.encode(), number, likes)
        except StoreError:
            face.count("failed", 1)
            raise
        face.count("done", 1)
        (count,) = await node.counts([item.encode()])
    return _json(Toggled(item, user, likes, was, count))


async def _top(
    face: LikesFace, caller: Caller, field: str, start: int, after: str, limit: int, window: str
) -> Response[bytes]:
    caller.need("likes", f"{field}:" if field else "*")
    name = f"ranks {field}@{window}"
    former = cursors.read(name, after, cursors.Anchored)
    async with face.node() as node:

        def fetch(first: int, count: int) -> Awaitable[Sequence[tuple[bytes, float]]]:
            return node.top(field, first, count, window)

        first, found, next = await cursors.page_by_place(name, _long(fetch), lambda each: each[0], former, limit, start)
    placed = [Placed(first + at, item.decode(errors="replace"), score) for at, (item, score) in enumerate(found)]
    return _json(Top(field, window, placed, next))


def _long(fetch: Callable[[int, int], Awaitable[Sequence[R]]]) -> Callable[[int, int], Awaitable[Sequence[R]]]:
    """The same for any number of entries, of which a node gives at most `PAGE` in one answer."""

    async def all_of(start: int, count: int) -> Sequence[R]:
        found = await fetch(start, min(count, PAGE))
        return found if count <= PAGE else [*found, *await fetch(start + PAGE, count - PAGE)]

    return all_of


def _bytes(user: int) -> bytes:
    return user.to_bytes(8, "big")


def user_of(text: str) -> int:
    """Parse a user of a path or body. Raises `Problem`."""
    number = int(text)
    if number > USER_MAX:
        raise Problem("bad_request", f"invalid user {text} (limit 2^64-1)")
    return number


def problem(error: StoreError) -> Problem:
    """Convert a node's refusal to a problem."""
    if isinstance(error, Denied):
        return Problem("unavailable", "the node of likes expects another user or password: see likes.users_file")
    return Problem("unavailable" if error.later else "bad_request", str(error))


def face(base: Base) -> LikesFace:
    """As `systems.http.face.Module`."""
    return LikesFace(base)


def _json(document: msgspec.Struct) -> Response[bytes]:
    return Response(msgspec.json.encode(document) + b"\n", status_code=200, media_type=MediaType.JSON)
