"""Finds an instance of this machine: its folder, and what `instance.json` says to clients.

Only this file states the rule; the command that writes the folder uses it too.
"""

import codecs
import fcntl
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .errors import Invalid, Unavailable

FILE: Final = "instance.json"
LOCK: Final = "lock"
"""File in the folder that the instance's process keeps locked as long as it lives."""
VARIABLE: Final = "MUSTER_INSTANCE__DIR"
START: Final = "start one: muster up"

Endpoint = tuple[str, int, str]
"""Host, port, and the server's public key in hex."""


@dataclass(frozen=True)
class Address:
    """What a client needs to reach an instance: its servers and a token."""

    gateways: tuple[Endpoint, ...]
    proxies: tuple[Endpoint, ...]
    token: bytes


def default_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of an instance without `instance.dir`: `$XDG_RUNTIME_DIR/muster`, else `/tmp/muster-UID`."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "muster" if runtime else Path(f"/tmp/muster-{os.getuid()}")


def find(folder: str | os.PathLike[str] | None = None, environment: Mapping[str, str] | None = None) -> Address:
    """Read the running instance of `folder`, else of `$MUSTER_INSTANCE__DIR`, else of the default folder.

    Raises `Unavailable`: no instance runs there, only files of a dead one are left, or the default folder belongs to
    another user. A chosen folder may belong to another user; its token is read only if that user owns the token too.
    """
    environment = os.environ if environment is None else environment
    chosen = folder or environment.get(VARIABLE)
    place = folder_of(chosen) if chosen else default_folder(environment)
    record = place / FILE
    try:
        if not chosen:
            check_default(place)
        with record.open("rb") as stream:
            writer = os.fstat(stream.fileno()).st_uid
            said: dict[str, Any] = json.loads(stream.read())
        pid, started, token_file = int(said["pid"]), int(said["started"]), str(said["token_file"])
        namespace = str(said.get("pid_namespace", ""))
        gateways, proxies = _endpoints(said["gateways"]), _endpoints(said["proxies"])
    except FileNotFoundError:
        raise Unavailable(f"no instance runs here ({record} is missing); {START}") from None
    except OSError as error:
        raise Unavailable(f"{error.filename}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise Unavailable(
            f"{record} was written by another version of muster; use that version, or restart the instance"
        ) from None
    if not lives(place, pid, started, namespace):
        raise Unavailable(f"the instance in {place} died (process {pid} is gone); {START}")
    return Address(gateways, proxies, read_token(token_file, writer))


def folder_of(chosen: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a folder, with `~` resolved. Raises `Invalid`."""
    try:
        return Path(chosen).expanduser().absolute()
    except (RuntimeError, TypeError) as error:
        raise Invalid(f"invalid folder {chosen!r:.80}: {error}") from None


def check_default(place: Path) -> None:
    """Raise `Unavailable` unless this user owns the default folder: anybody can create it in /tmp."""
    info = place.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise Unavailable(f"{place} belongs to another user or is a link; to use it anyway: {VARIABLE}={place}")


def read_token(file: str | os.PathLike[str], named_by: int = 0) -> bytes:
    """Read the credential of clients on this machine. Raises `Unavailable`.

    `named_by`: the user that named this file. This user and root are trusted. Another user must own the file itself:
    otherwise it could make this process read a secret that only this process may read, and send it to its own server.
    """
    try:
        with open(file, "rb") as stream:
            if named_by not in {0, os.getuid(), os.fstat(stream.fileno()).st_uid}:
                raise Unavailable(
                    f"{file} does not belong to the instance's user; run this as that user, or give token"
                )
            token = stream.read().removeprefix(codecs.BOM_UTF8).strip()
    except OSError as error:
        raise Unavailable(f"{file}: cannot be read: {error.strerror}") from None
    if not token:
        raise Unavailable(f"{file} is empty; write the token into it, one line of text")
    return token


def lives(place: Path, pid: int, started: int, namespace: str) -> bool:
    """Whether the process that a record names is alive. `namespace`: `pid_namespace` of that process, or empty.

    In another PID namespace the number means nothing. There the process's lock on its folder tells that it lives.
    """
    if namespace in {"", pid_namespace()}:
        return start_time(pid) == started
    try:
        with (place / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Unavailable(
            f"{place / LOCK}: cannot be read: {error.strerror}; process {pid} is not visible from this PID namespace"
        ) from None
    return False


def pid_namespace() -> str:
    """The PID namespace of this process; empty if the system does not tell it."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """Return a process's start, in clock ticks since boot; None if it has ended. Distinguishes processes that reuse an
    id."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] == "Z" else int(after_name[19])


def _endpoints(said: list[dict[str, Any]]) -> tuple[Endpoint, ...]:
    return tuple((str(each["host"]), int(each["port"]), str(each["public_key"])) for each in said)
