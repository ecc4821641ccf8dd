"""Methods for clients of an edge: `muster.request` asks a room's responders.

The edge asks by a client of its own with the shared token, and names the user for whom it asks.
"""

import asyncio
import base64
from typing import Annotated, Any, Final

import msgspec

import muster
from muster.inputs import check_name
from muster.instance import read_token
from muster.requests import SUFFIX
from muster_server._engines import Grant
from muster_server.control.cluster.places import on_map
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec, SpecError
from muster_server.plane.ways import CallRefused, Failure

REQUEST_S: Final = 4.0
"""Shorter than the time for which an SDK waits for any answer, which is 5 s unless its options differ."""
REQUEST_S_MAX: Final = 9.0
"""Shorter than the time for the answer to a call."""
REPLIED: Final = "replied"
OUTCOMES: Final = {
    muster.NoResponders: "no_responders",
    muster.TimedOut: "timeout",
    muster.ResponderFailed: "failed",
}
FAILURES: Final[dict[str, Failure]] = {
    "busy": "too_many_requests",
    "too_long": "bad_request",
    "invalid": "bad_request",
    "bad_room_name": "bad_request",
}
"""By the codes of the library's errors; all others are `internal`."""


class NewRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data of a call. `data`: any JSON."""

    room: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    timeout: Annotated[float, msgspec.Meta(gt=0, le=REQUEST_S_MAX)] = REQUEST_S


class RequestCalls:
    """A `plane.ways.Calls`."""

    outcomes = (REPLIED, *OUTCOMES.values())

    def __init__(self, spec: Spec, context: Context) -> None:
        self._spec, self._context = spec, context
        self._client: muster.Client | None = None
        self._map: Any = None
        self._opening = asyncio.Lock()

    async def answer(self, user: int, grant: Grant, data: bytes) -> tuple[str, bytes]:
        """The outcome of a request: `replied` with the reply, `no_responders`, `timeout` or `failed`."""
        try:
            new = msgspec.json.decode(data or b"{}", type=NewRequest)
            check_name(new.room)
            words = grant.words(new.room + SUFFIX)
        except (msgspec.MsgspecError, muster.MusterError, ValueError, RecursionError):
            raise CallRefused("bad_request") from None
        if "publish" not in words:
            raise CallRefused("not_allowed")
        try:
            client = await self._opened()
            reply = await client.request(new.room, bytes(new.data), timeout=new.timeout, user=user)
        except (muster.NoResponders, muster.TimedOut, muster.ResponderFailed) as error:
            outcome = next(word for kind, word in OUTCOMES.items() if isinstance(error, kind))
            reason = {"reason": error.reason} if isinstance(error, muster.ResponderFailed) else {}
            return outcome, msgspec.json.encode({"outcome": outcome, **reason})
        except muster.MusterError as error:
            raise CallRefused(FAILURES.get(error.code, "internal")) from None
        return REPLIED, msgspec.json.encode({"outcome": REPLIED, **shown(reply.data)})

    async def _opened(self) -> muster.Client:
        """The edge's client. Raises `MusterError`."""
        async with self._opening:
            snapshot = self._context.snapshot()
            if self._client is None or self._client.closed:
                address = self._address(snapshot)
                if not address.gateways or not address.proxies:
                    raise muster.Unavailable("no gateway or no proxy is known yet")
                self._client = await muster.connect(address, timeout=REQUEST_S)
            elif snapshot is not self._map:
                self._client.redirect(self._address(snapshot))
            self._map = snapshot
            return self._client

    def _address(self, snapshot: Any) -> muster.Address:
        token = read_token(self._spec.token_file or "")
        if snapshot is not None:
            return on_map(snapshot, token)
        servers = self._spec.servers
        return muster.Address(tuple(servers.get("gateway", ())), tuple(servers.get("proxy", ())), token)

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None and not self._client.closed:
            try:
                await self._client.close(timeout=1.0)
            except muster.MusterError:
                return


def shown(data: bytes) -> dict[str, object]:
    """The reply as JSON, or as base64 with `encoding` if it is none."""
    try:
        msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return {"data": base64.b64encode(data).decode(), "encoding": "base64"}
    return {"data": msgspec.Raw(data)}


def request(spec: Spec, context: Context) -> RequestCalls:
    """As `System.calls`. Raises `SpecError`."""
    if not spec.token_file:
        raise SpecError("an edge needs token_file")
    return RequestCalls(spec, context)
