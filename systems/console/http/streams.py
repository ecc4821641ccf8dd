"""The event stream of an open page: a summary with each reading of the nodes."""

from typing import TYPE_CHECKING, Final

from muster_server.systems.console.sessions import Session
from muster_server.systems.http.access import Caller
from muster_server.systems.http.streams import Stream, event

if TYPE_CHECKING:
    from muster_server.systems.console.http.entry import ConsoleEntry

HEARTBEAT_S: Final = 15.0
STALL_S: Final = 30.0
"""A page that reads nothing for this time is cut."""


class PageStream(Stream):
    """Sends summaries to one page. A slow page misses some, and gets the newest one."""

    def __init__(self, entry: "ConsoleEntry", caller: Caller, session: Session) -> None:
        super().__init__(entry, caller, HEARTBEAT_S, STALL_S)
        self.session = session
        self._entry, self._serial = entry, 0

    def take(self) -> bytes:
        """The newest summary, if the page does not have it."""
        sampler = self._entry.sampler
        if self._serial == sampler.serial:
            return b""
        self._serial = sampler.serial
        overview = sampler.overview()
        return event("sample", overview) if overview is not None else event("away", {"error": sampler.error})

    def allowed(self) -> bool:
        """Whether the session still lasts."""
        return self._entry.sessions_hold(self.session)

    def over(self) -> str:
        """It has no end of its own."""
        return ""
