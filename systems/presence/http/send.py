"""Messages to one user: `muster send`, and `POST /api/v1/send`.

Owns both forms of the answer. A message goes through the client library, like any program's.
"""

import asyncio
import base64
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import MediaType, Response, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec

import muster
from muster.client import SEND_BYTES_MAX, SEND_GRACE_S
from muster_server.control.errors import FAILURE, TRY_LATER, USAGE, UserError
from muster_server.control.terminal.common import print_json, verdict_after
from muster_server.control.terminal.found import Target, connected
from muster_server.control.terminal.words import tell
from muster_server.systems.http.access import Action, Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.face import AnyRequest, Base, Where
from muster_server.systems.http.idempotency import Answer, Nothing
from muster_server.systems.http.problems import CONTENT_TYPE, Problem
from muster_server.systems.presence.cli.reach import named_json, texts_among, user_of
from muster_server.systems.presence.named import needs_whole, users_of

ACTION: Final = Action("unicast", "send messages to these users", None)
USERS_MAX: Final = 1_000
"""Limit of users in one request."""
OPEN_S: Final = 5.0
DEVICE: Final = r"[!-+\--~]{1,23}"
DEVICE_RULE: Final = "1 to 23 printable ASCII characters without blanks and commas"
ORDER: Final = ("delivered", "expired", "unknown", "not_online")


# --- the command ----------------------------------------------------------------------------------------------------


async def send(
    where: Target, user: str, device: str | None, expires: float, as_json: bool, *, is_base64: bool = False
) -> int:
    """Send stdin. Raises `UserError`."""
    number = user_of(where, user)
    if device is not None and not re.fullmatch(DEVICE, device):
        raise UserError(f"--device: invalid name of a device {device!r:.60} (expected {DEVICE_RULE})", USAGE)
    data = await asyncio.to_thread(_stdin, is_base64)
    async with connected(where, reads=False) as client:
        results = await client.send(number, data, device=device, expires=expires)
    with verdict_after():
        if as_json:
            named = named_json(number, texts_among([(number, user)]))
            print_json(named | {"devices": [_device(each) for each in results]}, line=True)
        else:
            tell(words(results))
    return code(results)


def _stdin(is_base64: bool) -> bytes:
    """Read stdin, without the end of its last line. Raises `UserError`."""
    if sys.stdin is None:
        raise UserError("stdin is closed; pipe the message into it: echo hello | muster send USER", USAGE)
    data = b""
    most = 2 * SEND_BYTES_MAX if is_base64 else SEND_BYTES_MAX
    while len(data) <= most + 1 and (read := os.read(0, most + 2)):
        data += read
    data = data.removesuffix(b"\n")
    if is_base64:
        try:
            data = base64.b64decode(b"".join(data.split()), validate=True)
        except ValueError:
            raise UserError("stdin is not valid base64; nothing was sent", USAGE) from None
    if len(data) > SEND_BYTES_MAX:
        raise UserError(f"the message is too long (limit {SEND_BYTES_MAX} bytes); nothing was sent", USAGE)
    return data


def words(results: Sequence[muster.DeviceResult]) -> str:
    """Format results: `delivered: phone, laptop`, `not online: tv`, or `expired`; parts are separated by `; `."""
    parts = []
    for outcome in ORDER:
        devices = [each.device for each in results if each.outcome == outcome]
        named = ", ".join(sorted(each for each in devices if each is not None))
        text = outcome.replace("_", " ")
        if devices:
            further = " and further devices" if named and None in devices else ""
            nobody = outcome == "not_online" and len(devices) == len(results)
            parts.append(f"{text}: {named}{further}" if named and not nobody else text)
    return "; ".join(parts)


def code(results: Sequence[muster.DeviceResult]) -> int:
    """The exit code of these outcomes."""
    outcomes = {each.outcome for each in results}
    if outcomes & {"expired", "unknown"}:
        return TRY_LATER
    return 0 if "delivered" in outcomes else FAILURE


# --- the route ------------------------------------------------------------------------------------------------------


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message to many users, each a number of 64 bits as text, or the text that names the user."""

    users: Annotated[list[str], msgspec.Meta(max_length=USERS_MAX)]
    data: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """The encoding of `data`."""
    device: Annotated[str, msgspec.Meta(pattern=rf"^{DEVICE}\Z")] | None = None
    expires: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
    """Lifetime of the message in seconds."""


class Device(msgspec.Struct, frozen=True):
    """The outcome of a message on one device; null: devices whose names are not known."""

    device: str | None
    outcome: Literal["delivered", "not_online", "expired", "unknown"]


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """One user's devices, or the reason why none was tried."""

    user: str
    devices: list[Device] = []
    error: str | None = None
    text: str | None = None
    """The text that named the user in the request."""


class Sent(msgspec.Struct, frozen=True):
    """The users in the order of the request."""

    users: list[User]


class Sender:
    """The client of the process, opened when it is first needed."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self._where: Where = base.where
        self._client: muster.Client | None = None
        self._opening = asyncio.Lock()

    def redirect(self, address: muster.Address) -> None:
        """Use these servers from now on."""
        self._where = address
        if self._client is not None and not self._client.closed:
            self._client.redirect(address)

    async def close(self) -> None:
        """Close it."""
        if self._client is not None and not self._client.closed:
            await self._client.close(timeout=1.0)

    async def send(self, asked: Asked, users: Sequence[int], data: bytes) -> Sent:
        """Send to all users at once. Raises `Nothing`."""
        try:
            client = await self._opened()
        except muster.MusterError as error:
            raise Nothing(Problem("unavailable", str(error)[:400])) from None
        named = zip(users, asked.users, strict=True)
        return Sent(list(await asyncio.gather(*(self._one(client, user, name, data, asked) for user, name in named))))

    async def _one(self, client: muster.Client, user: int, name: str, data: bytes, asked: Asked) -> User:
        said = User(str(user), text=None if name == str(user) else name)
        try:
            results = await client.send(user, data, device=asked.device, expires=asked.expires)
        except muster.MusterError as error:
            return msgspec.structs.replace(said, error=error.code)
        return msgspec.structs.replace(said, devices=[Device(each.device, each.outcome) for each in results])

    async def _opened(self) -> muster.Client:
        async with self._opening:
            if self._client is None or self._client.closed:
                where = self._where
                if isinstance(where, muster.Address) and not where.proxies:
                    raise muster.Unavailable("no proxy is known yet")
                self._client = await muster.connect(where, gateways=[], timeout=OPEN_S)
            return self._client


@post(
    "/send",
    status_code=200,
    opt={"body": Body((Asked,))},
    responses={
        200: ResponseSpec(Sent, generate_examples=False, description="The outcome for each device"),
        **{
            status: ResponseSpec(
                dict[str, Any], generate_examples=False, media_type=CONTENT_TYPE, description="A problem"
            )
            for status in (400, 401, 403, 409, 413, 422, 429, 503)
        },
    },
)
async def route(
    request: AnyRequest, caller: NamedDependency[Caller], sender: NamedDependency[Sender]
) -> Response[bytes]:
    """Send one message to all online devices of many users: `{"users": ["7", "8"], "data": "hello"}`.

    `"device": "phone"` selects one device; `"expires": 5` sets the lifetime in seconds; with `"encoding": "base64"` the
    message is binary.
    """
    body = await request.body()
    asked = decoded(body, Asked)
    try:
        data = asked.data.encode() if asked.encoding == "utf-8" else base64.b64decode(asked.data, validate=True)
    except ValueError:
        raise Problem("bad_body", "invalid data (expected base64, as set by `encoding`)") from None
    if len(data) > SEND_BYTES_MAX:
        raise Problem("too_long", f"the message is too long (limit {SEND_BYTES_MAX} bytes)")
    users = users_of(caller, asked.users, "bad_body")
    for user in asked.users:
        caller.need("unicast", user, whole=needs_whole(user))
    caller.spend(len(asked.users))
    base = sender.base
    base.ongoing(request).extend(asked.expires + SEND_GRACE_S)

    async def do() -> Answer:
        return Answer(200, msgspec.json.encode(await sender.send(asked, users, data)))

    try:
        said = await base.once(request, caller.name, body, do)
    except Nothing as nothing:
        raise nothing.problem from None
    return Response(said.body + b"\n", media_type=MediaType.JSON, status_code=said.status)


def _device(result: muster.DeviceResult) -> dict[str, str | None]:
    return {"device": result.device, "outcome": result.outcome}
