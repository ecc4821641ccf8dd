"""One event stream of a room: what a reader gets of its feed, and the reason of its end."""

from muster_server.systems.http.access import Caller
from muster_server.systems.http.streams import Stream, Streams
from muster_server.systems.rooms.http.feeds import Feed, Offsets
from muster_server.systems.rooms.where import Where


class RoomStream(Stream):
    """Sends a feed's events to one reader."""

    def __init__(
        self,
        streams: Streams,
        feed: Feed,
        caller: Caller,
        gaps: bytes,
        cursor: int,
        known: Offsets,
        where: Where,
        heartbeat_s: float,
        stall_s: float,
    ) -> None:
        super().__init__(streams, caller, heartbeat_s, stall_s)
        self.feed = feed
        self._gaps, self._cursor, self._known, self._where = gaps, cursor, known, where

    def begin(self) -> bytes:
        """The gaps before the first message."""
        return self._gaps

    def take(self) -> bytes:
        """The events behind the cursor that the reader wants."""
        chunk, self._cursor, self._known = self.feed.ring.take(self._cursor, self._known, self._where)
        return chunk

    def allowed(self) -> bool:
        """Whether the caller may still read the room."""
        return self.caller.may("read", self.feed.room)

    def over(self) -> str:
        """Why the feed has ended."""
        if self.feed.over:
            return "unavailable" if self.feed.ended is None else self.feed.ended.code
        return ""
