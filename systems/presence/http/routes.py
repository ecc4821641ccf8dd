"""Presence over HTTP: where users are online, many in one request.

The base owns keys and limits (`systems/http/`); the request is that of the command. `send.py` adds the messages to
users, `ends.py` the ends of their sessions, and `statuses.py` what users say of themselves.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Final

import msgspec
from litestar import MediaType, Response, Router, get, post
from litestar.di import NamedDependency, Provide
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

import muster
from muster_server.plane.calls import CallError
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.described import problems, success
from muster_server.systems.http.face import AnyRequest, Base
from muster_server.systems.http.lookout import Lookout
from muster_server.systems.http.named import needs_whole, users_of
from muster_server.systems.http.problems import Problem
from muster_server.systems.http.streams import COMMENT
from muster_server.systems.presence.asking import ROLE, Address, Readers
from muster_server.systems.presence.described import described, unseen, whole
from muster_server.systems.presence.http import elsewhere, ends, send, statuses
from muster_server.systems.presence.questions import ShardStats, Update, User
from muster_server.systems.presence.status import Status, others_see

USERS_MAX: Final = 1_000
CODES: Final = {"question": "bad_request", "late": "timeout", "busy": "busy", "full": "busy"}

EVENTS: Final = "text/event-stream"
ID: Final = r"[0-9]{1,20}(-[0-9]{1,20}){3}"
"""Pattern of an id of the change feed."""
USER_WATCHES_MAX: Final = 16
"""Limit of open watches of one user at a face."""
WATCHES_EACH: Final = 1_000
"""Limit of watches that share a connection to a reader, which accepts 1,024 concurrent requests per connection."""


class UsersAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for users, each a number of 64 bits as text, or the text that names the user."""

    users: Annotated[list[str], msgspec.Meta(max_length=USERS_MAX)]
    site: Annotated[int, msgspec.Meta(ge=1)] | None = None


class OnlineDevice(msgspec.Struct, frozen=True, gc=False):
    """A device that is online; `since` in ms since 1970."""

    device: str
    gateway: int
    since: int


class OnlineUser(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A user; `last_seen` in ms since 1970; `text` if the request named the user by text; `status` if it has one that the
    caller may see."""

    user: str
    online: bool
    devices: list[OnlineDevice]
    last_seen: int | None
    text: str | None = None
    status: Status | None = None


class Said(msgspec.Struct, frozen=True):
    """The users in the order of the request, as one site knows them."""

    site: int
    users: list[OnlineUser]


class Shards(msgspec.Struct, frozen=True):
    """The shards of all sites, by site and shard."""

    shards: list[dict[str, Any]]


@post(
    "/presence",
    status_code=200,
    opt={"body": Body((UsersAsked,)), "reads": True},
    responses={
        200: success(Said, "The users, in the order of the request"),
        **problems(400, 401, 403, 413, 429, 503, 504),
    },
)
async def who(
    request: AnyRequest, caller: NamedDependency[Caller], presence: NamedDependency["PresenceFace"]
) -> Response[bytes]:
    """Look users up: `{"users": ["7", "8"]}`; `"site": 1` asks only that site.

    A user that is invisible is told as offline, except to itself. A user's token looks up itself, and the users at which
    its `cap` has `watch`.
    """
    asked = decoded(await request.body(), UsersAsked)
    numbers = users_of(caller, asked.users, "bad_body")
    for user in asked.users:
        caller.need("presence", user, whole=needs_whole(user))
    presence.check_site(asked.site)
    try:
        readers = await presence.readers()
        found, known = await asyncio.gather(readers.who(numbers, asked.site), readers.statuses(numbers, asked.site))
    except CallError as error:
        raise Problem(CODES.get(error.code, "unavailable"), str(error)[:400]) from None
    users = [
        shown(user, name, known.get(user.user), own=user.user == caller.user)
        for user, name in zip(found.users, asked.users, strict=True)
    ]
    said = Said(found.site, users)
    return Response(msgspec.json.encode(said) + b"\n", media_type=MediaType.JSON)


@get(
    "/presence/stats",
    responses={200: success(Shards, "The shards of all sites"), **problems(401, 403, 429, 503, 504)},
)
async def stats(caller: NamedDependency[Caller], presence: NamedDependency["PresenceFace"]) -> Response[bytes]:
    """The state of each shard of each site, as `muster presence stats` shows it. Needs the scope `presence:*`."""
    if caller.user is not None:
        raise Problem("not_allowed", "the state of shards is for API keys with the scope presence:*")
    caller.need("presence", "*", whole=True)
    try:
        found = await presence.stats()
    except CallError as error:
        raise Problem(CODES.get(error.code, "unavailable"), str(error)[:400]) from None
    return Response(msgspec.json.encode(Shards([described(each) for each in found])) + b"\n", media_type=MediaType.JSON)


@get(
    "/presence/changes",
    responses={
        200: ResponseSpec(str, generate_examples=False, media_type=EVENTS, description="Changes, one event each"),
        **problems(400, 401, 403, 429, 503),
    },
)
async def changes(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    presence: NamedDependency["PresenceFace"],
    users: Annotated[str, QueryParameter(description="Up to 1,000 users, separated by commas")],
    after: Annotated[
        str, QueryParameter(description="Resume after the change with this id, as the header Last-Event-ID does")
    ] = "",
) -> Stream:
    """The present states of users' devices, as events `state`, and their statuses, as events `status`; then changes as they
    arrive, each with its id, until the client disconnects.

    A user's token watches itself, and the users at which its `cap` has `watch`. An interrupted client resumes with
    `Last-Event-ID`: it gets the changes since then. If they are no longer stored, it gets the states again. A comment per
    second shows that the stream is alive.
    """
    names = list(dict.fromkeys(users.split(",")))
    if len(names) > USERS_MAX:
        raise Problem("bad_request", f"users: {len(names)} users (expected 1 to {USERS_MAX}, separated by commas)")
    last = request.headers.get("last-event-id") or after
    if last and not re.fullmatch(ID, last):
        raise Problem(
            "bad_request",
            f"invalid Last-Event-ID {last!r:.90} (expected the id of a change, for example 3-1790000000-42-0)",
        )
    numbers = users_of(caller, names, "bad_request")
    for user in names:
        caller.need("presence", user, whole=needs_whole(user))
    told = presence.watch(numbers, last, caller)
    try:
        await anext(told)
    except CallError as error:
        raise Problem(CODES.get(error.code, "unavailable"), str(error)[:400]) from None
    presence.base.ongoing(request).stream()
    return Stream(presence.events(told, caller, names), media_type=EVENTS, headers={"cache-control": "no-store"})


def shown(user: User, name: str, status: Status | None = None, *, own: bool = False) -> OnlineUser:
    """A user in JSON form, as others see it, or as itself does."""
    if status is not None and not own:
        user = unseen(user, status) if status.mode == "invisible" else user
        status = others_see(status)
    devices = sorted(user.devices, key=lambda each: (each.device, each.gateway))
    return OnlineUser(
        str(user.user),
        bool(devices),
        [OnlineDevice(each.device, each.gateway, each.since_ms) for each in devices],
        user.last_seen_ms,
        None if name == str(user.user) else name,
        status,
    )


class PresenceFace:
    """Presence's part of the HTTP face. It is ready even if no presence runs: its routes report that."""

    ready: Final = True

    def __init__(self, base: Base) -> None:
        self.base = base
        self._lookout = Lookout(base)
        self._readers: Readers | None = None
        self._watchers: list[Readers] = []
        """One for each `WATCHES_EACH` watches, so that these leave capacity for other requests."""
        self._watches: list[int] = []
        """Number of open watches of each."""
        self._own_watches: Counter[int] = Counter()
        """Number of open watches of each user with a token."""
        told = base.told.get("presence", {})
        sites = told.get("sites")
        self._sites = int(sites) if sites else None
        self._shards = dict(enumerate(told.get("shards", ()), 1))
        """The number of shards by site."""
        self._sender = send.Sender(base)
        for kind in elsewhere.KINDS:
            elsewhere.count(base.counts, kind, 0)
        self._draining = False

    def routes(self) -> Sequence[ControllerRouterHandler]:
        """As `Face.routes`."""

        def presence(caller: NamedDependency[Caller]) -> PresenceFace:  # sync: awaiting here costs tasks per request
            return self

        def sender(caller: NamedDependency[Caller]) -> send.Sender:
            return self._sender

        provided = {
            "presence": Provide(presence, sync_to_thread=False),
            "sender": Provide(sender, sync_to_thread=False),
        }
        handlers = [who, stats, changes, send.route, ends.route, statuses.route]
        return [Router("/api/v1", route_handlers=handlers, dependencies=provided, tags=["presence"])]

    async def start(self) -> None:
        """Readers are looked up with the first request."""

    def redirect(self, address: muster.Address) -> None:
        """Look up the readers again, and send through these servers."""
        self._lookout.forget()
        self._sender.redirect(address)

    def access_changed(self) -> None:
        """Streams check the access themselves."""

    def drain(self) -> None:
        """End the streams of changes, within a second."""
        self._draining = True

    async def stop(self) -> None:
        """Close all."""
        await self._sender.close()
        for readers in (*self._watchers, *([self._readers] if self._readers is not None else [])):
            await readers.close()

    def status(self) -> dict[str, Any]:
        """The number of open watches."""
        return {"presence_watches": sum(self._watches)}

    async def watch(self, users: Sequence[int], after: str, caller: Caller) -> AsyncGenerator[Update]:
        """A reader's watch. Raises `CallError`, and `Problem` if the limit of open watches is reached."""
        most, own = self.base.options.streams_max, caller.user
        if sum(self._watches) >= most:
            raise Problem("busy", f"too many open watches at this face (limit {most}; see http.streams_max)")
        if own is not None and self._own_watches[own] >= USER_WATCHES_MAX:
            raise Problem(
                "busy", f"too many open watches of {caller.name} at this face (limit {USER_WATCHES_MAX}); close some"
            )
        await self._lookout.look()
        place = next((at for at, count in enumerate(self._watches) if count < WATCHES_EACH), len(self._watches))
        if place == len(self._watches):
            self._watchers.append(self._made())
            self._watches.append(0)
        self._watches[place] += 1
        if own is not None:
            self._own_watches[own] += 1
        told = self._watchers[place].watch(users, state=True, after=after, statuses=True, own=own)
        try:
            async for each in told:
                yield each
        finally:
            self._watches[place] -= 1
            if own is not None:
                self._own_watches[own] -= 1
                if not self._own_watches[own]:
                    del self._own_watches[own]
            await told.aclose()

    async def events(self, told: AsyncGenerator[Update], caller: Caller, users: Sequence[str]) -> AsyncGenerator[bytes]:
        """Changes as events; ends when the process drains, or the caller may not see a user any more."""
        try:
            yield COMMENT
            async for each in told:
                if self._draining or not self._may_stay(caller, users):
                    return
                yield _event(each)
        except CallError:
            return
        finally:
            await told.aclose()

    @staticmethod
    def _may_stay(caller: Caller, users: Sequence[str]) -> bool:
        """Return whether a watch may go on: the file of keys may have changed; what a token allows does not."""
        if caller.user is not None:
            return caller.may_stay()
        return all(caller.may("presence", user, whole=needs_whole(user)) for user in users)

    async def stats(self) -> list[ShardStats]:
        """The shards of all sites, those of a silent site with the reason. Raises `CallError` if no site answers, and
        `Problem`."""
        return whole(await (await self.readers()).stats(), self._shards)

    def check_site(self, site: int | None) -> None:
        """Raises `Problem` for an unknown site."""
        if site is not None and self._sites is not None and site > self._sites:
            raise Problem(
                "bad_body",
                f"site: unknown site {site} (this instance has the sites 1 to {self._sites}; see presence.sites)",
            )

    async def readers(self) -> Readers:
        """The readers of the cluster. Raises `Problem`."""
        await self._lookout.look()
        if self._readers is None:
            self._readers = self._made()
        return self._readers

    def _made(self) -> Readers:
        def look() -> list[Address]:
            return [each.bind for each in self._lookout.nodes if each.role == ROLE and each.bind and each.ready]

        return Readers(look, self._lookout.key())


def _event(told: Update) -> bytes:
    """Format one answer of a watch as an event."""
    if not told.change:
        return COMMENT
    head = b"id: %s\n" % told.id.encode() if told.id else b"" if told.status else b"event: state\n"
    if told.status:
        head += b"event: status\n"
    return head + b"data: %s\n\n" % told.change


def face(base: Base) -> PresenceFace:
    """As `systems.http.face.Module`."""
    return PresenceFace(base)
