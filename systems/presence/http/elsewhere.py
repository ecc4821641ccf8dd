"""Messages of which no device took one: handed on to a topic of delayed messages, whose callback is a push gateway, or
into the inbox of the user.

Must not know how a topic calls, nor what an inbox is.
"""

import asyncio
import secrets
from typing import Any, Final

import msgspec

from muster_server.plane.spec import SpecError
from muster_server.plane.ways import NotTaken, Way
from muster_server.systems.http.access import Caller
from muster_server.systems.http.counts import Counts
from muster_server.systems.http.face import Base
from muster_server.systems.http.named import needs_whole
from muster_server.systems.presence import forms
from muster_server.systems.presence.http.sent import NewMessage, Sent, User

KINDS: Final = ("topic", "inbox")
AT_ONCE: Final = 64
JSON: Final = "application/json"


def need_elsewhere(caller: Caller, asked: NewMessage) -> None:
    """Raise `Problem` unless the caller may hand messages on to where it names. `presence.not_online` is the operator's."""
    kind, _, name = (asked.not_online or "").partition(":")
    if kind == "topic":
        caller.need("send", name)
    elif kind == "inbox":
        for user in asked.users:
            caller.need("notify", user, whole=needs_whole(user))


def count(counts: Counts, kind: str, messages: int = 1) -> None:
    """Count messages that were handed on to this kind of place."""
    text = "Messages of users who were not online that were handed on, by the kind of place"
    counts.add("http_handed_on", text, messages, to=kind)


class Elsewhere:
    """The ways into topics and inboxes, opened when they are first needed."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._ways: dict[str, Way] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    @property
    def default(self) -> str:
        """Where messages go that name nothing; empty: nowhere."""
        return str(self._base.told.get("presence", {}).get("not_online", ""))

    async def close(self) -> None:
        """Close the ways."""
        await asyncio.gather(*(way.close() for way in self._ways.values()))

    async def kept(self, sent: Sent, where: str, asked: NewMessage) -> Sent:
        """Hand on the message of each user of whom no device has it."""
        number = secrets.token_hex(8)
        return Sent(list(await asyncio.gather(*(self._kept(user, where, asked, number) for user in sent.users))))

    async def _kept(self, user: User, where: str, asked: NewMessage, number: str) -> User:
        if user.error is not None or any(each.outcome == "delivered" for each in user.devices):
            return user
        kind, _, name = where.partition(":")
        id, body = f"{number}-{user.user}", self._body(kind, name, user, asked)
        try:
            async with self._places:
                place = user.user if kind == "inbox" else name
                await self._way(kind).put(place, id, msgspec.json.encode(body), JSON)
        except NotTaken as error:
            self._base.log.warning("a message to a user who is not online was not taken", to=where, cause=str(error))
            return msgspec.structs.replace(user, error="not_allowed" if error.lasting else "unavailable")
        count(self._base.counts, kind)
        return msgspec.structs.replace(user, kept=where)

    @staticmethod
    def _body(kind: str, name: str, user: User, asked: NewMessage) -> dict[str, Any]:
        if kind == "inbox":
            return forms.entry(name, asked.data, asked.encoding)
        outcome = forms.worst(each.outcome for each in user.devices)
        return forms.hook(user.user, user.text, asked.data, asked.encoding, outcome)

    def _way(self, kind: str) -> Way:
        """Raises `NotTaken`."""
        if kind not in self._ways:
            if self._base.way is None:
                raise NotTaken(f"{kind} does not run here", lasting=True)
            try:
                self._ways[kind] = self._base.way(kind)
            except SpecError as error:
                raise NotTaken(str(error)) from None
        return self._ways[kind]
