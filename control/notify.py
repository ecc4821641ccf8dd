"""What systemd is told of a service, and its watchdog: sd_notify(3), of which a datagram with lines of text is all.

Without `NOTIFY_SOCKET` nothing is said. Nobody is waited for longer than `SEND_S`, and nothing that goes wrong here is the
service's business.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

SEND_S: Final = 0.2
STATUS_LEN_MAX: Final = 500


class Notify:
    """Says lines to whoever started this process, if it wants to hear them."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog_s(environment)
        """Killed when it did not hear for so long; 0 if it does not listen for that."""

    def __call__(self, *lines: str) -> None:
        """Say these, as `READY=1`."""
        if not self._address:
            return
        with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.settimeout(SEND_S)
            sending.sendto("\n".join(lines).encode(errors="backslashreplace"), self._address)

    def status(self, text: str, *lines: str) -> None:
        """Say these and, for people, how things stand."""
        self(*lines, f"STATUS={' '.join(text.split())[:STATUS_LEN_MAX]}")

    async def beat(self) -> None:
        """Say for ever that the loop turns, twice as often as is asked for."""
        while self._address and self.watchdog_s:
            self("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)


def _address(text: str) -> str:
    """A path, or a name that is in no folder (`@…`); of others, as `vsock:`, nothing is known here."""
    return f"\0{text[1:]}" if text.startswith("@") else text if text.startswith("/") else ""


def _watchdog_s(environment: Mapping[str, str]) -> float:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isascii() and text.isdigit() else 0.0
