"""The status of a user over HTTP: `PUT /api/v1/presence/status`."""

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from litestar import MediaType, Response, put
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from muster_server.plane.calls import CallError
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import Body, decoded
from muster_server.systems.http.described import problems, success
from muster_server.systems.http.face import AnyRequest
from muster_server.systems.http.named import needs_whole, users_of
from muster_server.systems.http.problems import Problem
from muster_server.systems.presence.status import StatusNow, StatusWanted

if TYPE_CHECKING:
    from muster_server.systems.presence.http.routes import PresenceFace

CODES: Final = {"question": "bad_body", "late": "timeout", "full": "busy", "busy": "busy"}


@put(
    "/presence/status",
    operation_id="presence_status",
    opt={"body": Body((StatusWanted,))},
    responses={
        200: success(StatusNow, "The status as it stands now"),
        **problems(400, 401, 403, 413, 429, 503, 504),
    },
)
async def route(
    request: AnyRequest,
    caller: NamedDependency[Caller],
    presence: NamedDependency["PresenceFace"],
    user: Annotated[str, QueryParameter(description="The user, for an API key; a token sets that of its own")] = "",
) -> Response[bytes]:
    """Set a user's status: `{"mode": "dnd", "text": "in a meeting", "expires": 3600}`.

    The modes are `available`, `away`, `dnd` (do not disturb) and `invisible`: others then see the user as offline.
    With `"away_after": 300` an available user is away if nothing sets its status for 300 s. `{}` takes the status back.
    """
    asked = decoded(await request.body(), StatusWanted)
    try:
        new = asked.checked()
    except ValueError as error:
        raise Problem("bad_body", str(error)) from None
    number = _whose(caller, user)
    try:
        status = await (await presence.readers()).set_status(number, new)
    except CallError as error:
        raise Problem(CODES.get(error.code, "unavailable"), str(error)[:400]) from None
    return Response(msgspec.json.encode(StatusNow(status)) + b"\n", media_type=MediaType.JSON)


def _whose(caller: Caller, name: str) -> int:
    """The user whose status is set. Raises `Problem`."""
    if caller.user is not None:
        if name and users_of(caller, [name], "bad_request") != [caller.user]:
            raise Problem("not_allowed", "a token sets the status of its own user alone")
        return caller.user
    if not name:
        raise Problem("bad_request", "user: missing; an API key names the user, for example ?user=7")
    (number,) = users_of(caller, [name], "bad_request")
    caller.need("status", name, whole=needs_whole(name))
    return number
