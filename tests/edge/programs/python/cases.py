"""Cases of an unchanged `centrifuge-python` against one server: `cases.py URL json|protobuf GIVEN CASE...`, or `names`.

Prints one line of JSON for each case: its name, and the error if it failed. GIVEN: `Given` of `sdks.py`, as JSON.
"""

import asyncio
import json
import sys
import traceback
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from centrifuge import (
    Client,
    Filter,
    ReplyError,
    StreamPosition,
    Subscription,
)

URL, ENCODING, GIVEN, *WANTED = sys.argv[1:]
TOKEN, OTHER, WRONG, EXPIRED, SMALL, ENTERS, HALL = (
    json.loads(GIVEN)[name] for name in ("token", "other", "wrong", "expired", "small", "enters", "hall")
)
PATIENT_S = 60.0
BINARY = ENCODING == "protobuf"
OPEN: list[Client] = []


def pack(value: Any) -> Any:
    """Data as the SDK takes it in this encoding."""
    return json.dumps(value).encode() if BINARY else value


def unpack(data: Any) -> Any:
    """Data as the SDK hands it out in this encoding."""
    return json.loads(data) if BINARY else data


class Seen:
    """Events of a client or a subscription, in the order in which the SDK told them."""

    def __init__(self, handlers: Any) -> None:
        self.events: list[tuple[str, Any]] = []
        self._changed = asyncio.Event()
        for name in dir(handlers):
            if name.startswith("on_"):
                setattr(handlers, name, self._handler(name.removeprefix("on_")))

    def _handler(self, name: str) -> Callable[[Any], Awaitable[None]]:
        async def handle(context: Any) -> None:
            self.events.append((name, context))
            self._changed.set()

        return handle

    def all(self, name: str) -> list[Any]:
        """The contexts of all events of a name."""
        return [context for each, context in self.events if each == name]

    def data(self) -> list[Any]:
        """The data of all publications."""
        return [unpack(context.pub.data) for context in self.all("publication")]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for events until this holds."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()


async def connected(token: str = TOKEN, **more: Any) -> tuple[Client, Seen]:
    """A client that connects."""
    client = Client(URL, token=token, use_protobuf=BINARY, min_reconnect_delay=0.02, timeout=PATIENT_S, **more)
    OPEN.append(client)
    seen = Seen(client.events)
    await client.connect()
    return client, seen


async def joined(client: Client, room: str, **more: Any) -> tuple[Subscription, Seen]:
    """A subscription that is there."""
    subscription = client.new_subscription(room, **more)
    seen = Seen(subscription.events)
    await subscription.subscribe()
    await subscription.ready(timeout=PATIENT_S)
    return subscription, seen


async def connects(room: str) -> None:
    """A client comes and goes."""
    client, seen = await connected()
    await seen.until(lambda: seen.all("connected"))
    assert seen.all("connected")[0].client
    await client.disconnect()
    assert client.state.value == "disconnected"


async def publishes_and_receives_in_order(room: str) -> None:
    """All messages come, each once."""
    client, _ = await connected()
    _, seen = await joined(client, room)
    for n in range(20):
        await client.publish(room, pack(n))
    await seen.until(lambda: len(seen.data()) == 20)
    assert seen.data() == list(range(20))


async def tells_history(room: str) -> None:
    """Limits, positions and the reverse order."""
    client, _ = await connected()
    await joined(client, room)
    for n in range(1, 6):
        await client.publish(room, pack(n))
    every = await client.history(room, limit=100)
    assert [unpack(one.data) for one in every.publications] == [1, 2, 3, 4, 5]
    top = await client.history(room, limit=0)
    assert (top.publications, top.offset, top.epoch) == ([], every.offset, every.epoch)
    since = StreamPosition(offset=every.publications[2].offset, epoch=every.epoch)
    after = await client.history(room, limit=9, since=since)
    assert [unpack(one.data) for one in after.publications] == [4, 5]
    before = await client.history(room, limit=9, since=since, reverse=True)
    assert [unpack(one.data) for one in before.publications] == [2, 1]


async def counts_who_is_present(room: str) -> None:
    """Two clients in a room."""
    (one, _), (two, _) = await connected(), await connected(OTHER)
    await joined(one, room)
    await joined(two, room)
    while len((await one.presence(room)).clients) != 2:  # noqa: ASYNC110 - the server counts by and by
        await asyncio.sleep(0.1)
    while (await one.presence_stats(room)).num_clients != 2:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.1)


async def recovers_what_it_missed(room: str) -> None:
    """A client comes back to all messages."""
    (client, _), (other, _) = await connected(), await connected()
    _, seen = await joined(client, room, recoverable=True, positioned=True)
    await other.publish(room, pack(1))
    await seen.until(lambda: len(seen.data()) == 1)
    await client.disconnect()
    for n in (2, 3, 4):
        await other.publish(room, pack(n))
    await client.connect()
    await seen.until(lambda: len(seen.data()) == 4)
    assert seen.data() == [1, 2, 3, 4]
    back = seen.all("subscribed")[-1]
    assert (back.was_recovering, back.recovered) == (True, True)


async def says_when_it_cannot_recover(room: str) -> None:
    """More messages were missed than are kept."""
    room = f"{SMALL}:{room.partition(':')[2]}"
    (client, _), (other, _) = await connected(), await connected()
    _, seen = await joined(client, room, recoverable=True, positioned=True)
    await other.publish(room, pack(0))
    await seen.until(lambda: len(seen.data()) == 1)
    await client.disconnect()
    for n in range(1, 301):
        await other.publish(room, pack(n))
    await client.connect()
    await seen.until(lambda: len(seen.all("subscribed")) == 2)
    back = seen.all("subscribed")[-1]
    assert (back.was_recovering, back.recovered) == (True, False)
    await other.publish(room, pack("live"))
    await seen.until(lambda: "live" in seen.data())


async def unsubscribes_and_hears_no_more(room: str) -> None:
    """Nothing comes after the end."""
    client, _ = await connected()
    subscription, seen = await joined(client, room)
    await subscription.unsubscribe()
    await client.publish(room, pack(1))
    assert seen.data() == []
    assert seen.events[-1][0] == "unsubscribed"


async def gets_an_error_for_an_unknown_method(room: str) -> None:
    """Methods are the server's."""
    client, _ = await connected()
    code = 0
    try:
        await client.rpc("no.such.method", pack({}))
    except ReplyError as error:
        code = error.code
    assert code in {104, 108}


async def gets_what_a_filter_lets_through(room: str) -> None:
    """Messages that match, live and after a while away; and the error of a filter that Muster has not."""
    (client, _), (other, _) = await connected(), await connected(OTHER)
    wanted = Filter.all(Filter.is_in("pair", ["EUR", "USD"]), Filter.eq("kind", "trade"))
    _, seen = await joined(client, room, recoverable=True, positioned=True, tags_filter=wanted)

    async def publish(numbers: Iterable[int]) -> None:
        for n in numbers:
            headers = {"pair": ("EUR", "JPY", "USD", "EUR")[n % 4], "kind": "offer" if n % 4 == 3 else "trade"}
            await other.rpc("muster.publish", pack({"room": room, "data": {"n": n}, "headers": headers}))

    await publish(range(20))
    await seen.until(lambda: len(seen.data()) >= 10)
    await client.disconnect()
    await publish(range(20, 40))
    await client.connect()
    await seen.until(lambda: len(seen.data()) >= 20)
    assert [data["n"] for data in seen.data()] == list(range(0, 40, 2))
    assert seen.all("subscribed")[1].recovered
    refused = other.new_subscription(f"{room}-2", tags_filter=Filter.gt("price", "100"))
    ended = Seen(refused.events)
    await refused.subscribe()
    await ended.until(lambda: ended.all("unsubscribed"))
    assert (ended.all("unsubscribed")[0].code, ended.all("unsubscribed")[0].reason) == (
        401,
        "a tags filter has eq, in and and alone",
    )


async def sends_to_a_user_that_is_not_there(room: str) -> None:
    """This SDK hands out no messages outside of rooms, so the case has no receiver."""
    client, _ = await connected()
    said = await client.rpc("muster.send", pack({"user": "4711", "data": 1, "expires": 0.5}))
    outcomes = [device["outcome"] for device in unpack(said.data)["devices"]]
    assert outcomes
    assert "delivered" not in outcomes


async def hears_who_comes_and_who_leaves(room: str) -> None:
    """The user itself, and another one."""
    (one, _), (two, _) = await connected(), await connected(OTHER)
    _, seen = await joined(one, room, join_leave=True)
    await seen.until(lambda: seen.all("join"))
    other, _ = await joined(two, room)
    await seen.until(lambda: len(seen.all("join")) == 2)
    await other.unsubscribe()
    await seen.until(lambda: seen.all("leave"))
    assert [context.info.user for context in seen.all("join")] == ["7", "8"]
    assert [context.info.user for context in seen.all("leave")] == ["8"]


async def is_subscribed_to_the_rooms_of_its_token(room: str) -> None:
    """Messages before and after a connection, and a loss that is told."""
    (client, seen), (other, _) = await connected(ENTERS), await connected(OTHER)

    def told() -> list[int]:
        return [data["n"] for data in seen.data() if data["room"] == room]

    async def publish(n: int) -> None:
        await other.publish(HALL, pack({"room": room, "n": n}))

    await seen.until(lambda: seen.all("subscribed"))
    assert seen.all("subscribed")[0].channel == HALL
    await publish(0)
    await seen.until(lambda: told() == [0])
    await client.disconnect()
    await publish(1)
    await client.connect()
    await seen.until(lambda: told() == [0, 1])
    assert seen.all("subscribed")[1].recovered
    await client.disconnect()
    for n in range(2, 305):
        await publish(n)
    await client.connect()
    await seen.until(lambda: len(seen.all("subscribed")) == 3)
    back = seen.all("subscribed")[2]
    assert (back.was_recovering, back.recovered) == (True, False)


async def is_refused_with_a_wrong_token(room: str) -> None:
    """For good."""
    _, seen = await connected(token=WRONG)
    await seen.until(lambda: seen.all("disconnected"))
    assert seen.all("disconnected")[0].code == 3500


async def brings_another_token_for_one_that_has_expired(room: str) -> None:
    """By its own function."""
    tokens: list[str] = [EXPIRED, TOKEN]

    async def bring() -> str:
        return tokens.pop(0)

    _, seen = await connected(token="", get_token=bring)
    await seen.until(lambda: seen.all("connected"))


async def main() -> None:
    """The wanted cases, one after the other."""
    cases = [
        connects,
        publishes_and_receives_in_order,
        tells_history,
        counts_who_is_present,
        recovers_what_it_missed,
        says_when_it_cannot_recover,
        unsubscribes_and_hears_no_more,
        gets_an_error_for_an_unknown_method,
        gets_what_a_filter_lets_through,
        sends_to_a_user_that_is_not_there,
        hears_who_comes_and_who_leaves,
        is_subscribed_to_the_rooms_of_its_token,
        is_refused_with_a_wrong_token,
        brings_another_token_for_one_that_has_expired,
    ]
    known = {case.__name__: case for case in cases}
    if URL == "names":
        print(json.dumps(list(known)))
    for name in WANTED:
        said, case = {"case": name}, known[name]
        try:
            async with asyncio.timeout(PATIENT_S):
                await case(f"edge:{name[:40]}-{uuid.uuid4().hex}")
        except Exception:
            said["error"] = traceback.format_exc()
        print(json.dumps(said), flush=True)
        if "TimeoutError" in said.get("error", ""):
            return  # the others may hang as well
        while OPEN:
            await OPEN.pop().disconnect()


if __name__ == "__main__":
    asyncio.run(main())
