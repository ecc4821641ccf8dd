"""systemd's notifications and watchdog: sd_notify(3), a datagram with lines of text.

Without `NOTIFY_SOCKET` it does nothing. It never waits longer than `SEND_S` seconds. Lines that could not be sent by
then are sent again later, because systemd ends a service without `READY=1`. Other failures here never disturb the
service. The socket is open from the start, so a process without free descriptors still has it.
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
    """Sends lines to the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog_s(environment)
        """The watchdog's time in seconds; 0 without a watchdog."""
        self._sending: socket.socket | None = None
        self._unsaid: dict[str, str] = {}
        """Unsent lines by their key; for READY, RELOADING and STOPPING the last one counts."""

    def __call__(self, *lines: str) -> None:
        """Send these lines, for example `READY=1`."""
        if not self._address:
            return
        patience = 0 if self._unsaid else SEND_S  # waiting once is enough
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
            pass  # no service manager listens
        self._unsaid.clear()

    def status(self, text: str, *lines: str) -> None:
        """Send these lines and a status text for people."""
        self(*lines, f"STATUS={' '.join(text.split())[:STATUS_LEN_MAX]}")

    def _open(self) -> socket.socket:
        self._sending = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        weakref.finalize(self, self._sending.close)
        return self._sending

    async def beat(self) -> None:
        """Report regularly that the loop runs, at twice the watchdog's rate, and resend unsent lines."""
        while self._address:
            if self.watchdog_s:
                self("WATCHDOG=1")
            elif self._unsaid:
                self()
            await asyncio.sleep(self.watchdog_s / 2 or AGAIN_S)


def _address(text: str) -> str:
    """A path, or an abstract name (`@…`); other kinds, for example `vsock:`, are not supported."""
    return f"\0{text[1:]}" if text.startswith("@") else text if text.startswith("/") else ""


def _watchdog_s(environment: Mapping[str, str]) -> float:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isascii() and text.isdigit() else 0.0
