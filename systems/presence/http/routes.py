"""Presence over HTTP: where users are online, many in one call.

Keys and limits are the base's (`systems/http/`); the question is that of the command. `send.py` adds the messages to users.
"""

import re
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
from muster_server.plane.users import is_hashed
from muster_server.systems.http.access import Action, Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.face import AnyRequest, Base
from muster_server.systems.http.lookout import Lookout
from muster_server.systems.http.problems import CONTENT_TYPE, Problem
from muster_server.systems.http.streams import COMMENT
from muster_server.systems.presence.asking import ROLE, USER_MAX, Readers
from muster_server.systems.presence.http import send
from muster_server.systems.presence.questions import User

ACTIONS: Final = (Action("presence", "see where these users are online", None), send.ACTION)
USERS_MAX: Final = 1_000
CODES: Final = {"question": "bad_request", "late": "timeout"}

NUMBER: Final = r"0|[1-9][0-9]{0,19}"
EVENTS: Final = "text/event-stream"

Number = Annotated[str, msgspec.Meta(pattern=rf"^({NUMBER})\Z")]


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question for users; a number of 64 bits is text."""

    users: Annotated[list[Number], msgspec.Meta(min_length=1, max_length=USERS_MAX)]
    site: Annotated[int, msgspec.Meta(ge=1)] | None = None


class OnlineDevice(msgspec.Struct, frozen=True, gc=False):
    """A device that is online; `since` in ms since 1970."""

    device: str
    gateway: int
    since: int


class OnlineUser(msgspec.Struct, frozen=True, gc=False):
    """A user; `last_seen` in ms since 1970."""

    user: str
    online: bool
    devices: list[OnlineDevice]
    last_seen: int | None


class Said(msgspec.Struct, frozen=True):
    """The users in the order of the question, as one site knows them."""

    site: int
    users: list[OnlineUser]


def _problems(*codes: int) -> dict[int, ResponseSpec]:
    return {
        code: ResponseSpec(dict[str, Any], generate_examples=False, media_type=CONTENT_TYPE, description="A problem")
        for code in codes
    }


@post(
    "/presence",
    status_code=200,
    opt={"body": Body((Asked,))},
    responses={
        200: ResponseSpec(Said, generate_examples=False, description="The users, in the order of the question"),
        **_problems(400, 401, 403, 413, 429, 503, 504),
    },
)
async def who(
    request: AnyRequest, caller: NamedDependency[Caller], presence: NamedDependency["PresenceFace"]
) -> Response[bytes]:
    """Where users are online: `{"users": ["7", "8"]}`; `"site": 1` asks that site only."""
    asked = decoded(await request.body(), Asked)
    if any(int(user) > USER_MAX for user in asked.users):
        raise Problem("bad_body", "users: numbers of 64 bits")
    for user in asked.users:
        caller.need("presence", user, whole=is_hashed(user))
    try:
        found = await (await presence.readers()).who([int(user) for user in asked.users], asked.site)
    except CallError as error:
        raise Problem(CODES.get(error.code, "unavailable"), str(error)[:400]) from None
    said = Said(found.site, [shown(user) for user in found.users])
    return Response(msgspec.json.encode(said) + b"\n", media_type=MediaType.JSON)


@get(
    "/presence/changes",
    responses={
        200: ResponseSpec(str, generate_examples=False, media_type=EVENTS, description="Changes, an event each"),
        **_problems(400, 401, 403, 429, 503),
    },
)
async def changes(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    presence: NamedDependency["PresenceFace"],
    users: Annotated[str, QueryParameter(description="Up to 1,000 users, separated by commas")],
) -> Stream:
    """Changes of users as they come, until the client goes: a comment a second says that the stream lives."""
    numbers = users.split(",")
    if len(numbers) > USERS_MAX or not all(re.fullmatch(NUMBER, user) and int(user) <= USER_MAX for user in numbers):
        raise Problem("bad_request", f"users: up to {USERS_MAX} numbers of 64 bits, separated by commas")
    for user in numbers:
        caller.need("presence", user, whole=is_hashed(user))
    told = (await presence.readers()).watch([int(user) for user in numbers])
    try:
        await anext(told)
    except CallError as error:
        raise Problem(CODES.get(error.code, "unavailable"), str(error)[:400]) from None
    presence.base.ongoing(request).stream()
    return Stream(presence.events(told, caller, numbers), media_type=EVENTS, headers={"cache-control": "no-store"})


def shown(user: User) -> OnlineUser:
    """A user as JSON has it."""
    devices = sorted(user.devices, key=lambda each: (each.device, each.gateway))
    return OnlineUser(
        str(user.user),
        bool(devices),
        [OnlineDevice(each.device, each.gateway, each.since_ms) for each in devices],
        user.last_seen_ms,
    )


class PresenceFace:
    """Presence's part of the HTTP face. It is ready also where no presence runs: its routes say so."""

    ready: Final = True

    def __init__(self, base: Base) -> None:
        self.base = base
        self._lookout = Lookout(base)
        self._readers: Readers | None = None
        self._sender = send.Sender(base)
        self._draining = False

    def routes(self) -> Sequence[ControllerRouterHandler]:
        """As `Face.routes`."""

        def presence(caller: NamedDependency[Caller]) -> PresenceFace:  # after it: at once costs tasks a request
            return self

        def sender(caller: NamedDependency[Caller]) -> send.Sender:
            return self._sender

        provided = {
            "presence": Provide(presence, sync_to_thread=False),
            "sender": Provide(sender, sync_to_thread=False),
        }
        handlers = [who, changes, send.route]
        return [Router("/api/v1", route_handlers=handlers, dependencies=provided, tags=["presence"])]

    async def start(self) -> None:
        """Readers are looked for with the first request."""

    def redirect(self, address: muster.Address) -> None:
        """Look for the readers again, and send by these servers."""
        self._lookout.forget()
        self._sender.redirect(address)

    def access_changed(self) -> None:
        """Streams look themselves."""

    def drain(self) -> None:
        """End the streams of changes, within a second."""
        self._draining = True

    async def stop(self) -> None:
        """Close all."""
        await self._sender.close()
        if self._readers is not None:
            await self._readers.close()

    def status(self) -> dict[str, Any]:
        """Nothing of its own."""
        return {}

    async def events(self, told: AsyncGenerator[bytes], caller: Caller, users: Sequence[str]) -> AsyncGenerator[bytes]:
        """Changes as events; ends where the process drains, or the caller may not see a user any more."""
        try:
            yield COMMENT
            async for change in told:
                if self._draining or not all(caller.may("presence", user, whole=is_hashed(user)) for user in users):
                    return
                yield b"data: " + change + b"\n\n" if change else COMMENT
        except CallError:
            return
        finally:
            await told.aclose()

    async def readers(self) -> Readers:
        """Raises `Problem`."""
        await self._lookout.look()
        if self._readers is None:
            self._readers = Readers(
                lambda: [each.bind for each in self._lookout.nodes if each.role == ROLE and each.bind and each.ready],
                self._lookout.key(),
            )
        return self._readers


def face(base: Base) -> PresenceFace:
    """As `systems.http.face.Module`."""
    return PresenceFace(base)
