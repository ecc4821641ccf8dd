"""The client: two sessions in one compiled engine, the joined rooms, and the calls that wait for an answer.

Every verb of the library's main class stands here with its documentation, which makes the file long. `publishing.py`
carries out what is published, `tokens.py` keeps the credential, `inputs.py` checks arguments.
"""

import asyncio
import os
import secrets
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from ipaddress import ip_address
from json import loads
from socket import SOCK_DGRAM
from threading import get_ident
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, TypeVar, final
from warnings import warn
from weakref import WeakSet, ref

from ._core import ClientEngine
from .errors import (
    SESSIONS,
    Closed,
    Invalid,
    MusterError,
    OtherVersion,
    Refused,
    TimedOut,
    Unavailable,
)
from .filters import Filter
from .inputs import NO_JSON, check_data, check_name, check_seconds, content, encoded, full_name
from .instance import Address, Endpoint, find, folder_of
from .items import (
    Delivered,
    DeviceResult,
    Direct,
    Expired,
    Gap,
    Hop,
    Members,
    Message,
    NoMember,
    Outcome,
    Position,
    Reply,
)
from .publishing import Publishing, fail
from .requests import COUNTS as REQUEST_COUNTS
from .requests import Requests
from .responder import AT_ONCE, Handler, Responder
from .room import COUNTS, POLICIES, Policy, Room
from .sizes import COMMAND_BYTES_MAX, SEND_BYTES_MAX
from .tokens import Token, Tokens, token_bytes
from .turns import Event, Turns
from .url import is_url, parse
from .why import differing, explained

if TYPE_CHECKING:
    from .inbox import Entry

ADDRESSES_MAX: Final = 8
"""Limit of addresses of one host name."""
COMMAND_S_MAX: Final = 60.0
SEND_S_MAX: Final = 600.0
SEND_GRACE_S: Final = 3.0
"""A proxy reports a message's outcome at most 0.25 s after its end, but not if the proxy died."""
READ_AT_ONCE: Final = 256
INBOX_HINT: Final = b'{"inbox":'
"""The begin of a message that tells of a new entry of the user's inbox."""
INBOX_PAGE: Final = 100
INBOX_POLL_S: Final = 30.0
INBOX_AGAIN_S: Final = 1.0
REQUEST_S: Final = 5.0
COMMAND_GRACE_S: Final = 5.0
"""The engine reports a command's outcome at most 1 s after its end."""
TIMEOUT_S: Final = 10.0
ROOMS_MAX: Final = 256
UNREAD_BYTES: Final = 8 << 20
RECEIVE_BUFFER_BYTES: Final = 4 << 20
LOOK_AGAIN_S: Final = 0.5
JOINS_AT_ONCE: Final = 256
JOINS_A_SECOND: Final = 5
"""Joins per second of one session; further ones wait at the gateway."""
LOOK_INTO_S: Final = 1.0
"""After this time, or a third of the time-out, servers that gave no session are probed for the reason."""

_NOBODY, _CONFIRMED = 1, 2
"""Of the engine: when messages to the user count as delivered."""

Fault = (
    tuple[str, tuple[str, int] | None, float, float, float, float, int, int, int]
    | tuple[str, tuple[str, int] | None, float, float, float, float, int, int, int, float]
)
"""Injected fault, for tests: direction ("in" or "out"), peer (None: all), chances of loss, duplicate, corrupt and
reorder, then reorder hold, delay and jitter in ms, and optionally the mean number of a peer's datagrams lost in a row.
For tests."""

_Page: TypeAlias = tuple[list[int], bool, list[tuple[int, int]]]
"""Users, whether more follow, and (node, microseconds) of each node on the path."""

_Result = TypeVar("_Result")


class _Servers(TypedDict):
    gateways: list[tuple[str, int, bytes]]
    proxies: list[tuple[str, int, bytes]]
    credential: bytes


_OPEN: "Final[WeakSet[Client]]" = WeakSet()
"""Open clients of this process."""


@final
class Client:
    """A member and publisher of rooms, with one session to a gateway and one to a proxy. Made by `connect`.

    Open it with `async with` (or `await`), then `join` rooms to read them, `publish` to them, and `close` it at the
    end:

        async with muster.connect() as client, client.join("sports:final") as room:
            await client.publish("sports:final", b"1:0")
            async for item in room:
                print(item)

    A client belongs to the loop and the thread in which it was opened; other threads get `Invalid`. Lost sessions open
    again by themselves. `docs/sdk.md` has all calls, counts and limits."""

    def __init__(
        self,
        instance: str | os.PathLike[str] | Address | None,
        gateways: Sequence[Endpoint] | None,
        proxies: Sequence[Endpoint] | None,
        token: Token | None,
        timeout: float,
        buffer_bytes: int,
        receive_buffer_bytes: int,
        ages: bool,
        confirms: bool,
        faults: Sequence[Fault] | None,
    ) -> None:
        if isinstance(instance, str) and is_url(instance):
            named = parse(instance)
            if gateways is not None:
                raise Invalid("a URL names the gateways; give no others")
            instance, gateways = None, named.gateways
            token = named.token or None if token is None else token
            if token is None:
                raise Invalid("the URL has no token; give token=…")
        explicit = instance is None and (gateways or proxies)
        # A program that names servers need not know all: these servers name the others.
        self._learns = [bool(explicit) and (each is None or len(each) > 0) for each in (gateways, proxies)]
        self._by_folder = not (isinstance(instance, Address) or explicit or None not in [gateways, proxies, token])
        self._instance = instance if isinstance(instance, Address) else Address((), (), b"")
        self._folder = None if isinstance(instance, Address) or not instance else folder_of(instance)
        self._gateways, self._proxies = gateways, proxies
        self._tokens = Tokens(self, token)
        self.opened_at = _place()
        """File and line of the program that opened the client."""
        self._timeout, self._buffer_bytes, self._faults = check_seconds(timeout), buffer_bytes, faults
        self._receive_buffer_bytes, self._ages, self._confirms = receive_buffer_bytes, ages, confirms
        self._state = "new"
        self._hosts: dict[str, list[str]] = {}
        self._sides: list[int] = []
        self._failed: MusterError | None = None
        self._down = ["does not answer", "does not answer"]
        self._other_version = ["", ""]
        self._lost: set[int] = set()
        self._refused: dict[int, MusterError] = {}
        self._look: asyncio.TimerHandle | None = None
        self._opened: dict[int, asyncio.Future[None]] = {}
        self._rooms: dict[int, Room] = {}
        self._joins_left, self._joined_at = float(JOINS_AT_ONCE), 0.0
        self._names: set[str] = set()
        self._left = dict.fromkeys(COUNTS, 0)
        self._publishing = Publishing(self)
        self._commands: dict[int, asyncio.Future[Outcome]] = {}
        self._counts: dict[int, asyncio.Future[Members]] = {}
        self._sends: dict[int, asyncio.Future[list[DeviceResult]]] = {}
        self._requests: Requests | None = None
        self._direct: deque[Direct] = deque()
        self._inbox_readers = 0
        self._hinted = False
        """A message told of a new entry of the inbox."""
        self._inbox_unread: int | None = None
        self._received = asyncio.Event()
        self._direct_readers = 0
        self._closing = False
        """It publishes nothing new, and waits for what it has published."""
        self._handlers: dict[str, Callable[..., None]] = {
            "ready": self._on_ready,
            "leased": self._on_leased,
            "down": self._on_down,
            "differs": self._on_differs,
            "joined": self._on_joined,
            "refused": self._on_refused,
            "writable": self._publishing.on_writable,
            "vacant": self._publishing.on_vacant,
            "commanded": self._on_commanded,
            "sent": self._on_sent,
            "received": self._on_received,
        }

    def __await__(self) -> Generator[Any, None, "Client"]:
        return self.__aenter__().__await__()

    # --- life -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> "Client":
        if self._state != "new":
            raise Invalid("a client is opened once; call muster.connect again")
        self.loop, self.thread = asyncio.get_running_loop(), get_ident()
        self._publishing.start(self.loop)
        began = self.loop.time()
        if (source := self._tokens.source) is not None:
            self._tokens.current = await self.wait(source(), self._timeout, "get a token")
        self._known = self._in_use = address = self._address()
        await self.wait(self._look_up(address), self._timeout, "connect")
        try:
            self.engine = ClientEngine(
                **self._servers(address),
                seed=secrets.randbits(63),
                learns=self._learns,
                inbox_bytes=self._buffer_bytes,
                recv_buffer=self._receive_buffer_bytes,
                ages=self._ages,
                faults=list(self._faults) if self._faults else None,
            )
        except (ValueError, OverflowError) as error:
            raise Invalid(str(error)) from None
        except OSError as error:
            raise Unavailable(f"no socket: {error}") from None
        if self._confirms:
            self.engine.set_reading(_NOBODY)
        self.turns = self._turning()
        self._state = "open"
        _OPEN.add(self)
        try:
            known = [side for side, servers in enumerate((address.gateways, address.proxies)) if servers]
            self._sides = [side for side in (0, 1) if side in known or self._learns[side]]
            for side in self._sides:
                self._opened[side] = self.loop.create_future()
                if side in known:
                    self.engine.open(side)
                else:
                    self._down[side] = "is not known: no server has named one"
            for side in known:
                await self._until_open(side, began)
        except BaseException:
            self._close(Closed("the client could not be opened"))
            raise
        return self

    async def _until_open(self, side: int, began: float) -> None:
        """Wait for the first session of this side. Raises `TimedOut` with the reason that the servers report."""
        opened = self._opened[side]
        patience_s = min(LOOK_INTO_S, self._timeout / 3) - (self.loop.time() - began)
        await asyncio.wait([opened], timeout=max(0.0, patience_s))
        if opened.done():
            return opened.result()
        servers = self._servers(self._known)
        known = servers["gateways"] if side == 0 else servers["proxies"]
        asked = self.loop.create_task(explained("connect", SESSIONS[side], [server[:2] for server in known]))
        try:
            await self.wait(opened, self._timeout, "connect", side, began)
        except TimedOut:
            if self._is_unreached(side) and asked.done() and (error := asked.result()) is not None:
                raise error from None
            raise
        finally:
            asked.cancel()

    def _is_unreached(self, side: int) -> bool:
        """True if no server of this side has answered yet."""
        return self._down[side].startswith("does not answer")

    def _turning(self) -> Turns:
        """The runner of the engine's turns. The loop holds it but not the client, so an unclosed client can be
        collected."""
        here = ref(self)

        def on_events(events: list[Event]) -> None:
            client = here()
            if client is not None:
                client._on_events(events)

        def on_panic(error: BaseException) -> None:
            with suppress(BaseException):  # closing may panic too
                turns.close()
            client = here()
            if client is not None:
                client._on_panic(error)

        turns = Turns(self.engine, on_events, on_panic)
        return turns

    def __del__(self) -> None:
        """Warn that the client was not closed, and free its descriptors."""
        if getattr(self, "_state", "new") != "open":
            return
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.turns.close)  # the garbage collector runs in any thread
        warn(
            f"unclosed client, opened at {self.opened_at}: use `async with`, or await client.close()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            self._close(Closed("the client is closed"))

    async def close(self, timeout: float | None = None) -> None:
        """Wait until everything published is acknowledged, then close the sessions. Raises `TimedOut`; the client is
        closed then too. From now on publishing raises `Closed`."""
        if self.closed:
            return
        self._check_open()
        self._closing = True
        try:
            await self.flush(timeout)
        finally:
            self._close(Closed("the client is closed"))

    @property
    def closed(self) -> bool:
        """True if the client is not open yet, or no longer."""
        return self._state != "open"

    @property
    def protocol(self) -> int | None:
        """The protocol version of the gateway session, else of the proxy session; None without a session."""
        self._check_open()
        found = (self.engine.version(side) for side in self._sides)
        return next((version for version in found if version is not None), None)

    # --- rooms ------------------------------------------------------------------------------------------------

    def join(
        self,
        name: str,
        *,
        positions: bytes | None = None,
        history: int = 0,
        policy: Policy = "drop_oldest",
        filter: Filter | None = None,
        timeout: float | None = None,
    ) -> Room:
        """Become a member for as long as the block lasts: `async with client.join("sports:final") as room`.

        `positions`: a value of `room.positions`, also from another process; reading continues after it. Messages that
        the servers no longer have are reported as gaps, and `room.recovered` tells whether there are any. `history`: up
        to this many of the last messages come first, and `room.history` has their number. The call raises `Refused`
        with the code `too_much_history` if the server allows fewer. `policy`: what happens when more than
        `buffer_bytes` are unread. `drop_oldest` and `drop_newest` leave a gap with the reason `reader`; `block` stops
        reading from the gateway. `filter`: only the messages that it lets through come, from history too; the others
        are no gap.
        """
        check_name(name)
        if not isinstance(filter, Filter | None):
            raise Invalid(f"invalid filter of type {type(filter).__name__} (expected muster.Filter)")
        if policy not in POLICIES:
            raise Invalid(f"invalid policy {policy!r} (expected one of {', '.join(POLICIES)})")
        if not isinstance(positions, bytes | None):
            raise Invalid(f"invalid positions of type {type(positions).__name__} (expected bytes from room.positions)")
        if not isinstance(history, int) or not 0 <= history < 1 << 32:
            raise Invalid(f"invalid history {history!r} (expected a number of messages, 0 or more)")
        if history and positions:
            raise Invalid("positions and history exclude each other: give one of them")
        return Room(self, name, positions or None, history, policy, self._seconds(timeout), filter)

    async def history(self, room: str, count: int, *, timeout: float | None = None) -> list[Message]:
        """Return the last messages of a room, at most `count`, oldest first. The client is a member for that moment
        only.

        Raises `Invalid` if this client has joined the room already, and `Refused` as `join` does.
        """
        if not isinstance(count, int) or count < 1:
            raise Invalid(f"invalid history {count!r} (expected a number of messages, 1 or more)")
        found: list[Message] = []
        until = self._seconds(timeout)
        async with self.join(room, history=count, timeout=until) as joined:
            left = joined.history.messages
            while left > 0:
                item = await self.wait(anext(joined), until, f"history of {room}")
                if isinstance(item, Message):
                    found.append(item)
                    left -= 1
                elif isinstance(item, Gap):  # messages that the servers no longer have
                    left -= left if item.last is None else item.last - item.first + 1
        return found

    async def publish(
        self,
        room: str,
        data: bytes | None = None,
        *,
        json: Any = NO_JSON,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Position:
        """Publish a message; return once the room's owner has numbered it and all that this client published to the
        room before.

        The message is `data`, or `json` as JSON in UTF-8: dicts, lists, text, numbers, booleans and None. `headers` are
        texts by name, at most 16 and 1,024 bytes; members get them with the message.
        When the wait ends early (`TimedOut`, `Refused` with the code `busy`, cancellation), the message may still be
        published.
        """
        if data is None or json is not NO_JSON:
            data = content(data, json)
        seconds = self._timeout if timeout is None else check_seconds(timeout)
        return await self._publishing.publish(room, data, encoded(headers) if headers else None, seconds)

    def publish_nowait(
        self,
        room: str,
        data: bytes | None = None,
        *,
        json: Any = NO_JSON,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Publish if there is credit. Returns False if there is none; the message was not accepted then.

        The client repeats an accepted message until the owner has it, also through other proxies; `flush` waits for
        that.
        """
        if data is None or json is not NO_JSON:
            data = content(data, json)
        return self._publishing.publish_nowait(room, data, encoded(headers) if headers else None)

    async def writable(self, room: str, *, timeout: float | None = None) -> None:
        """Return when `publish_nowait` may succeed: at once if there is credit."""
        await self._publishing.writable(room, self._seconds(timeout))

    async def flush(self, timeout: float | None = None) -> None:
        """Return once every message that this client has published before is acknowledged. Raises `Refused` if a room
        refused some."""
        self._check_open()
        await self._publishing.flush(self._seconds(timeout))

    async def command(self, room: str, data: bytes, *, expires: float = 5.0) -> Outcome:
        """Deliver a command to every member of a room, once each, within `expires` seconds (at most 60), and return the
        outcome.

        For rare messages that must not be lost unnoticed. A user may send one a second, unless the proxies allow more;
        beyond that it raises `Refused` with the code `rate_limited` and `retry_after`. `data` has at most 800 bytes
        (`TooLong`). Needs no membership. A cancelled command may still be delivered.
        """
        self._check_open()
        check_name(room)
        check_data(data, COMMAND_BYTES_MAX, "command")
        if not 0 < check_seconds(expires) <= COMMAND_S_MAX:
            raise Invalid(
                f"invalid lifetime of a command: {expires!r} (expected more than 0 and at most {COMMAND_S_MAX:g} "
                "seconds)"
            )
        self.check_side(1)
        number = self.engine.command(room, data, int(expires * 1e6))
        if number is None:
            raise Refused(f"command to {room}", "busy")
        done: asyncio.Future[Outcome] = self.loop.create_future()
        self._commands[number] = done
        try:
            return await self.wait(done, expires + COMMAND_GRACE_S, f"command to {room}", 1)
        finally:
            del self._commands[number]

    async def request(
        self,
        room: str,
        data: bytes | None = None,
        *,
        json: Any = NO_JSON,
        timeout: float = REQUEST_S,
        user: int | None = None,
    ) -> Reply:
        """Ask a room's responders, and return the reply of the one that answers.

        The request is `data`, or `json` as JSON in UTF-8, of at most 48,000 bytes (`TooLong`). Raises `NoResponders` at
        once if the room has none, `TimedOut` without a reply within `timeout` seconds (at most 60; a responder may have
        handled the request), `ResponderFailed` if the responder has no reply, and `Refused` with the code `busy` for more
        than 16,384 requests at once. A request goes to one responder, once: it is not repeated if that one dies.
        `user`: the user for whom a client with the shared token asks; the responder sees it as the sender.

        Needs a gateway, the right `publish` in ROOM/requests, and `publish` and `read` in `replies:*`. `NoResponders`
        needs `members` in ROOM/requests too.
        """
        if data is None or json is not NO_JSON:
            data = content(data, json)
        self._check_open()
        check_name(room)
        if user is not None and (not isinstance(user, int) or not 0 <= user < 1 << 64):
            raise Invalid(f"invalid user {user!r:.40} (expected a number from 0 to 2^64-1)")
        for side in (0, 1):
            self.check_side(side)
        if self._requests is None:
            self._requests = Requests(self)
        return await self._requests.request(room, data, check_seconds(timeout), user)

    def respond(self, room: str, handler: Handler, *, at_once: int = AT_ONCE) -> Responder:
        """Answer requests to a room as long as the block lasts:

            async with client.respond("prices", handler) as responder:
                await responder.wait()

        `handler`: an async function from a `Request` to the bytes of its reply, at most 48,000; up to `at_once` run at the
        same time, 1,024 requests wait, and further ones get `ResponderFailed`. Each request goes to one of the room's
        responders. A handler that raises is logged, and its client gets `ResponderFailed`. At the end of the block the
        clients are told, and what was taken is answered.

        Needs a proxy, the right `read` in ROOM/requests, and `publish` in `replies:*`.
        """
        self._check_open()
        check_name(room)
        for side in (0, 1):
            self.check_side(side)
        return Responder(self, room, handler, at_once)

    async def send(
        self, user: int, data: bytes, *, device: str | None = None, expires: float = 5.0
    ) -> list[DeviceResult]:
        """Send a message to all online devices of a user, or to one of them, and return the outcomes.

        One result for each device: `delivered` (its client has the message), `not_online`, `expired` (it did not
        confirm the message within `expires` seconds, but may have it), or `unknown` (its gateway was lost before it
        answered; the device may have the message). A result without a device stands for devices whose names are not
        known, and for those beyond 40. Each device gets a message at most once, whatever fails. `data` has at most 960
        bytes (`TooLong`). A cancelled message may still be delivered. Needs an instance with presence.
        """
        self._check_open()
        check_data(data, SEND_BYTES_MAX, "message to a user")

        def begin(number: int) -> bool:
            return self.engine.send(number, user, device, data, int(expires * 1e6))

        return await self._ask_devices("send to", user, device, expires, begin)

    async def end_sessions(self, user: int, *, device: str | None = None, expires: float = 5.0) -> list[DeviceResult]:
        """End the sessions of a user's online devices, or of one of them, and return the outcomes.

        One result for each device: `ended`, `not_online`, `expired` (its gateway did not answer within `expires` seconds,
        but may have ended the session), or `unknown` (its gateway was lost before it answered). The clients get the code
        `ended` and do not come back by themselves; a program may open another client, so revoke the user to keep it out.
        Only a client with the shared token may end sessions; others get `Refused` with `not_allowed`. Needs an instance
        with presence.
        """
        self._check_open()

        def begin(number: int) -> bool:
            return self.engine.end(number, user, device, int(expires * 1e6))

        found = await self._ask_devices("end the sessions of", user, device, expires, begin)
        return [each._replace(outcome="ended") if each.outcome == "delivered" else each for each in found]

    async def end_member(self, room: str, user: int, *, expires: float = 5.0) -> int:
        """End the sessions with which a user is a member of a room, and return their number.

        The clients get the code `ended` and do not come back by themselves; a program may open another client, so revoke
        the user to keep it out. It raises `TimedOut` if a gateway did not answer within `expires` seconds (at most 60):
        sessions there may have ended. Only a client with the shared token may end sessions, and not those of the shared
        token itself; others get `Refused` with `not_allowed`. Needs no presence.
        """
        self._check_open()
        check_name(room)
        if not isinstance(user, int) or not 0 <= user < 1 << 64:
            raise Invalid(f"invalid user {user!r:.40} (expected a number from 0 to 2^64-1)")
        if not 0 < check_seconds(expires) <= COMMAND_S_MAX:
            raise Invalid(f"invalid time: {expires!r} (expected more than 0 and at most {COMMAND_S_MAX:g} seconds)")
        self.check_side(1)
        what = f"end sessions of {user} in {room}"
        number = self.engine.end_member(room, user, int(expires * 1e6))
        if number is None:
            raise Refused(what, "busy")
        done: asyncio.Future[Outcome] = self.loop.create_future()
        self._commands[number] = done
        try:
            outcome = await self.wait(done, expires + COMMAND_GRACE_S, what, 1)
        finally:
            del self._commands[number]
        if isinstance(outcome, Expired):
            raise TimedOut(f"{what}: a gateway did not answer in time; {outcome.members} sessions were ended")
        return outcome.members if isinstance(outcome, Delivered) else 0

    async def _ask_devices(
        self, what: str, user: int, device: str | None, expires: float, begin: Callable[[int], bool]
    ) -> list[DeviceResult]:
        """Begin a request to a user's devices under a random number, and wait for the outcome of each."""
        if not isinstance(user, int) or not 0 <= user < 1 << 64:
            raise Invalid(f"invalid user {user!r:.40} (expected a number from 0 to 2^64-1)")
        if device is not None and not isinstance(device, str):
            raise Invalid(f"invalid device of type {type(device).__name__} (expected text)")
        if not 0 < check_seconds(expires) <= SEND_S_MAX:
            raise Invalid(f"invalid time: {expires!r} (expected more than 0 and at most {SEND_S_MAX:g} seconds)")
        self.check_side(1)
        number = secrets.randbits(64)
        try:
            taken = begin(number)
        except ValueError as error:
            raise Invalid(str(error)) from None
        if not taken:
            raise Refused(f"{what} {user}", "busy")
        done: asyncio.Future[list[DeviceResult]] = self.loop.create_future()
        self._sends[number] = done
        try:
            async with asyncio.timeout(expires + SEND_GRACE_S):
                return await done
        except TimeoutError as error:
            if isinstance(error, MusterError):
                raise
            return [DeviceResult(device, "expired")]
        finally:
            del self._sends[number]
            if not self.closed:
                self.engine.forget(number)

    async def direct(self) -> AsyncGenerator[Direct, None]:
        """Iterate over messages that others sent to this client's user; ends when the client is closed.

        A message counts as delivered once it has arrived here. At most 1,024 wait to be read; further ones are not
        accepted. A client
        that was opened with `confirms` has a message delivered by `confirm` alone; while nothing reads here, senders hear
        `not_online`. Raises `Refused` with the code `replaced` once a newer session has replaced this one, and with `ended`
        once an operator has ended it.
        """
        self._check_open()
        self.check_side(0)
        self._direct_readers += 1
        if self._confirms:
            self.engine.set_reading(_CONFIRMED)
        try:
            while True:
                while self._direct:
                    yield self._direct.popleft()
                if self.closed:
                    return
                self._take_direct()
                if self._direct:
                    continue
                self.check_side(0)
                self._received.clear()
                await self._received.wait()
        finally:
            self._direct_readers -= 1
            if self._confirms and not self._direct_readers and not self.closed:
                self.engine.set_reading(_NOBODY)

    def confirm(self, message: Direct) -> None:
        """Have this message count as delivered: its reader has it. For a client that was opened with `confirms`."""
        self._check_open()
        if not self._confirms:
            raise Invalid("this client confirms nothing: open it with muster.connect(…, confirms=True)")
        self.engine.confirm(message.sender, message.number)

    async def inbox(
        self, url: str, *, after: str = "0", audiences: Sequence[str] = (), poll: float = INBOX_POLL_S
    ) -> AsyncGenerator["Entry", None]:
        """Iterate over the entries of this client's user after a cursor, then over those that come.

        `url`: of the HTTP face, which has the inbox; the client's token must be a user's. `after`: the `cursor` of the last
        entry that was handled; it is the only thing to store. Hints come over the client's session; `audiences`: hints of
        broadcasts too, from their rooms, which the token must allow to read. A hint may be lost, so the inbox is also read
        each `poll` seconds. Raises `Refused`, and `Invalid` for a client that confirms; an HTTP face that does not answer
        is asked again.
        """
        from .inbox import AsyncInbox

        self._check_open()
        self.check_side(0)
        if self._confirms:
            raise Invalid("a client with confirms hands messages on; read the inbox with another client")
        self._inbox_readers += 1
        told = asyncio.Event()
        hearing = [self.loop.create_task(self._hear_audience(name, told)) for name in audiences]
        try:
            while not self.closed:
                self._hinted = False
                told.clear()
                try:
                    async with AsyncInbox(url, token=self._known.token.decode(), connections=1) as faced:
                        more = True
                        while more:
                            page = await faced.page(after=after, limit=INBOX_PAGE)
                            for each in page.entries:
                                yield each
                            after, more = page.after, page.next is not None
                except (Unavailable, TimedOut):
                    await asyncio.sleep(INBOX_AGAIN_S)
                    continue
                for task in hearing:
                    if task.done():
                        task.result()
                await self._hint(told, poll)
        finally:
            self._inbox_readers -= 1
            for task in hearing:
                task.cancel()
            await asyncio.gather(*hearing, return_exceptions=True)

    @property
    def inbox_unread(self) -> int | None:
        """The user's unread entries as the last hint of a running `inbox` told them; it stops at 99. None: no hint told
        them yet. Ask `muster.inbox` for the count of now."""
        return self._inbox_unread

    async def _hint(self, told: asyncio.Event, seconds: float) -> None:
        """Wait for a hint of the inbox, for at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (self.closed or self._hinted or told.is_set()):
                    if len(self._direct) < READ_AT_ONCE:
                        self._take_direct()
                    if self._hinted:
                        return
                    self._received.clear()
                    waits = [self.loop.create_task(self._received.wait()), self.loop.create_task(told.wait())]
                    try:
                        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        for task in waits:
                            task.cancel()

    async def _hear_audience(self, name: str, told: asyncio.Event) -> None:
        async with self.join(f"audience:{name}") as room:
            async for _ in room:
                told.set()

    def _take_direct(self) -> None:
        limit = 1 if self._confirms else READ_AT_ONCE  # what nobody has begun to read is told so
        for each in self.engine.received(limit):
            message = Direct(*each)
            if self._inbox_readers and message.data.startswith(INBOX_HINT):
                self._hinted = True
                with suppress(ValueError, KeyError, TypeError):
                    self._inbox_unread = int(loads(message.data)["inbox"]["unread"])
            else:
                self._direct.append(message)

    async def members(self, room: str, *, ids: bool = False, start: int = 0, wait: float = 1.0) -> Members:
        """Ask all gateways for the number of a room's members and, with `ids`, for at most 100 users from `start` on.

        If a gateway does not answer within `wait` seconds (at most 60), the result is `partial`. Needs no membership. A
        user may ask once a second, five times at once; beyond that it raises `Refused` with the code `rate_limited` and
        `retry_after`.
        """
        self._check_open()
        check_name(room)
        if not 0 < check_seconds(wait) <= COMMAND_S_MAX:
            raise Invalid(
                f"invalid wait for gateways: {wait!r} (expected more than 0 and at most {COMMAND_S_MAX:g} seconds)"
            )
        if not isinstance(start, int) or not 0 <= start < 1 << 64:
            raise Invalid(f"invalid user {start!r} (expected a number below 2^64)")
        self.check_side(1)
        what = f"members of {room}"
        number = self.engine.members(room, int(wait * 1e6), start if ids else None)
        if number is None:
            raise Refused(what, "busy")
        counted: asyncio.Future[Members] = self.loop.create_future()
        self._counts[number] = counted
        try:
            return await self.wait(counted, wait + COMMAND_GRACE_S, what, 1)
        finally:
            del self._counts[number]

    def redirect(self, address: Address) -> None:
        """Use these servers and this token from now on, for programs that learn of servers elsewhere, for example from
        a registry.

        A working session stays; a lost one opens again at one of these servers. If `address` names no servers of a
        kind, the known ones stay. A client with a token function keeps its own token. Hosts are IP addresses.
        """
        self._check_open()
        gateways, proxies = address.gateways or self._known.gateways, address.proxies or self._known.proxies
        token = address.token if self._tokens.source is None else self._known.token
        known = Address(gateways if 0 in self._sides else (), proxies if 1 in self._sides else (), token)
        try:
            self._use_servers(known)
        except (ValueError, OverflowError) as error:
            raise Invalid(str(error)) from None

    def _use_servers(self, known: Address) -> None:
        """Pass these servers and this token to the engine. A refused session is tried again if either of them changed,
        unless a newer session has replaced it or an operator has ended it."""
        before = self._known
        self.engine.redirect(**self._servers(known))
        self._known = known
        for side in (0, 1):
            refused = self._refused.get(side)
            if isinstance(refused, Refused) and refused.code in {"replaced", "ended"}:
                continue
            if refused is not None and self._is_other(side, before):
                self._revive(side, self._refused.pop(side))

    def _is_other(self, side: int, before: Address) -> bool:
        """True if the servers of this side, or the token, differ from those before."""
        now, then = ((each.gateways, each.proxies)[side] for each in (self._known, before))
        return now != then or self._known.token != before.token

    # --- counts -----------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Return the counts of this client, with the sums over all its rooms. `docs/sdk.md` explains each."""
        self._check_open()
        stats = {name: value for name, _, value in self.engine.counters()} | self._left
        for room in self._rooms.values():
            for name, value in room.stats().items():
                stats[name] += value
        stats |= dict.fromkeys(REQUEST_COUNTS, 0) if self._requests is None else self._requests.counts
        stats["unacknowledged"] = self._publishing.unacknowledged()
        for side, name in enumerate(SESSIONS):
            rtt = self.engine.rtt_us(side)
            if rtt is not None:
                stats[f"{name}_rtt_us"] = rtt
        stats["receive_buffer_bytes"] = self.engine.buffer()[1]
        return stats

    # --- for rooms --------------------------------------------------------------------------------------------

    def check_here(self, what: str) -> None:
        """Raise `Invalid` if the calling thread or loop did not open the client."""
        if get_ident() == self.thread and self.loop.is_running():
            return
        other = get_ident() != self.thread or self.loop.is_closed()
        if other or _running_loop() not in {self.loop, None}:
            raise Invalid(f"{what} belongs to the loop and the thread that opened it; call it there")

    def enter(
        self, room: Room, positions: bytes | None, history: int, policy: int, filter: Filter | None = None
    ) -> int:
        """Ask the engine for a membership; returns the room's number in the engine."""
        self._check_open()
        self.check_side(0)
        full = full_name(room.name)
        if full in self._names:
            raise Invalid(f"{room.name}: this client has joined that room already")
        if len(self._rooms) >= ROOMS_MAX:  # a request that must fail would count towards the rate of joins
            raise Refused(f"join {room.name}", "too_many_rooms")
        try:
            if filter:
                wanted = filter.wanted(), filter.one_in, filter.at_most_per_s
                number = self.engine.join(room.name, positions, policy, history, *wanted)
            else:
                number = self.engine.join(room.name, positions, policy, history)
        except ValueError as error:
            raise Invalid(f"{room.name}: {error}") from None
        self._names.add(full)
        self._rooms[number] = room
        now = self.loop.time()
        since = self._joins_left + (now - self._joined_at) * JOINS_A_SECOND
        self._joins_left, self._joined_at = min(float(JOINS_AT_ONCE), since) - 1, now
        return number

    def late_join(self, error: TimedOut) -> TimedOut:
        """The error of a join that timed out, with the reason if joins of this client are delayed by their rate."""
        left = self._joins_left + (self.loop.time() - self._joined_at) * JOINS_A_SECOND
        if left >= 0 or self._lost:
            return error
        limit = f"a session joins {JOINS_AT_ONCE} rooms at once, then {JOINS_A_SECOND} per second (rate_limited)"
        return TimedOut(f"{error}; {limit}; try again in {-left / JOINS_A_SECOND:.0f} s")

    def leave(self, room: Room, number: int) -> None:
        """End a membership; its counts remain in those of the client."""
        self._rooms.pop(number, None)
        for name, value in room.stats().items():
            self._left[name] += value
        self._names.discard(full_name(room.name))
        self.engine.leave(number)

    async def wait(
        self, answer: Awaitable[_Result], seconds: float, what: str, side: int = 0, began: float | None = None
    ) -> _Result:
        """Wait for an answer of the engine; `began` is the start of the wait. The error of a time-out names the session
        that was missing."""
        try:
            async with asyncio.timeout_at((self.loop.time() if began is None else began) + seconds):
                return await answer
        except TimeoutError as error:
            if isinstance(error, MusterError):
                raise
            raise self.too_late(what, seconds, side) from None

    def too_late(self, what: str, seconds: float, side: int) -> TimedOut:
        """The error of a wait that ended; it names the session that is missing."""
        why = "" if self.closed or self.engine.is_ready(side) else f"; the {SESSIONS[side]} {self._down[side]}"
        return TimedOut(f"{what}: no answer in {seconds:g} s{why}")

    @property
    def publishes(self) -> bool:
        """Whether it is open and not closing."""
        return self._state == "open" and not self._closing

    def check_publishes(self) -> None:
        """Raise if it is not."""
        self._check_open()
        if self._closing:
            raise Closed("the client is closing")

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else check_seconds(timeout)

    def check_side(self, side: int) -> None:
        """Raise if the client has no session of this kind, or its session is refused permanently."""
        if side not in self._sides:
            argument = ("gateways", "proxies")[side]
            raise Unavailable(f"this client has no {SESSIONS[side]}; give connect({argument}=…)")
        if side in self._refused:
            raise copy(self._refused[side])

    # --- events -----------------------------------------------------------------------------------------------

    def _on_events(self, events: list[Event]) -> None:
        self._in_use = self._known  # the servers that the engine used when it reported these events
        for event in events:
            name = event[0]
            if name == "readable":  # these two are the frequent ones
                room = self._rooms.get(event[1])
                if room is not None:
                    room.on_readable()
            elif name == "published":
                self._publishing.on_published(*event[1:])
            else:
                self._handlers[name](*event[1:])

    def _on_ready(self, side: int, _user: int) -> None:
        self._down[side] = "does not answer"
        self._lost.discard(side)
        self._tokens.on_ready(side)
        if not self._opened[side].done():
            self._opened[side].set_result(None)

    def _on_leased(self, _side: int, left_ms: int) -> None:
        self._tokens.on_leased(left_ms)

    def _on_differs(self, side: int, host: str, port: int, lowest: int, highest: int, release: str) -> None:
        """The server's protocol versions and this client's do not overlap; the loss of the session follows."""
        self._other_version[side] = differing(SESSIONS[side], host, port, (lowest, highest), release)

    def _on_down(self, side: int, reason: str, retry: bool, wait_ms: int = 0) -> None:
        silent = reason in {"unreachable", "silent", "far", "spread"}
        self._down[side] = f"does not answer ({reason})" if silent else f"said {reason}"
        if reason == "rate_limited":
            self._down[side] = f"refuses a further session of this user ({reason}, user_sessions_max); try again in 1 s"
        self._lost.add(side)
        self._look_again()
        if (
            self._is_other(side, self._in_use)
            or (reason == "bad_credential" and self._tokens.renew(side, final=not retry))
            or retry
        ):
            return
        self._lost.discard(side)
        differs = reason == OtherVersion.code
        refused = Refused(f"session with the {SESSIONS[side]}", reason, wait_ms / 1_000 or None)
        self._fail(side, OtherVersion(f"connect: {self._other_version[side]}") if differs else refused)

    def note_down(self, side: int, why: str) -> None:
        """Note why this side has no session."""
        self._down[side] = why

    def end_side(self, side: int, error: MusterError) -> None:
        """No further session of this side is tried."""
        self._lost.discard(side)
        self._fail(side, error)

    def use_token(self, token: bytes) -> bool:
        """Open sessions with another token from now on. Returns False if it is the present one."""
        if token == self._known.token:
            return False
        try:
            self._use_servers(Address(self._known.gateways, self._known.proxies, token))
        except ValueError as error:
            raise Invalid(str(error)) from None
        return True

    def _look_again(self) -> None:
        """Read the instance's folder again, and use its servers. Repeats until all sessions work."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if not self._by_folder or not self._lost:
            return
        self._look = self.loop.call_later(LOOK_AGAIN_S, self._look_again)
        try:
            address = self._address()
            if address != self._known:
                self._use_servers(address)
        except (MusterError, ValueError, OverflowError, OSError):
            return  # no instance yet, or an incompatible one

    def _on_sent(self, number: int, refused: str | None, outcomes: list[tuple[str | None, Any]]) -> None:
        done = self._sends.get(number)
        if done is None or done.done():
            return
        if refused is not None:
            done.set_exception(Refused("request to a user's devices", refused))
        else:
            done.set_result([DeviceResult(*each) for each in outcomes])

    def _on_received(self) -> None:
        self._received.set()

    def _fail(self, side: int, error: MusterError) -> None:
        self._refused[side] = error
        self._received.set()
        if not self._opened[side].done():
            fail(self._opened[side], error)
        if side == 0:
            for room in self._rooms.values():
                room.on_error(error)
        else:
            self._publishing.on_error(error)
            for waits in (self._commands, self._counts, self._sends):
                for waiting in waits.values():
                    if not waiting.done():
                        fail(waiting, error)

    def _revive(self, side: int, error: MusterError) -> None:
        """Undo the end after a refusal: its session is opened again."""
        if side == 0:
            for room in self._rooms.values():
                room.on_error_over(error)
        else:
            self._publishing.on_error_over(error)

    def _on_joined(self, number: int, _gaps: list[Any]) -> None:
        self._rooms[number].on_joined()

    def _on_refused(self, number: int, is_publication: bool, code: str) -> None:
        if is_publication:
            self._publishing.on_refused(number, code)
        else:
            room = self._rooms[number]
            room.on_error(Refused(f"join {room.name}", code))

    def _on_commanded(self, number: int, verdict: str, members: int, retry_ms: int, page: _Page | None) -> None:
        counted = self._counts.get(number)
        if counted is not None:
            self._on_counted(counted, verdict, members, retry_ms, page)
        done = self._commands.get(number)
        if done is None or done.done():
            return
        outcomes: dict[str, Outcome] = {
            "delivered": Delivered(members),
            "no_member": NoMember(),
            "expired": Expired(members),
        }
        if verdict in outcomes:
            done.set_result(outcomes[verdict])
        else:
            fail(done, Refused("command", verdict, retry_ms / 1_000))

    def _on_counted(
        self,
        counted: "asyncio.Future[Members]",
        verdict: str,
        members: int,
        retry_ms: int,
        page: _Page | None,
    ) -> None:
        if counted.done():
            return
        if page is not None:
            users, more, times = page
            hops = tuple(Hop(node, took / 1e6) for node, took in times)
            counted.set_result(Members(members, tuple(users), more, verdict == "expired", hops))
        elif verdict == "expired":
            fail(counted, TimedOut("members: no broker answered in time"))
        else:
            fail(counted, Refused("members", verdict, retry_ms / 1_000))

    # --- end --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._state == "open":
            self.check_here("this client")
            return
        if self._failed is not None:
            raise copy(self._failed)
        if self._state == "new":
            raise Invalid("the client is not open; use `async with muster.connect() as client`")
        raise Closed("the client is closed")

    def _on_panic(self, error: BaseException) -> None:
        self._failed = MusterError(f"internal error of the client's engine: {error!r}; please report it")
        self._close(self._failed)

    def abandon(self) -> None:
        """Called in a forked child, because the sessions belong to the parent. Every later call raises `Invalid`;
        shared resources are not touched."""
        self._state, self._failed = (
            "closed",
            Invalid("this client belongs to the process that opened it; connect again in this process"),
        )
        for room in self._rooms.values():
            room.end(broken=True)
            room.on_error(self._failed)
        self._rooms.clear()
        self.turns.abandon()
        del self.engine

    def _close(self, error: MusterError) -> None:
        if self.closed:
            return
        self._state = "closed"
        _OPEN.discard(self)
        if self._look is not None:
            self._look.cancel()
        self._tokens.close()
        self._publishing.close(error)
        self._received.set()
        for waits in (self._commands, self._counts, self._sends, self._opened):
            for waiting in waits.values():
                if not waiting.done():
                    fail(waiting, error)
        for room in self._rooms.values():
            room.end(broken=self._failed is not None)
            room.on_error(error)
        self._rooms.clear()
        self.turns.close()

    # --- start ------------------------------------------------------------------------------------------------

    def _address(self) -> Address:
        known = find(self._folder) if self._by_folder else self._instance
        gateways = known.gateways if self._gateways is None else tuple(self._gateways)
        proxies = known.proxies if self._proxies is None else tuple(self._proxies)
        if not gateways and not proxies:
            raise Invalid("no address: give at least one of gateways and proxies")
        token = known.token if self._tokens.current is None else self._tokens.current
        return Address(gateways, proxies, token_bytes(token))

    async def _look_up(self, address: Address) -> None:
        for host, port, _ in map(_whole, (*address.gateways, *address.proxies)):
            try:
                ip_address(host)
            except ValueError:  # a host name
                try:
                    found = await self.loop.getaddrinfo(host, port, type=SOCK_DGRAM)
                except (OSError, UnicodeError) as error:
                    raise Unavailable(f"{host}:{port}: {error}") from None
                self._hosts[host] = list(dict.fromkeys(str(each[4][0]) for each in found))[:ADDRESSES_MAX]

    def _servers(self, address: Address) -> _Servers:
        return {
            "gateways": [one for each in address.gateways for one in self._endpoints(each)],
            "proxies": [one for each in address.proxies for one in self._endpoints(each)],
            "credential": address.token,
        }

    def _endpoints(self, known: Endpoint) -> list[tuple[str, int, bytes]]:
        """The server at each address of its host: `localhost` is often `::1` first, where nothing listens."""
        host, port, key = _whole(known)
        try:
            return [(each, port, bytes.fromhex(key)) for each in self._hosts.get(host, [host])]
        except ValueError:
            raise Invalid(f"{host}:{port}: invalid public key (expected hex)") from None


def connect(
    instance: str | os.PathLike[str] | Address | None = None,
    *,
    gateways: Sequence[Endpoint] | None = None,
    proxies: Sequence[Endpoint] | None = None,
    token: Token | None = None,
    timeout: float = TIMEOUT_S,
    buffer_bytes: int = UNREAD_BYTES,
    receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES,
    ages: bool = False,
    confirms: bool = False,
    faults: Sequence[Fault] | None = None,
) -> Client:
    """Open a client: `async with muster.connect() as client`, or `client = await muster.connect()` and `client.close()`.

    `instance`: the folder of a running instance; without it `$MUSTER_INSTANCE__DIR`, else where `muster up` starts one.
    Or the URL of a gateway, `muster://HOST:PORT/KEY?token=…`, which `muster url` prints.
    `gateways` and `proxies`, each (host, port, public key in hex), replace those of the instance. An empty list opens no
    session of that kind: for a client that only publishes, or only reads. `token`: the credential, or an async function
    that returns one; it is called again when a server refuses its last token. `timeout`: seconds, for this call and for
    every call without its own. `buffer_bytes`: unread bytes per room; beyond that the room's policy decides. `ages`: ask the
    gateway how old messages are (`Message.age`). `confirms`: a message to the client's user counts as delivered once
    `client.confirm(message)` says so, for programs that hand it on.
    Lost sessions open again for ever, with jitter, and rooms are joined again where they stood. The folder is read again
    then, so the client finds a restarted instance.

    Raises `Unavailable` (no instance here), `Refused` (`bad_credential`), `TimedOut`, `Invalid`.
    """
    return Client(
        instance, gateways, proxies, token, timeout, buffer_bytes, receive_buffer_bytes, ages, confirms, faults
    )


_PACKAGE: Final = os.path.join(os.path.dirname(__file__), "")


def _place() -> str:
    """File and line of the program that called `connect`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _whole(known: Endpoint) -> Endpoint:
    try:
        host, port, key = known
        if not all(map(isinstance, known, (str, int, str))):
            raise TypeError
    except (ValueError, TypeError):
        raise Invalid(f"invalid server {known!r:.80} (expected host, port, public key in hex)") from None
    return host, port, key


def _forked() -> None:
    for client in list(_OPEN):
        client.abandon()
    _OPEN.clear()


os.register_at_fork(after_in_child=_forked)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
