"""Users of the console: a line each in the configuration, with a role and an argon2id hash of the password.

Owns the form of a line and the cost of a hash. Knows no session and no request.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, get_args

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

Role = Literal["viewer", "operator"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
PASSWORD_CHARS: Final = range(8, 1_025)
MEMORY_KIB, PASSES, LANES = 19_456, 2, 1
"""OWASP's first choice for argon2id: 19 MiB and two passes, about 30 ms of a core."""
_PHC: Final = re.compile(r"\$argon2id\$v=19\$m=([0-9]{1,7}),t=([0-9]{1,2}),p=([0-9])\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+")
COST_MAX: Final = 1 << 20
"""Limit of a hash's memory in KiB: a mistyped line must not take the machine's memory."""


class User(NamedTuple):
    """One line."""

    name: str
    role: Role
    phc: str
    """The hash, in the PHC string format."""


def user(line: str) -> User:
    """Parse one line. Raises `ValueError` with the mistake."""
    name, _, rest = line.partition(":")
    role, _, phc = rest.partition(":")
    if not NAME.fullmatch(name):
        raise ValueError(f"invalid name {name!r:.80} (expected 1 to 64 letters, digits and ._@-)")
    if role not in ROLES:
        raise ValueError(f"{name}: invalid role {role!r:.40} (expected {' or '.join(ROLES)})")
    match = _PHC.fullmatch(phc)
    if match is None:
        raise ValueError(f"{name}: the hash is not argon2id; muster console user {name} prints the line")
    if int(match[1]) > COST_MAX:
        raise ValueError(f"{name}: the hash needs {int(match[1])} KiB of memory (limit {COST_MAX})")
    return User(name, role, phc)


def users(lines: Iterable[str]) -> Mapping[str, User]:
    """All users by name. Raises `ValueError`."""
    found: dict[str, User] = {}
    for line in lines:
        each = user(line)
        if each.name in found:
            raise ValueError(f"{each.name}: a second line for the same name")
        found[each.name] = each
    return found


def line_of(name: str, role: str, password: str) -> str:
    """The line of a user with this password. Raises `ValueError`."""
    if len(password) not in PASSWORD_CHARS:
        raise ValueError(f"invalid password: {len(password)} characters (expected 8 to 1,024)")
    made = Argon2id(salt=os.urandom(16), length=32, iterations=PASSES, lanes=LANES, memory_cost=MEMORY_KIB)
    line = f"{name}:{role}:{made.derive_phc_encoded(password.encode())}"
    user(line)
    return line


def matches(known: User | None, password: str) -> bool:
    """Whether the password is that of the user. Takes about the same time for a name that nobody has."""
    try:
        Argon2id.verify_phc_encoded(password.encode(errors="surrogatepass"), (known or _NOBODY).phc)
    except (InvalidKey, ValueError):
        return False
    return known is not None


_NOBODY: Final = user(line_of("nobody", "viewer", os.urandom(16).hex()))
