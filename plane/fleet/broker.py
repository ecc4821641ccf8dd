"""mosquitto as a child: the broker of an installation that has none.

Owns its files and its process. It must not know clients beyond their names and passwords, nor what they say. Each client
reads and writes only its own topics; the plane writes the clients' down topics and reads their up topics. A connection
without a password is refused.
"""

import asyncio
import base64
import contextlib
import hashlib
import os
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from plane.fleet.index import NAME
from plane.fleet.schema import PREFIX, UP_BYTES_MAX

PLANE: Final = "plane"
"""The user of the plane itself; no client is called so."""
ITERATIONS: Final = 101  # of PBKDF2 for each connect, as mosquitto's own: words are random, and 20,000 come at once
STARTS_SECONDS: Final = 10.0
STOPS_SECONDS: Final = 5.0
QUEUED_MAX: Final = 1_000  # orders for a client that does not read; further ones are dropped by the broker, and missed


class BrokerError(Exception):
    """The broker cannot be started. One line."""


class Broker:
    """One mosquitto. `start` once, `stop` once; `users` may be replaced while it runs."""

    def __init__(self, folder: Path, users: Mapping[str, str], *, host: str = "127.0.0.1", port: int = 0) -> None:
        """`folder` is private to it. `users` are passwords by client, the plane's among them. Port 0: a free one."""
        self.host = host
        self.port = port or _free_port(host)
        self._folder = folder
        self._users = dict(users)
        self._lines: dict[tuple[str, str], str] = {}
        """Lines of the password file: a hash takes 0.1 ms, and most users stay."""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Until it accepts connections. Raises `BrokerError`."""
        binary = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if binary is None:
            raise BrokerError("mosquitto is not installed; install it, or name another broker")
        if not _is_free(self.host, self.port):  # else the process that listens there would be taken for this broker
            raise BrokerError(f"{self.host}:{self.port} is in use; name another port for the broker")
        self._folder.mkdir(parents=True, exist_ok=True)
        self.write_users(self._users)
        _write(self._folder / "acl", access())
        _write(self._folder / "mosquitto.conf", configuration(self._folder, self.host, self.port))
        command = [binary, "-c", str(self._folder / "mosquitto.conf")]
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            await self._until_it_accepts(self._process)
        except BaseException:
            await self.stop()
            raise

    async def _until_it_accepts(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(STARTS_SECONDS):
                while not await self._accepts():
                    if process.returncode is not None:
                        raise BrokerError(f"mosquitto ended with {process.returncode}: {self._last_words()}")
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise BrokerError(
                f"mosquitto did not listen on {self.host}:{self.port} in time: {self._last_words()}"
            ) from None

    async def stop(self) -> None:
        """Ends it, by force if it does not end by itself. Does nothing if it is not there."""
        process, self._process = self._process, None
        if process is None:
            return
        for end in (process.terminate, process.kill):
            with contextlib.suppress(ProcessLookupError):
                end()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOPS_SECONDS):
                    await process.wait()
                    return

    @property
    def pid(self) -> int:
        """0: it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    def write_users(self, users: Mapping[str, str]) -> None:
        """Replaces the users, from the next `start` or `reload` on. Raises `BrokerError` for a bad name."""
        self._users, known = dict(users), self._lines
        self._lines = {each: known.get(each) or password_line(*each) for each in sorted(users.items())}
        _write(self._folder / "users", "".join(self._lines.values()))

    def reload(self) -> None:
        """Reads users and access anew; connections stay."""
        if self.pid:
            os.kill(self.pid, signal.SIGHUP)

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True

    def _last_words(self) -> str:
        lines = (self._folder / "log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"


def configuration(folder: Path, host: str, port: int) -> str:
    """mosquitto.conf. Without the three limits its defaults lose orders in a burst, without a word."""
    lines = [
        f"listener {port} {host}",
        "protocol mqtt",
        "allow_anonymous false",
        f"password_file {folder / 'users'}",
        f"acl_file {folder / 'acl'}",
        "persistence false",
        "max_inflight_messages 0",
        f"max_queued_messages {QUEUED_MAX}",
        f"message_size_limit {UP_BYTES_MAX}",
        f"max_packet_size {UP_BYTES_MAX + 1024}",
        "max_keepalive 600",
        "set_tcp_nodelay true",
        "allow_zero_length_clientid false",
        "use_username_as_clientid true",
        "sys_interval 0",
        "connection_messages false",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
    ]
    if os.geteuid() == 0:
        lines.append("user root")  # else it becomes a user that may not enter the private folder
    return "\n".join(lines) + "\n"


def access() -> str:
    """The list of access: `%u` is the name that a client proved."""
    return "\n".join(
        [
            f"user {PLANE}",
            f"topic read {PREFIX}/+/up/+",
            f"topic write {PREFIX}/+/down/+",
            "",
            f"pattern write {PREFIX}/%u/up/+",
            f"pattern read {PREFIX}/%u/down/+",
            "",
        ]
    )


def password_line(name: str, word: str) -> str:
    """A line of mosquitto's password file (PBKDF2 with SHA-512). Raises `BrokerError` for a bad name."""
    if not NAME.fullmatch(name):
        raise BrokerError(f"bad client name {name[:80]!r}: 1 to 64 letters, digits, '_' and '-' expected")
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", word.encode(), salt, ITERATIONS, 64)
    return f"{name}:$7${ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}\n"


def _write(file: Path, text: str) -> None:
    """For the owner alone, and whole or not at all."""
    beside = file.with_name(f"{file.name}.new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
        out.write(text)
    beside.replace(file)


def _is_free(host: str, port: int) -> bool:
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])
