"""Reads the machine: files of the kernel, and trial sockets. Judges nothing, needs no privileges."""

import array
import contextlib
import os
import resource
import shutil
import socket
import stat
import struct
from importlib import metadata
from pathlib import Path
from typing import Final

from muster_server.control.doctor.machine import Place
from muster_server.control.doctor.network import Offload
from muster_server.control.errors import UserError
from muster_server.control.host.ports import Ports

SO_SNDBUFFORCE: Final = 32
SO_RCVBUFFORCE: Final = 33
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
SOL_UDP: Final = 17
DATAGRAMS: Final = 4
DATAGRAM_BYTES: Final = 1_200
WAIT_S: Final = 0.5
SBIN: Final = "/usr/sbin:/usr/local/sbin:/sbin"


def text(path: str) -> str:
    """Return the content of a kernel file. Raises `OSError` if there is none."""
    return Path(path).read_text(encoding="utf-8", errors="replace")


def buffer(kind: str, asked: int) -> int:
    """Return the buffer in bytes that the kernel gives to a socket that requests `asked`, as the engines do."""
    names = {"receive": (SO_RCVBUFFORCE, socket.SO_RCVBUF), "send": (SO_SNDBUFFORCE, socket.SO_SNDBUF)}
    forced, plain = names[kind]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        if asked:
            try:
                tried.setsockopt(socket.SOL_SOCKET, forced, asked)
            except OSError:
                tried.setsockopt(socket.SOL_SOCKET, plain, asked)
        return tried.getsockopt(socket.SOL_SOCKET, plain) // 2  # the kernel doubles it for its own overhead


def offload() -> Offload:
    """Send a super-packet to this process, or single datagrams if the kernel refuses it, and report what arrived."""
    sent_joined = came_joined = False
    arrived = 0
    payload = bytes(DATAGRAMS * DATAGRAM_BYTES)
    try:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
        ):
            other.bind(("127.0.0.1", 0))
            other.settimeout(WAIT_S)
            with contextlib.suppress(OSError):
                other.setsockopt(SOL_UDP, UDP_GRO, 1)
            try:
                size = struct.pack("=H", DATAGRAM_BYTES)
                one.sendmsg([payload], [(SOL_UDP, UDP_SEGMENT, size)], 0, other.getsockname())
                sent_joined = True
            except OSError:
                for _ in range(DATAGRAMS):
                    one.sendto(bytes(DATAGRAM_BYTES), other.getsockname())
            while arrived < DATAGRAMS:
                data, ancillary, _, _ = other.recvmsg(1 << 16, socket.CMSG_SPACE(array.array("i").itemsize))
                came_joined |= any((level, kind) == (SOL_UDP, UDP_GRO) for level, kind, _ in ancillary)
                arrived += len(data) // DATAGRAM_BYTES
    except TimeoutError:
        pass
    except OSError as error:
        return Offload(sent_joined, came_joined, arrived, DATAGRAMS, error.strerror or str(error))
    return Offload(sent_joined, came_joined, arrived, DATAGRAMS)


def ipv6() -> bool:
    """Whether a socket can be bound to the IPv6 loopback."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


def files() -> int | None:
    """The hard limit of open files of a process; None: no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def place(path: Path) -> Place:
    """The folder, or the nearest existing one above it."""
    nearest = next(each for each in (path, *path.parents) if os.path.lexists(each))
    exists = nearest == path
    info, room = nearest.lstat(), os.statvfs(nearest)
    return Place(
        path=path,
        exists=exists,
        mine=info.st_uid == os.getuid(),
        link=stat.S_ISLNK(info.st_mode),
        mode=stat.S_IMODE(info.st_mode),
        writable=os.access(nearest, os.W_OK | os.X_OK) and nearest.is_dir(),
        free=room.f_bavail * room.f_frsize,
        files=room.f_favail if room.f_files else None,
    )


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def frequencies() -> list[tuple[str, str]]:
    """The driver and the governor of each core that has them."""
    found: list[tuple[str, str]] = []
    for folder in sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq")):
        with contextlib.suppress(OSError):
            found.append((text(f"{folder}/scaling_driver").strip(), text(f"{folder}/scaling_governor").strip()))
    return found


def clocks() -> tuple[str | None, str]:
    """The kernel's clock, and the available ones; empty if unknown."""
    folder = "/sys/devices/system/clocksource/clocksource0"
    try:
        return text(f"{folder}/current_clocksource"), text(f"{folder}/available_clocksource")
    except OSError:
        return None, ""


def versions() -> dict[str, str | None]:
    """Versions of the most important distributions."""
    found: dict[str, str | None] = {}
    for name in ("muster", "muster-server", "uvloop", "numpy", "msgspec"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def find(pattern: str) -> str | None:
    """Find an executable by its name, also in root's folders; or a file by a pattern with a slash, in this tree or from
    the root."""
    if "/" not in pattern:
        return shutil.which(pattern) or shutil.which(pattern, path=SBIN)
    base = Path("/") if pattern.startswith("/") else Path(__file__).resolve().parents[2]
    return next((str(each) for each in sorted(base.glob(pattern.lstrip("/")))), None)


def taken(key: str, host: str, port: int) -> str:
    """Return the reason why the address cannot be bound, with the text of `muster up`; empty if it can."""
    with Ports(marks=False) as ports:
        try:
            ports.udp(key, host, port)
        except UserError as error:
            return str(error)
    return ""
