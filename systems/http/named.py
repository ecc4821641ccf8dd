"""Users as requests name them: numbers, or text that a hash turns into numbers. Knows no route."""

from collections.abc import Sequence

from muster_server.plane.users import is_hashed
from muster_server.systems.http.access import Caller
from muster_server.systems.http.problems import Problem


def users_of(caller: Caller, names: Sequence[str], code: str) -> list[int]:
    """The numbers of users that a request names. Raises `Problem` with this code."""
    try:
        return [int(name) if name in {"0", "1"} else caller.access.user_of(name) for name in names]
    except ValueError as error:
        raise Problem(code, f"users: {error}"[:400]) from None


def once(users: Sequence[int], names: Sequence[str]) -> dict[int, str]:
    """Each user once, in the order of the request, with the first of its names there."""
    first: dict[int, str] = {}
    for user, name in zip(users, names, strict=True):
        first.setdefault(user, name)
    return first


def needs_whole(name: str) -> bool:
    """Whether no pattern of first digits may match this user: a text, or a number that may be the hash of one."""
    return name[:1].isdigit() and (not name.isdigit() or is_hashed(name))
