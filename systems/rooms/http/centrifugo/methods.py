"""The methods of Centrifugo's server API, done with rooms.

Owns the meaning of methods and the codes of their errors. Each method needs the scope that the same action over Muster's own
routes needs. Knows no path.
"""

import asyncio
import base64
import fnmatch
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec

import muster
from muster_server.control.cluster.instance import Process
from muster_server.control.errors import UserError
from muster_server.control.terminal import common
from muster_server.plane.users import EMBEDDED_USER
from muster_server.systems.http.access import Caller
from muster_server.systems.http.bodies import decoded
from muster_server.systems.http.idempotency import Answer, Nothing
from muster_server.systems.http.keys import full_name
from muster_server.systems.http.problems import Problem
from muster_server.systems.rooms.cli.listing import ASK_S
from muster_server.systems.rooms.cli.ls import DOORS
from muster_server.systems.rooms.http.bodies import Content, room_name
from muster_server.systems.rooms.http.centrifugo import positions, shapes
from muster_server.systems.rooms.http.feeds import Feed
from muster_server.systems.rooms.http.service import Service

INTERNAL, NOT_FOUND, DENIED, BAD_REQUEST, NOT_AVAILABLE, TOO_MANY, UNRECOVERABLE = 100, 104, 103, 107, 108, 111, 112
CODES: Final[Mapping[str, int]] = {
    "not_allowed": DENIED,
    "bad_request": BAD_REQUEST,
    "bad_body": BAD_REQUEST,
    "bad_room_name": BAD_REQUEST,
    "too_much_history": BAD_REQUEST,
    "name_collision": BAD_REQUEST,
    "too_long": BAD_REQUEST,
    "idempotency_mismatch": BAD_REQUEST,
    "in_progress": TOO_MANY,
    "rate_limited": TOO_MANY,
}
"""Codes of errors by the code of a problem; all others are `INTERNAL`, which clients may try again."""
DEFAULT: Final = "default:"

MISSING: Final[Mapping[str, str]] = {
    "history_remove": "messages of a room cannot be removed; [namespaces.NAME] bounds how many are kept",
    "disconnect": "POST /api/v1/presence/end ends a user's sessions; revoke the user to keep it out (docs/secure.md)",
    "subscribe": "clients subscribe themselves; a token's `cap` says to which rooms they may",
    "unsubscribe": "clients unsubscribe themselves; revoke the user or the token (docs/secure.md)",
    "refresh": "clients bring another token themselves",
    "connections": "POST /api/v1/presence tells where users are online",
}
"""Methods that Muster refuses, each with what to do instead."""


class Failed(Exception):
    """A method failed with this error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = shapes.Error(code, message)


class Methods:
    """The methods, done by the rooms of one process."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def reply(self, caller: Caller, method: str, body: bytes | msgspec.Raw) -> shapes.Reply:
        """The answer to a method with this body."""
        try:
            if method in MISSING:
                raise Failed(NOT_AVAILABLE, f"not available: {MISSING[method]}")
            if method not in METHODS:
                raise Failed(NOT_FOUND, f"method not found: {method!r:.40}")
            shape, do = METHODS[method]
            return shapes.Reply(result=await do(self, caller, decoded(body, shape)))
        except Failed as failed:
            return shapes.Reply(error=failed.error)
        except Nothing as nothing:
            return shapes.Reply(error=_error(nothing.problem))
        except Problem as problem:
            return shapes.Reply(error=_error(problem))

    async def publish(self, caller: Caller, asked: shapes.Publish) -> shapes.Position:
        """Publish one message. Its position is that of SDKs."""
        return await self._publish(caller, asked.channel, asked)

    async def broadcast(self, caller: Caller, asked: shapes.Broadcast) -> shapes.Broadcasted:
        """Publish one message to several channels; each has an answer of its own."""
        self._bounded(len(asked.channels))

        async def one(channel: str) -> shapes.Reply:
            try:
                return shapes.Reply(result=await self._publish(caller, channel, asked))
            except Failed as failed:
                return shapes.Reply(error=failed.error)
            except Problem as problem:
                return shapes.Reply(error=_error(problem))

        return shapes.Broadcasted(list(await asyncio.gather(*map(one, asked.channels))))

    async def history(self, caller: Caller, asked: shapes.History) -> shapes.Publications:
        """The messages that are kept, and the newest position."""
        name = room_name(asked.channel)
        caller.need("history", name)
        feed = await self._service.feed(caller, name)
        if not feed.history:
            raise Failed(DENIED, f"{caller.name} may not read the history of {name}"[:400])
        top, since = positions.told(feed.positions), asked.since
        if since is not None and since.epoch and positions.stream_of(since.epoch) != positions.stream_of(top.epoch):
            raise Failed(UNRECOVERABLE, "unrecoverable position: the offset is one of another stream")
        found = [] if asked.limit == 0 else _publications(feed, top)
        if since is not None:
            behind = [each for each in found if each.offset > since.offset]
            found = [each for each in found if each.offset < since.offset] if asked.reverse else behind
        if asked.reverse:
            found.reverse()
        return shapes.Publications(found if asked.limit < 0 else found[: asked.limit], top.offset, top.epoch)

    async def presence(self, caller: Caller, asked: shapes.Channel) -> shapes.Presence:
        """The users in a channel. One with two clients is there once."""
        said = await self._members(caller, asked.channel)
        return shapes.Presence({f"u{user}": shapes.Client(f"u{user}", str(user)) for user in said.ids}, said.truncated)

    async def presence_stats(self, caller: Caller, asked: shapes.Channel) -> shapes.PresenceStats:
        """How many are in a channel."""
        said = await self._members(caller, asked.channel)
        return shapes.PresenceStats(said.count, said.count if said.truncated else len(said.ids))

    async def channels(self, caller: Caller, asked: shapes.Channels) -> shapes.ChannelCounts:
        """The channels with subscribers."""
        _need_rooms(caller)
        if "{" in asked.pattern:
            raise Failed(NOT_AVAILABLE, "not available: a pattern has *, ? and [...], no {...}")
        rooms, truncated, partial = await self._service.listing.rooms()
        counts = {
            room["name"].removeprefix(DEFAULT): shapes.Count(room["members"])
            for room in rooms
            if room["members"] and caller.may("rooms", room["name"])
        }
        found = {
            name: count
            for name, count in counts.items()
            if not asked.pattern or fnmatch.fnmatchcase(name, asked.pattern)
        }
        return shapes.ChannelCounts(found, truncated, partial)

    async def info(self, caller: Caller, asked: shapes.Nothing) -> shapes.Info:
        """The nodes with clients."""
        _need_rooms(caller)
        try:
            nodes = await self._service.base.nodes()
        except UserError as error:
            raise Problem("unavailable", str(error)) from None
        told = await asyncio.gather(*(asyncio.to_thread(_node, node) for node in nodes if node.role in DOORS))
        return shapes.Info([node for node in told if node is not None])

    async def batch(self, caller: Caller, asked: shapes.Batch) -> shapes.Replies:
        """Several methods, one after another or at once."""
        self._bounded(len(asked.commands))

        async def one(command: dict[str, msgspec.Raw]) -> dict[str, Any]:
            if len(command) != 1 or "batch" in command:
                return {"error": shapes.Error(BAD_REQUEST, "bad request: a command has one method, which is no batch")}
            [(method, body)] = command.items()
            said = await self.reply(caller, method, body)
            return {method: said.result} if said.error is None else {"error": said.error}

        if asked.parallel:
            return shapes.Replies(list(await asyncio.gather(*map(one, asked.commands))))
        return shapes.Replies([await one(command) for command in asked.commands])

    async def _publish(self, caller: Caller, channel: str, asked: shapes.Data) -> shapes.Position:
        name = room_name(channel)
        caller.need("publish", name)
        if asked.impossible:
            raise Failed(NOT_AVAILABLE, f"not available: rooms have no {asked.impossible}")
        try:
            message = asked.message
        except ValueError as error:
            raise Failed(BAD_REQUEST, f"bad request: `b64data` or `data`: {error}") from None

        async def do() -> Answer:
            try:
                caller.spend(1)
            except Problem as problem:
                raise Nothing(problem) from None
            said = (await self._service.publish(caller, name, [message]))[0]
            if isinstance(said, Problem):
                raise said if said.code == "timeout" else Nothing(said)
            return Answer(HTTPStatus.OK, msgspec.json.encode(positions.of(said)))

        try:
            if not asked.idempotency_key:
                answer = await do()
            else:
                scope = (caller.name, "publish", full_name(name))
                answer = await self._service.base.idempotency.once(
                    scope, asked.idempotency_key, _fingerprint(message), do
                )
        except Nothing as nothing:
            raise nothing.problem from None
        return msgspec.json.decode(answer.body, type=shapes.Position)

    async def _members(self, caller: Caller, channel: str) -> muster.Members:
        name = room_name(channel)
        caller.need("members", name)
        said: muster.Members = await self._service.ask(caller, lambda client: client.members(name, ids=True))
        if said.partial:
            raise Problem("unavailable", "a gateway or an edge did not answer")
        return said

    def _bounded(self, count: int) -> None:
        if count > self._service.options.batch_max:
            raise Problem("too_long", f"too many in one request (limit {self._service.options.batch_max})")


class Method(NamedTuple):
    """A method: its body's shape, and what it does."""

    shape: type[Any]
    do: Callable[[Methods, Caller, Any], Awaitable[Any]]


METHODS: Final[Mapping[str, Method]] = {
    "publish": Method(shapes.Publish, Methods.publish),
    "broadcast": Method(shapes.Broadcast, Methods.broadcast),
    "history": Method(shapes.History, Methods.history),
    "presence": Method(shapes.Channel, Methods.presence),
    "presence_stats": Method(shapes.Channel, Methods.presence_stats),
    "channels": Method(shapes.Channels, Methods.channels),
    "info": Method(shapes.Nothing, Methods.info),
    "batch": Method(shapes.Batch, Methods.batch),
}


def _error(problem: Problem) -> shapes.Error:
    return shapes.Error(CODES.get(problem.code, INTERNAL), problem.detail or problem.kind.title)


def _need_rooms(caller: Caller) -> None:
    if caller.key is None or not any(scope.startswith("rooms:") for scope in caller.key.scopes):
        raise Failed(DENIED, f"{caller.name} may not list rooms")


def _publications(feed: Feed, top: shapes.Position) -> list[shapes.Publication]:
    """The messages of the newest stream that the feed keeps: offsets of another one cannot be compared."""
    stream = str(positions.stream_of(top.epoch))
    return [
        _publication(each.offset, msgspec.json.decode(each.value))
        for each in feed.ring.messages(feed.ring.begin)
        if each.stream == stream
    ]


def _fingerprint(message: Content) -> bytes:
    """The bytes that two requests with one key must share."""
    return message.data + (msgspec.json.encode(dict(message.headers), order="sorted") if message.headers else b"")


def _publication(offset: int, said: Mapping[str, Any]) -> shapes.Publication:
    sender = said["sender"]
    info = None if sender == str(EMBEDDED_USER) else shapes.Client("", sender)
    tags: dict[str, str] = said.get("headers", {})
    if "encoding" not in said:
        data = said["data"].encode()
        try:
            msgspec.json.decode(data)
            return shapes.Publication(offset, msgspec.Raw(data), info, tags or None)
        except (msgspec.DecodeError, RecursionError):
            text = base64.b64encode(data).decode()
    else:
        text = said["data"]
    return shapes.Publication(offset, msgspec.Raw(msgspec.json.encode(text)), info, {**tags, "encoding": "base64"})


def _node(process: Process) -> shapes.Node | None:
    """A node's report about itself; None: it does not answer."""
    try:
        status, said = common.get(process, "/api/v1/status", ASK_S)
    except UserError:
        return None
    if status != HTTPStatus.OK:
        return None
    gauges = said["gauges"]
    clients = int(gauges.get("sessions", gauges.get("connections", 0)))
    uptime = max(0, int(time.time()) - process.epoch)
    members, rooms = int(gauges["members"]), int(gauges["rooms"])
    return shapes.Node(str(process.node), process.name, said["version"], clients, clients, members, rooms, uptime)
