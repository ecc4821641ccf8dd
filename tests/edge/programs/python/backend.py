"""Cases of an unchanged `cent`, a backend's library, beside a client of an edge: `backend.py API KEY WEBSOCKET TOKEN`.

Prints one line of JSON for each case: its name, and the error if it failed. TOKEN is one of user 7.
"""

import asyncio
import base64
import json
import sys
import traceback
import uuid
from typing import Any

import cent
from centrifuge import CentrifugeError, Client, StreamPosition, Subscription, SubscriptionEventHandler

API, KEY, WEBSOCKET, TOKEN = sys.argv[1:5]
PATIENT_S = 60.0
OPEN: list[Client] = []


class Publications(SubscriptionEventHandler):
    """The data of all publications, and how each subscription went."""

    def __init__(self) -> None:
        self.data: list[Any] = []
        self.recovered: list[bool] = []
        self._changed = asyncio.Event()

    async def on_publication(self, ctx: Any) -> None:
        """One more."""
        self.data.append(ctx.pub.data)
        self._changed.set()

    async def on_subscribed(self, ctx: Any) -> None:
        """Subscribed."""
        self.recovered.append(ctx.recovered)
        self._changed.set()

    async def until(self, count: int) -> None:
        """Wait for this many publications."""
        while len(self.data) < count:
            self._changed.clear()
            await self._changed.wait()


async def joined(room: str, **more: Any) -> tuple[Subscription, Publications]:
    """A new client's subscription that is there."""
    client = Client(WEBSOCKET, token=TOKEN)
    OPEN.append(client)
    await client.connect()
    events = Publications()
    subscription = client.new_subscription(room, events=events, **more)
    await subscription.subscribe()
    await subscription.ready(timeout=PATIENT_S)
    return subscription, events


async def publishes_to_a_client(api: cent.AsyncClient, room: str) -> None:
    """JSON as it is, binary in base64."""
    _, seen = await joined(room)
    await api.publish(cent.PublishRequest(channel=room, data={"goal": 1}))
    await api.publish(cent.PublishRequest(channel=room, data=None, b64data=base64.b64encode(b"\xff").decode()))
    await seen.until(2)
    assert seen.data == [{"goal": 1}, base64.b64encode(b"\xff").decode()], seen.data


async def broadcasts(api: cent.AsyncClient, room: str) -> None:
    """To two rooms, and to one whose name is wrong."""
    _, seen = await joined(room)
    said = await api.broadcast(cent.BroadcastRequest(channels=[room, f"{room}-2", "a\nb"], data="x"))
    assert [each.error.code if each.error else None for each in said.responses] == [None, None, 107]
    await seen.until(1)


async def tells_a_position_that_a_client_goes_on_from(api: cent.AsyncClient, room: str) -> None:
    """Messages behind the position of a publish are recovered."""
    first = await api.publish(cent.PublishRequest(channel=room, data=1))
    await api.publish(cent.PublishRequest(channel=room, data=2))

    async def state(channel: str) -> StreamPosition:
        return StreamPosition(offset=first.offset, epoch=first.epoch)

    _, seen = await joined(room, recoverable=True, positioned=True, get_state=state)
    await seen.until(1)
    assert (seen.data, seen.recovered) == ([2], [True])


async def tells_history_with_the_same_positions(api: cent.AsyncClient, room: str) -> None:
    """The top of history is the position that a client has."""
    subscription, seen = await joined(room, recoverable=True, positioned=True)
    for n in range(3):
        await api.publish(cent.PublishRequest(channel=room, data=n))
    await seen.until(3)
    theirs = await subscription.history(limit=-1)
    while True:
        ours = await api.history(cent.HistoryRequest(channel=room, limit=100))
        if len(ours.publications) == 3:
            break
        await asyncio.sleep(0.05)  # the face has the last one by and by
    assert (ours.offset, ours.epoch) == (theirs.offset, theirs.epoch)
    assert [each.data for each in ours.publications] == [0, 1, 2]
    assert [each.offset for each in ours.publications] == [each.offset for each in theirs.publications]


async def names_the_publisher_of_a_message(api: cent.AsyncClient, room: str) -> None:
    """The publisher is named for a client's message, and not for a backend's."""
    subscription, _ = await joined(room)
    await subscription.publish("of a client")
    await api.publish(cent.PublishRequest(channel=room, data="of a backend"))
    while True:
        told = (await api.history(cent.HistoryRequest(channel=room, limit=9))).publications
        if len(told) == 2:
            break
        await asyncio.sleep(0.05)  # as above
    assert [each.info and each.info.user for each in told] == ["7", None]


async def counts_clients_of_an_edge(api: cent.AsyncClient, room: str) -> None:
    """Presence, its numbers, and the list of channels."""
    await joined(room)
    presence = await api.presence(cent.PresenceRequest(channel=room))
    assert [each.user for each in presence.presence.values()] == ["7"]
    stats = await api.presence_stats(cent.PresenceStatsRequest(channel=room))
    assert (stats.num_clients, stats.num_users) == (1, 1)
    listed = await api.channels(cent.ChannelsRequest(pattern="edge:*"))
    assert listed.channels[room].num_clients == 1
    assert all(name.startswith("edge:") for name in listed.channels)


async def tells_the_nodes_with_clients(api: cent.AsyncClient, room: str) -> None:
    """An edge and a gateway."""
    await joined(room)
    nodes = {node.name.removeprefix("muster-"): node for node in (await api.info(cent.InfoRequest())).nodes}
    assert set(nodes) == {"edge", "gateway"}, nodes
    assert nodes["edge"].num_clients == nodes["edge"].num_subs == 1
    assert nodes["edge"].version


async def does_a_batch(api: cent.AsyncClient, room: str) -> None:
    """Several methods in one request."""
    _, seen = await joined(room)
    requests: list[Any] = [cent.PublishRequest(channel=room, data=n) for n in range(2)]
    said = await api.batch(cent.BatchRequest(requests=[*requests, cent.PresenceStatsRequest(channel=room)]))
    await seen.until(2)
    first, second, stats = said.replies
    assert isinstance(first, cent.PublishResult)
    assert isinstance(second, cent.PublishResult)
    assert isinstance(stats, cent.PresenceStatsResult)
    assert (first.offset, second.offset, stats.num_clients) == (1, 2, 1)


async def is_refused_what_rooms_cannot_do(api: cent.AsyncClient, room: str) -> None:
    """With the code for methods that are not available."""
    for request in (
        api.history_remove(cent.HistoryRemoveRequest(channel=room)),
        api.disconnect(cent.DisconnectRequest(user="7")),
    ):
        [error] = await asyncio.gather(request, return_exceptions=True)
        assert isinstance(error, cent.CentApiResponseError), error
        assert error.code == 108
        assert "not available: " in error.message


async def is_refused_with_a_wrong_key(api: cent.AsyncClient, room: str) -> None:
    """As an error of authorization."""
    async with cent.AsyncClient(API, "no key") as stranger:
        try:
            await stranger.publish(cent.PublishRequest(channel=room, data=1))
        except cent.CentUnauthorizedError:
            return
    raise AssertionError("no error")


async def main() -> None:
    """All cases, one after the other."""
    cases = [
        publishes_to_a_client,
        broadcasts,
        tells_a_position_that_a_client_goes_on_from,
        tells_history_with_the_same_positions,
        names_the_publisher_of_a_message,
        counts_clients_of_an_edge,
        tells_the_nodes_with_clients,
        does_a_batch,
        is_refused_what_rooms_cannot_do,
        is_refused_with_a_wrong_key,
    ]
    async with cent.AsyncClient(API, KEY, timeout=PATIENT_S) as api:
        for case in cases:
            said = {"case": case.__name__}
            try:
                async with asyncio.timeout(PATIENT_S):
                    await case(api, f"edge:{case.__name__[:40]}-{uuid.uuid4().hex}")
            except (CentrifugeError, cent.CentError, AssertionError, TimeoutError):
                said["error"] = traceback.format_exc()
            print(json.dumps(said), flush=True)
            while OPEN:
                await OPEN.pop().disconnect()


if __name__ == "__main__":
    asyncio.run(main())
