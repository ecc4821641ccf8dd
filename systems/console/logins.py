"""One-time logins: a code that `muster up` and `muster console login` print, good for one session.

A login is a file in a folder of the instance, named by the SHA-256 of its code: removing the file uses the login up, so
two processes never both accept it. Knows no session and no request.
"""

import hashlib
import re
import secrets
import time
from pathlib import Path
from typing import Final

import msgspec

from muster_server.control.errors import UserError
from muster_server.plane.files import write_atomically
from muster_server.systems.console.users import Role

FOLDER: Final = "console-logins"
CODE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
KEPT_MAX: Final = 100
"""Limit of unused logins; the oldest are removed first."""


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A login that waits to be used. `until`: seconds since 1970."""

    role: Role
    until: float


def create(folder: Path, role: Role, seconds: float) -> str:
    """Make a login and return its code, which is stored nowhere. Raises `UserError`."""
    code = secrets.token_urlsafe(32)
    place = folder / FOLDER
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        for each in sorted(place.iterdir(), key=lambda file: file.stat().st_mtime)[: -KEPT_MAX + 1]:
            each.unlink(missing_ok=True)
        write_atomically(place / _name(code), msgspec.json.encode(Login(role=role, until=time.time() + seconds)))
    except OSError as error:
        raise UserError(f"{error.filename or place}: cannot be written: {error.strerror}") from None
    return code


def use(folder: Path, code: str) -> Role | None:
    """Use a login up. None: it is unknown, used or too old."""
    if not CODE.fullmatch(code):
        return None
    file = folder / FOLDER / _name(code)
    try:
        login = msgspec.json.decode(file.read_bytes(), type=Login)
        file.unlink()  # fails if another request was first
    except (OSError, msgspec.MsgspecError):
        return None
    return login.role if time.time() <= login.until else None


def link(folder: Path, url: str, role: Role = "operator", seconds: float = 600) -> str:
    """A URL that logs in once. The code stands behind the `#`, which no browser sends to a server or to another site."""
    return f"{url}/#login={create(folder, role, seconds)}"


def _name(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
