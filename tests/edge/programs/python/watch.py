"""One unchanged client of one room: `watch.py URL TOKEN ROOM`. Prints each event as a line of JSON, until it is ended."""

import asyncio
import json
import sys
from typing import Any

from centrifuge import Client, ClientEventHandler, SubscriptionEventHandler

URL, TOKEN, ROOM = sys.argv[1:4]


def tell(event: str, **more: Any) -> None:
    """One line."""
    print(json.dumps({"event": event, **more}), flush=True)


class Ends(ClientEventHandler):
    """Tells that the client stays away."""

    async def on_disconnected(self, ctx: Any) -> None:
        """The server ended the connection, and the client does not connect again."""
        tell("disconnected", code=ctx.code, reason=ctx.reason)


class Events(SubscriptionEventHandler):
    """Tells all of them."""

    async def on_subscribing(self, ctx: Any) -> None:
        """Not subscribed at present."""
        tell("subscribing", code=ctx.code)

    async def on_subscribed(self, ctx: Any) -> None:
        """Subscribed."""
        tell("subscribed", was=ctx.was_recovering, recovered=ctx.recovered)

    async def on_publication(self, ctx: Any) -> None:
        """A message."""
        tell("publication", data=ctx.pub.data)


async def main() -> None:
    """Watch."""
    client = Client(URL, events=Ends(), token=TOKEN, min_reconnect_delay=0.02, max_reconnect_delay=0.2)
    room = client.new_subscription(ROOM, events=Events(), recoverable=True, positioned=True)
    await room.subscribe()
    await client.connect()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
