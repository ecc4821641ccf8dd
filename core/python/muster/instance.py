"""Where an instance of this machine is found: its folder, and what its `instance.json` says to clients.

The rule is stated here once; the command that writes the folder follows it too.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .errors import Unavailable

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

    Raises `Unavailable`: there is none, only what a dead one left, or it belongs to another user.
    """
    environment = os.environ if environment is None else environment
    chosen = folder or environment.get(VARIABLE)
    place = Path(chosen).expanduser() if chosen else default_folder(environment)
    record = place / FILE
    try:
        if not chosen and place.lstat().st_uid != os.getuid():  # in /tmp anybody could have made it
            raise Unavailable(f"{place} belongs to somebody else")
        said: dict[str, Any] = json.loads(record.read_bytes())
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
    return Address(gateways, proxies, read_token(token_file))


def read_token(file: str | os.PathLike[str]) -> bytes:
    """Read the credential of clients on this machine. Raises `Unavailable`."""
    try:
        return Path(file).read_bytes().strip()
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
