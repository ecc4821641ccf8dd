"""Ends of sessions over HTTP: `POST /api/v1/presence/end`. The request goes through the client of `send.py`."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from litestar import Response, post
from litestar.di import NamedDependency

import muster
from muster.client import SEND_GRACE_S
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.described import IdempotencyKey, problems, success
from muster_server.systems.http.face import AnyRequest
from muster_server.systems.http.idempotency import Answer, repeatable
from muster_server.systems.http.named import needs_whole, users_of
from muster_server.systems.presence.devices import DEVICE
from muster_server.systems.presence.http.send import Sender
from muster_server.systems.presence.http.sent import USERS_MAX, Sent


class Ends(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to end the sessions of users, each a number of 64 bits as text, or the text that names the user."""

    users: Annotated[list[str], msgspec.Meta(max_length=USERS_MAX)]
    device: Annotated[str, msgspec.Meta(pattern=rf"^{DEVICE}\Z")] | None = None
    """The name of the only device whose session ends."""
    expires: Annotated[float, msgspec.Meta(gt=0, le=60)] = 5.0
    """Give up after this many seconds."""


@post(
    "/presence/end",
    operation_id="presence_end",
    status_code=200,
    opt={"body": Body((Ends,))},
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
    """End the sessions of many users: `{"users": ["7", "8"]}`; `"device": "phone"` ends only the session of that device.

    The clients get the code `ended` and do not come back by themselves. A program may open a new session: revoke the user
    to keep it out. Needs the scope `end`.
    """
    body = await request.body()
    asked = decoded(body, Ends)
    users = users_of(caller, asked.users, "bad_body")
    for user in asked.users:
        caller.need("end", user, whole=needs_whole(user))
    names = ", ".join(asked.users)
    request.scope["state"]["note"] = f"{names}: {asked.device}" if asked.device else names
    base = sender.base
    base.ongoing(request).extend(asked.expires + SEND_GRACE_S)

    async def one(client: muster.Client, user: int) -> Sequence[muster.DeviceResult]:
        return await client.end_sessions(user, device=asked.device, expires=asked.expires)

    async def do() -> Answer:
        with repeatable():
            caller.spend(len(asked.users))
            return Answer(200, msgspec.json.encode(await sender.each(users, asked.users, one)))

    return await base.once(request, caller, body, do)
