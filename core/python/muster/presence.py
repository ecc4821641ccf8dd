"""Presence over HTTP, for any program: devices that are online, statuses, changes of both, and messages to users. Needs
nothing besides Python.

Owns connections to a Muster HTTP face, and the shapes of its answers (`docs/presence.md`). It must not know rooms.
"""

import base64
import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

from .errors import Invalid, TimedOut, Unavailable
from .face import problem
from .items import DeviceResult

TIMEOUT_S: Final = 30.0
BATCH_MAX: Final = 1_000
IDLE_S: Final = 5.0
"""A connection that was idle for longer, in seconds, is replaced: a face closes idle ones."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that is online. `since`: seconds since 1970, by its gateway's clock."""

    device: str
    gateway: int
    since: float


Mode = Literal["available", "away", "dnd", "invisible"]


@dataclass(frozen=True, slots=True)
class Status:
    """A user's status. `at`: since when it has this mode; `until`: the end, if it named one; both in seconds
    since 1970."""

    mode: Mode
    text: str
    at: float
    until: float | None


@dataclass(frozen=True, slots=True)
class User:
    """The state of one user; without devices it is offline. `last_seen`: seconds since 1970, None if not known."""

    user: int
    devices: tuple[Device, ...]
    last_seen: float | None
    text: str | None = None
    """The text by which the call named the user."""
    status: Status | None = None

    @property
    def online(self) -> bool:
        """Whether a device is online."""
        return bool(self.devices)


@dataclass(frozen=True, slots=True)
class Change:
    """A device came online or went offline, or the user has another status.

    Each report of one change has the same `id`. A change without an id is a present state: when the watch began, or of a
    user that others see again, or no more."""

    user: int
    device: str | None
    """None: no device of the user is online, or it is a change of its status."""
    state: Literal["online", "offline", "status"]
    reason: str | None
    """Reason of being offline: `closed`, `lost`, `drained`, `replaced` or `kicked`."""
    gateway: int
    at: float
    id: str | None
    status: Status | None = None
    """The status, if `state` is `status`; None: the user has taken it back, or it has ended."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The outcome of a message for one user."""

    user: int
    devices: tuple[DeviceResult, ...]
    error: str | None
    """The code of a refusal: no device was tried, or the message was not handed on."""
    text: str | None = None
    """The text by which the call named the user."""
    kept: str | None = None
    """The topic or the kind of entries that has the message, because no device has it."""


class Presence:
    """Asks an HTTP face. Calls of several threads run one after another; each watch has a connection of its own."""

    def __init__(self, url: str, *, key: str = "", token: str = "", timeout: float = TIMEOUT_S) -> None:
        """`url`: `http://host:port` or `https://…` of the face, or of the proxy in front of it. `key`: an API key; or
        `token`: that of a user, which sees itself and the users at which its `cap` has `watch`. Raises `Invalid`."""
        if bool(key) == bool(token):
            raise Invalid("missing or invalid credential: give an API key (muster key create), or a user's token")
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
            raise Invalid(f"invalid URL {url!r:.80} of an HTTP face (expected for example http://127.0.0.1:8080)")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._host, self._port, self._timeout = parts.hostname, parts.port, timeout
        credential = {"x-api-key": key} if key else {"authorization": f"Bearer {token}"}
        self._headers = credential | {"content-type": "application/json"}
        self._connection = self._opened()
        self._lock = threading.Lock()
        self._used = 0.0

    def __enter__(self) -> "Presence":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Another call opens it again."""
        with self._lock:
            self._connection.close()

    def who(self, users: Sequence[int | str], *, site: int | None = None) -> list[User]:
        """Look up to 1,000 users up, by number or text, at one site or at any; the results are in the same order.

        Raises `Refused`, `Unavailable` (no site can answer now: try again), `TimedOut`.
        """
        if len(users) > BATCH_MAX:
            raise Invalid(f"too many users: {len(users)} (limit {BATCH_MAX} per request)")
        if not users:
            return []
        asked: dict[str, Any] = {"users": [str(user) for user in users]}
        if site is not None:
            asked["site"] = site
        return [_user(each) for each in self._ask("/api/v1/presence", asked)["users"]]

    def watch(self, users: Sequence[int | str], *, after: str | None = None) -> Iterator[Change]:
        """Iterate over the states of up to 1,000 users' devices, then over their changes, without end.

        `after`: the id of the last change that was read. The changes since then come first, or the states again if they
        are no longer stored (after about a minute). Raises as `who`, also later: then watch again after the last id.
        """
        if not 1 <= len(users) <= BATCH_MAX:
            raise Invalid(f"invalid number of users in a watch: {len(users)} (expected 1 to {BATCH_MAX})")
        connection = self._opened()
        try:
            path = "/api/v1/presence/changes?users=" + ",".join(quote(str(user), safe="") for user in users)
            headers = self._headers | ({} if after is None else {"last-event-id": after})
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise problem(_read(answer))
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield _change(json.loads(line.removeprefix(b"data: ")))
            raise Unavailable("the HTTP face ended the watch")
        except TimeoutError:
            raise Unavailable("the HTTP face stopped answering") from None
        except (http.client.HTTPException, OSError) as error:
            raise Unavailable(f"the HTTP face does not answer: {error or type(error).__name__}") from None
        finally:
            connection.close()

    def set_status(
        self,
        mode: Mode = "available",
        text: str = "",
        *,
        away_after: float = 0.0,
        expires: float = 0.0,
        user: int | str | None = None,
    ) -> Status | None:
        """Set the status of the token's user, or of `user` with an API key; returns it as it stands now.

        `text`: at most 256 bytes. `away_after`: an available user is away if nothing sets its status for that many seconds,
        at most a day; 0: never. `expires`: seconds until it ends; 0: it stays, at most 366 days. Without arguments the
        status is taken back. `invisible`: others see the user as offline. Raises as `who`.
        """
        wanted = {"mode": mode, "text": text, "away_after": away_after, "expires": expires}
        path = "/api/v1/presence/status" + ("" if user is None else f"?user={quote(str(user), safe='')}")
        return _status(self._ask(path, wanted, method="PUT")["status"])

    def send(
        self,
        users: Sequence[int | str],
        data: str | bytes,
        *,
        device: str | None = None,
        expires: float = 5.0,
        not_online: str | None = None,
    ) -> list[Sent]:
        """Send one message, at most 960 bytes, to all devices of up to 1,000 users, or to their devices with the name
        `device`.

        `not_online`: where it goes for users of whom no device has it: `topic:NAME`, or `inbox:KIND`; empty: nowhere;
        None: as `presence.not_online` says.

        The outcomes are in the same order. `expired`: a device did not confirm the message within `expires` seconds, at
        most 60. `unknown`: its gateway was lost before it answered. Raises as `who`; after `TimedOut` and `Unavailable`
        the message may have been delivered.
        """
        said = (
            {"data": base64.b64encode(data).decode(), "encoding": "base64"}
            if isinstance(data, bytes)
            else {"data": data}
        )
        if not_online is not None:
            said["not_online"] = not_online
        return self._each("/api/v1/send", users, device, expires, said)

    def end(self, users: Sequence[int | str], *, device: str | None = None, expires: float = 5.0) -> list[Sent]:
        """End the sessions of up to 1,000 users, or of their devices with the name `device`.

        The outcomes are in the same order: `ended`, `not_online`, `expired` (a gateway did not answer within `expires`
        seconds, at most 60), or `unknown` (the gateway was lost before it answered). Needs a key with the scope `end`.
        Raises as `who`; after `TimedOut` and `Unavailable` sessions may have ended.
        """
        return self._each("/api/v1/presence/end", users, device, expires, {})

    def _each(
        self, path: str, users: Sequence[int | str], device: str | None, expires: float, said: Mapping[str, Any]
    ) -> list[Sent]:
        """Ask for something at the devices of users."""
        if len(users) > BATCH_MAX:
            raise Invalid(f"too many users: {len(users)} (limit {BATCH_MAX} per request)")
        if not users:
            return []
        asked = {"users": [str(user) for user in users], "expires": expires, **said}
        if device is not None:
            asked["device"] = device
        return [_sent(each) for each in self._ask(path, asked, expires)["users"]]

    def _opened(self) -> http.client.HTTPConnection:
        return self._kind(self._host, self._port, timeout=self._timeout)

    def _ask(self, path: str, document: Any, more_s: float = 0.0, method: str = "POST") -> Any:
        """Send a request and return its answer, which may take `more_s` seconds longer than others."""
        body = json.dumps(document, separators=(",", ":")).encode()
        with self._lock:
            if time.monotonic() - self._used > IDLE_S:
                self._connection.close()
            try:
                self._connection.request(method, path, body, self._headers)
                self._connection.sock.settimeout(self._timeout + more_s)
                answer = self._connection.getresponse()
                said = _read(answer)
            except TimeoutError:
                self._connection.close()
                raise TimedOut("no answer in time") from None
            except (http.client.HTTPException, OSError) as error:
                self._connection.close()
                raise Unavailable(f"the HTTP face does not answer: {error or type(error).__name__}") from None
            self._used = time.monotonic()
        if answer.status >= 400:
            raise problem(said)
        return said


def _read(answer: http.client.HTTPResponse) -> Any:
    try:
        return json.loads(answer.read())
    except ValueError:
        raise Unavailable(f"unexpected answer {answer.status}: the server is not a Muster HTTP face") from None


def _user(said: Any) -> User:
    devices = (Device(each["device"], each["gateway"], each["since"] / 1_000) for each in said["devices"])
    return User(
        int(said["user"]), tuple(devices), _seconds(said["last_seen"]), said.get("text"), _status(said.get("status"))
    )


def _status(said: Any) -> Status | None:
    if said is None:
        return None
    return Status(said["mode"], said["text"], said["at"] / 1_000, _seconds(said["until"]))


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1_000


def _sent(said: Any) -> Sent:
    devices = (DeviceResult(each["device"], each["outcome"]) for each in said.get("devices", ()))
    return Sent(int(said["user"]), tuple(devices), said.get("error"), said.get("text"), said.get("kept"))


def _change(said: Any) -> Change:
    return Change(
        user=int(said["user"]),
        device=said["device"],
        state=said["state"],
        reason=said["reason"],
        gateway=said["gateway"],
        at=said["at_ms"] / 1_000,
        id=said["id"],
        status=_status(said.get("status")),
    )
