"""The errors of a database, in one line and without the password.

By guilt: `Refused` needs an operator (password, name, a schema of a newer program); `Unavailable` may pass by itself.
The program retries after both, since either can be corrected while it runs.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from muster_server.plane.causes import HIDDEN, cause
from muster_server.plane.ownership.errors import StoreError

_LINE_MAX: Final = 300


class DatabaseError(StoreError):
    """The database failed. The text is one line."""


class Refused(DatabaseError):
    """The database fails until an operator corrects the cause."""


class Unavailable(DatabaseError):
    """The database fails at the moment."""

    later = True


class BadValue(Refused):
    """The database cannot store a value: too long, out of range, or with an unsupported character."""


class Busy(Unavailable):
    """A conflict with another transaction: try again at once."""


def told(error: BaseException) -> str:
    """Format an error as one line; errors of other libraries begin with their type."""
    text = " ".join(str(error).split())[:_LINE_MAX]
    return text if isinstance(error, DatabaseError) else f"{type(error).__name__}: {text}"


# Error numbers of MySQL, states of PostgreSQL, texts of SQLite.
_BUSY: Final = frozenset({1205, 1213, "40001", "40P01", "55P03", "database is locked"})
_BAD_VALUE: Final = frozenset({1048, 1153, 1264, 1265, 1292, 1366, 1406, 3140, 3819, 4025})
_DATA: Final = ("22", "23", "54")
"""Classes of PostgreSQL's states: data exception, violated constraint, program limit."""
_REFUSED: Final = frozenset(
    {1044, 1045, 1049, 1142, 1698, "28000", "28P01", "3D000", "42501", "file is not a database"}
)


def translated(
    error: BaseException, where: str, password: str | None, hidden: Iterable[str | None] = ()
) -> DatabaseError:
    """Convert any error of SQLAlchemy, a driver or the network to a `DatabaseError` that names `where`.

    The driver's text goes through `plane.causes.shown`, which removes the `hidden` words too.
    """
    causes = list(_causes(error))
    codes = {code for each in causes for code in _codes(each)}
    text = cause(causes[-1], hidden)
    if any(isinstance(each, TimeoutError) for each in causes):
        text = "no answer in time"
    if password:
        text = text.replace(password, HIDDEN)
    if codes & _BAD_VALUE or any(map(_is_data, causes)):
        kind: type[DatabaseError] = BadValue
    else:
        kind = Busy if codes & _BUSY else Refused if codes & _REFUSED else Unavailable
    return kind(f"{where}: {text[:_LINE_MAX]}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Iterate from an error to its causes."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = getattr(each, "orig", None) or each.__cause__


def _is_data(error: BaseException) -> bool:
    """Whether a value caused the error: by the state, or because the driver cannot send the value."""
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return state[:2] in _DATA
    return isinstance(error, OverflowError | UnicodeError) or type(error).__name__ in {"DataError", "IntegrityError"}


def _codes(error: BaseException) -> Iterator[Any]:
    yield getattr(error, "sqlstate", None)
    if error.args:
        yield error.args[0]
