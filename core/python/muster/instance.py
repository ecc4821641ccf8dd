"""Where an instance of this machine is found: its folder, and what its `instance.json` says to clients.

The rule is stated here once; the command that writes the folder follows it too.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .errors import Invalid, Unavailable

FILE: Final = "instance.json"
VARIABLE: Final = "MUSTER_INSTANCE__DIR"
START: Final = "start one: muster up"

Endpoint = tuple[str, int, str]
"""Host, port, and the public key in hex that the server proves itself by."""


@dataclass(frozen=True)
class Address:
    """All that a client needs to reach an instance."""

    gateways: tuple[Endpoint, ...]
    proxies: tuple[Endpoint, ...]
    token: bytes


def default_folder(environment: Mapping[str, str]) -> Path:
    """The folder where nothing else is configured: `$XDG_RUNTIME_DIR/muster`, else `/tmp/muster-UID`."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "muster" if runtime else Path(f"/tmp/muster-{os.getuid()}")


def find(folder: str | os.PathLike[str] | None = None, environment: Mapping[str, str] | None = None) -> Address:
    """Read the running instance of `folder`, else of `$MUSTER_INSTANCE__DIR`, else of the default one.

    Raises `Unavailable`: there is none, only what a dead one left, or it belongs to another user. That may be so of a
    folder that was chosen, whose token is then read only if it belongs to whom the instance belongs.
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
        gateways, proxies = _endpoints(said["gateways"]), _endpoints(said["proxies"])
    except FileNotFoundError:
        raise Unavailable(f"no instance runs here ({record} is missing); {START}") from None
    except OSError as error:
        raise Unavailable(f"{error.filename}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise Unavailable(f"{record}: not written by this version of muster") from None
    if start_time(pid) != started:
        raise Unavailable(f"the instance in {place} died (process {pid} is gone); {START}")
    return Address(gateways, proxies, read_token(token_file, writer))


def folder_of(chosen: str | os.PathLike[str]) -> Path:
    """The folder that is named so, as it is whatever the current one becomes. Raises `Invalid`."""
    try:
        return Path(chosen).expanduser().absolute()
    except (RuntimeError, TypeError) as error:
        raise Invalid(f"{chosen!r:.80} is no folder: {error}") from None


def check_default(place: Path) -> None:
    """Raise `Unavailable` unless the default folder is this user's: in /tmp anybody could have made it."""
    info = place.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise Unavailable(f"{place} belongs to somebody else or is a link; if it is meant: {VARIABLE}={place}")


def read_token(file: str | os.PathLike[str], named_by: int = 0) -> bytes:
    """Read the credential of clients on this machine. Raises `Unavailable`.

    `named_by`: the user who says that it is in this file. What is said by us or by root holds; others could have what we
    may read, and they may not, sent to a server of theirs.
    """
    try:
        with open(file, "rb") as stream:
            if named_by not in {0, os.getuid(), os.fstat(stream.fileno()).st_uid}:
                raise Unavailable(f"{file}: is not of whom the instance is; run this as that user, or give token")
            return stream.read().strip()
    except OSError as error:
        raise Unavailable(f"{file}: cannot be read: {error.strerror}") from None


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone. Tells it from a later one of the same id."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] == "Z" else int(after_name[19])


def _endpoints(said: list[dict[str, Any]]) -> tuple[Endpoint, ...]:
    return tuple((str(each["host"]), int(each["port"]), str(each["public_key"])) for each in said)
