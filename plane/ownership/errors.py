"""The errors of stores, and of owners: one set for Redis, SQL, logs, and the clients of nodes.

Owns no text: the text is one line, without passwords. It must not know any library of a store.
"""

from typing import ClassVar


class StoreError(Exception):
    """The store failed, or refused. The text is one line."""

    later: ClassVar[bool] = False
    """Whether the same call may succeed later."""


class Fenced(StoreError):
    """A later owner has it. This owner can write nothing more."""


class Away(StoreError):
    """The store does not answer. The call may have been carried out."""

    later = True


class Full(StoreError):
    """No room, and nothing was written. Try again when there is room."""

    later = True


class WentBack(StoreError):
    """The store lacks what this owner wrote: it came back empty, or older. Nothing was written."""
