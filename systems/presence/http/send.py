"""Messages to users over HTTP: `POST /api/v1/send`. A message goes through the client library, like any program's.

`ends.py` ends sessions through the same client; `elsewhere.py` hands on what found no device."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from litestar import Response, post
from litestar.di import NamedDependency

import muster
from muster.client import SEND_GRACE_S
from muster.sizes import SEND_BYTES_MAX
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.described import IdempotencyKey, problems, success
from muster_server.systems.http.face import AnyRequest, Base, Where
from muster_server.systems.http.idempotency import Answer, Nothing
from muster_server.systems.http.named import needs_whole, once, users_of
from muster_server.systems.http.problems import Problem
from muster_server.systems.presence.http.elsewhere import Elsewhere, need_elsewhere
from muster_server.systems.presence.http.sent import Device, NewMessage, Sent, User

OPEN_S: Final = 5.0
Ask = Callable[[muster.Client, int], Awaitable[Sequence[muster.DeviceResult]]]
"""Asks for something at the devices of one user."""


class Sender:
    """The client of the process, opened when it is first needed."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self._where: Where = base.where
        self._client: muster.Client | None = None
        self._elsewhere = Elsewhere(base)
        self._opening = asyncio.Lock()

    def redirect(self, address: muster.Address) -> None:
        """Use these servers from now on."""
        self._where = address
        if self._client is not None and not self._client.closed:
            self._client.redirect(address)

    async def close(self) -> None:
        """Close it, and the ways to others."""
        await self._elsewhere.close()
        if self._client is not None and not self._client.closed:
            await self._client.close(timeout=1.0)

    async def send(self, asked: NewMessage, users: Sequence[int], data: bytes) -> Sent:
        """Send to all users at once. Raises `Nothing`."""

        async def one(client: muster.Client, user: int) -> Sequence[muster.DeviceResult]:
            return await client.send(user, data, device=asked.device, expires=asked.expires)

        sent = await self.each(users, asked.users, one)
        where = self._elsewhere.default if asked.not_online is None else asked.not_online
        return await self._elsewhere.kept(sent, where, asked) if where else sent

    async def each(self, users: Sequence[int], names: Sequence[str], ask: Ask) -> Sent:
        """Ask for the devices of all users at once, and of each once. Raises `Nothing`."""
        try:
            client = await self._opened()
        except muster.MusterError as error:
            raise Nothing(Problem("unavailable", str(error)[:400])) from None
        named = once(users, names).items()
        return Sent(list(await asyncio.gather(*(self._one(client, user, name, ask) for user, name in named))))

    async def _one(self, client: muster.Client, user: int, name: str, ask: Ask) -> User:
        said = User(str(user), text=None if name == str(user) else name)
        try:
            results = await ask(client, user)
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
    operation_id="presence_send",
    status_code=200,
    opt={"body": Body((NewMessage,))},
    responses={
        200: success(Sent, "The outcome for each device"),
        **problems(400, 401, 403, 409, 413, 422, 429, 503, 504),
    },
)
async def route(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    sender: NamedDependency[Sender],
    idempotency_key: IdempotencyKey = None,
) -> Response[bytes]:
    """Send one message to all online devices of many users: `{"users": ["7", "8"], "data": "hello"}`.

    With `"not_online": "topic:push"`, the message of a user of whom no device has it goes into this topic, whose callback
    is a push gateway; with `"inbox:message"` into the user's inbox. The key then needs `send:push` or `notify:USER` too.

    `"device": "phone"` selects one device; `"expires": 5` sets the lifetime in seconds; with `"encoding": "base64"` the
    message is binary.
    """
    body = await request.body()
    asked = decoded(body, NewMessage)
    try:
        data = asked.data.encode() if asked.encoding == "utf-8" else base64.b64decode(asked.data, validate=True)
    except ValueError:
        raise Problem("bad_body", "invalid data (expected base64, as set by `encoding`)") from None
    if len(data) > SEND_BYTES_MAX:
        raise Problem("too_long", f"the message is too long (limit {SEND_BYTES_MAX} bytes)")
    users = users_of(caller, asked.users, "bad_body")
    for user in asked.users:
        caller.need("unicast", user, whole=needs_whole(user))
    need_elsewhere(caller, asked)
    base = sender.base
    base.ongoing(request).extend(asked.expires + SEND_GRACE_S)

    async def do() -> Answer:
        try:
            caller.spend(len(asked.users))
        except Problem as problem:
            raise Nothing(problem) from None
        return Answer(200, msgspec.json.encode(await sender.send(asked, users, data)))

    return await base.once(request, caller, body, do)
