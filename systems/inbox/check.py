"""Checks of the section of inboxes beyond one key's type."""

from collections.abc import Callable, Iterator, Sequence

from muster_server.control.config.options import Config
from muster_server.systems.inbox.options import SQLITE
from muster_server.systems.inbox.shapes import ROLE
from muster_server.systems.inbox.system import lacks

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, and their mistakes."""
    options = config.section(ROLE)
    if config.runs("inbox") and (text := lacks(config.section)):
        yield ("systems", "enabled"), text
    if options.database not in {"", SQLITE} and (text := _mistake(options.database)):
        yield (ROLE, "database"), text
    if options.mail != "never" and not options.mail_topic:
        yield (ROLE, "mail_topic"), "missing; inbox.mail needs the topic that gets the mails"
    if options.mail_topic and config.runs("inbox") and not config.runs("messages"):
        yield (ROLE, "mail_topic"), "mails go to a topic of delayed messages; run the system messages too"


def _mistake(url: str) -> str | None:
    from muster_server.plane.database.url import mistake  # imports SQLAlchemy, only here

    return mistake(url, "inbox.database_password_file")
