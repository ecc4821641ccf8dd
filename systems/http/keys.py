"""API keys: a file with their hashes and scopes, how it is written, and how a running process follows it.

A key is `mk_ID_SECRET`. The file has the SHA-256 of the secret, which has 256 random bits: no slower hash is needed. A
scope is `ACTION:PATTERN`; the actions are those of the systems. Knows no route and no HTTP.
"""

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from muster_server.control.errors import USAGE, ConfigError, UserError
from muster_server.control.host.files import open_to_all
from muster_server.plane.files import write_atomically
from muster_server.systems.http.uses import Uses

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

FORMAT: Final = 1
KEYS_MAX: Final = 10_000
SCOPES_MAX: Final = 100
PREFIX: Final = "mk_"
ID_BYTES, SECRET_BYTES = 6, 32
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DEFAULT_NAMESPACE: Final = "default:"
ANYTHING: Final = "*"
_KEY: Final = re.compile(r"mk_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOBODY: Final = b"\0" * 32


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key, without its secret."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{12}$")]
    name: str
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    scopes: tuple[str, ...]
    created: int
    """Seconds since 1970."""

    def allows(self, action: str, room: str, *, whole: bool = False) -> bool:
        """Whether one of its scopes covers this. `whole`: only by its full name, or by `*`."""
        return any(covers(scope, action, room, whole=whole) for scope in self.scopes)


class Keys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    format: int = FORMAT
    keys: Annotated[tuple[Key, ...], Meta(max_length=KEYS_MAX)] = ()


def full_name(room: str) -> str:
    """The name with its namespace: `lobby` is `default:lobby`."""
    return room if ":" in room else DEFAULT_NAMESPACE + room


def covers(scope: str, action: str, room: str, *, whole: bool = False) -> bool:
    """Whether a scope allows an action on a room. `*` alone matches every room, at the end of a pattern the rest of a
    name.

    `whole`: the beginning of this name has no meaning, for example because it is a hash.
    """
    its, _, pattern = scope.partition(":")
    if its != action:
        return False
    if pattern == ANYTHING:
        return True
    pattern = full_name(pattern)
    if pattern.endswith(ANYTHING):
        return not whole and full_name(room).startswith(pattern[:-1])
    return full_name(room) == pattern


def check_scope(scope: str, actions: Mapping[str, str]) -> str:
    """The stored form of a scope: `members` and `members:` are `members:*`. Raises `UserError`."""
    action, _, pattern = scope.partition(":")
    if action not in actions:
        raise UserError(f"--scope: unknown action {action!r:.40} (expected one of {', '.join(actions)})", USAGE)
    if ANYTHING in pattern[:-1]:
        raise UserError(f"--scope: invalid pattern {scope!r:.80}: * is allowed at the end, or alone", USAGE)
    if not pattern.isprintable() or len(pattern.encode()) > 200:
        raise UserError(f"--scope: invalid pattern {scope!r:.80}: no room can have such a name", USAGE)
    return f"{action}:{pattern or ANYTHING}"


def read(file: Path) -> Keys:
    """The content of the file; without a file there are no keys. Raises `ConfigError`."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Keys)
    except FileNotFoundError:
        return Keys()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file} was written by another version of muster key: {error}") from None
    if found.format != FORMAT:
        raise ConfigError(f"{file} has format {found.format}, but this version reads only {FORMAT}")
    return found


def create(file: Path, name: str, scopes: Sequence[str], actions: Mapping[str, str]) -> tuple[Key, str]:
    """Add a key. Returns it and its secret form, which is not stored. Raises `UserError`."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"NAME: invalid name {name!r:.80} (expected 1 to 64 letters, digits, dots, dashes and underscores)", USAGE
        )
    if not 1 <= len(scopes) <= SCOPES_MAX:
        raise UserError(f"--scope: invalid number of scopes (expected 1 to {SCOPES_MAX})", USAGE)
    checked = tuple(dict.fromkeys(check_scope(scope, actions) for scope in scopes))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    key = Key(
        id=secrets.token_hex(ID_BYTES), name=name, sha256=_hash(secret).hex(), scopes=checked, created=int(time.time())
    )
    with _changing(file) as (before, write):
        if any(each.name == name for each in before.keys):
            raise UserError(f"NAME: key {name!r} exists already; remove it with muster key revoke {name}")
        if len(before.keys) >= KEYS_MAX:
            raise UserError(f"{file}: too many keys (limit {KEYS_MAX}); revoke some")
        write(Keys(keys=(*before.keys, key)))
    return key, f"{PREFIX}{key.id}_{secret}"


def revoke(file: Path, which: str) -> Key:
    """Remove the key of this name or id. Raises `UserError`."""
    with _changing(file) as (before, write):
        found = [key for key in before.keys if which in {key.name, key.id}]
        if not found:
            raise UserError(f"no key {which!r:.80}; muster key ls lists all")
        write(Keys(keys=tuple(key for key in before.keys if key is not found[0])))
    return found[0]


@contextmanager
def _changing(file: Path) -> Iterator[tuple[Keys, Callable[[Keys], None]]]:
    """Change the file; one writer at a time, over all processes."""
    try:
        with (file.parent / f".{file.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield (
                read(file),
                lambda keys: write_atomically(file, msgspec.json.format(msgspec.json.encode(keys)) + b"\n"),
            )
    except OSError as error:
        raise UserError(f"{error.filename or file}: cannot be written: {error.strerror}") from None


class Keyring:
    """The current keys. `look` reloads a changed file; an unreadable one leaves the keys unchanged."""

    def __init__(self, file: Path, log: "FilteringBoundLogger") -> None:
        self._file, self._log = file, log
        self._uses = Uses(file, log)
        self._seen: tuple[int, int, int] | None = None
        self._by_id: Mapping[str, Key] = {}
        self.changes = 0
        """Number of reloads of other keys."""
        self.failures = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def look(self) -> bool:
        """Reload the file if it was replaced. Returns whether the keys changed."""
        seen = self._stamp()
        if seen == self._seen and self.changes:
            return False
        self._seen = seen
        try:
            keys = read(self._file)
        except ConfigError as error:
            self.failures += 1
            self._log.error("cannot reload the keys; keeping the old ones", why=str(error))
            return False
        if open_to_all([str(self._file)]):
            self._log.warning("all users of this machine can read or write the file of keys", file=str(self._file))
        self._by_id = {key.id: key for key in keys.keys}
        self.changes += 1
        return True

    def find(self, credential: str) -> Key | None:
        """The key of this credential. Takes the same time whether the id exists or not. An id that is not known yet
        makes it reload a changed file first, so a new key works at once."""
        match = _KEY.fullmatch(credential)
        if match is None:
            return None
        if match[1] not in self._by_id and self._stamp() != self._seen:
            self.look()
        key = self._by_id.get(match[1])
        wanted = _NOBODY if key is None else bytes.fromhex(key.sha256)
        if key is None or not hmac.compare_digest(_hash(match[2]), wanted):
            return None
        self._uses.note(key.id)
        return key

    @property
    def uses_due(self) -> bool:
        """As `Uses.due`."""
        return self._uses.due

    def save_uses(self, *, at_once: bool = False) -> None:
        """As `Uses.save`."""
        self._uses.save(self._by_id, at_once=at_once)

    def current(self, key_id: str) -> Key | None:
        """The current state of the key; None once it is revoked."""
        return self._by_id.get(key_id)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            info = os.stat(self._file)
        except OSError:
            return None
        return info.st_mtime_ns, info.st_ino, info.st_size


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
