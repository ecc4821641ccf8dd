"""What systemd is told of a service, and its watchdog: sd_notify(3), of which a datagram with lines of text is all.

Without `NOTIFY_SOCKET` nothing is said. Nobody is waited for longer than `SEND_S`; what found no room by then is said again
later, as who never hears `READY=1` ends the service. Nothing else that goes wrong here is the service's business. The socket
is kept from the first line on: a process that is out of descriptors is no reason to end it.
"""

import asyncio
import os
import socket
import weakref
from collections.abc import Mapping
from typing import Final

SEND_S: Final = 0.2
AGAIN_S: Final = 1.0
STATUS_LEN_MAX: Final = 500


class Notify:
    """Says lines to whoever started this process, if it wants to hear them."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog_s(environment)
        """Killed when it did not hear for so long; 0 if it does not listen for that."""
        self._sending: socket.socket | None = None
        self._unsaid: dict[str, str] = {}
        """Lines that found no room, by what they say; of READY, RELOADING and STOPPING the last counts."""

    def __call__(self, *lines: str) -> None:
        """Say these, as `READY=1`."""
        if not self._address:
            return
        patience = 0 if self._unsaid else SEND_S  # once is enough
        for line in lines:
            name = line.partition("=")[0]
            self._unsaid.pop(name, None)
            self._unsaid[name] = line
        try:
            sending = self._sending or self._open()
            sending.settimeout(patience)
            sending.sendto("\n".join(self._unsaid.values()).encode(errors="backslashreplace"), self._address)
        except (BlockingIOError, TimeoutError):
            return
        except (OSError, ValueError):
            pass  # nobody is there
        self._unsaid.clear()

    def status(self, text: str, *lines: str) -> None:
        """Say these and, for people, how things stand."""
        self(*lines, f"STATUS={' '.join(text.split())[:STATUS_LEN_MAX]}")

    def _open(self) -> socket.socket:
        self._sending = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        weakref.finalize(self, self._sending.close)
        return self._sending

    async def beat(self) -> None:
        """Say for ever that the loop turns, twice as often as is asked for, and again what found no room."""
        while self._address:
            if self.watchdog_s:
                self("WATCHDOG=1")
            elif self._unsaid:
                self()
            await asyncio.sleep(self.watchdog_s / 2 or AGAIN_S)


def _address(text: str) -> str:
    """A path, or a name that is in no folder (`@…`); of others, as `vsock:`, nothing is known here."""
    return f"\0{text[1:]}" if text.startswith("@") else text if text.startswith("/") else ""


def _watchdog_s(environment: Mapping[str, str]) -> float:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isascii() and text.isdigit() else 0.0
