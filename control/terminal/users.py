"""Users as commands name them: numbers, or text that a hash turns into numbers."""

from muster_server.control.cluster import specs
from muster_server.control.errors import USAGE, UserError
from muster_server.control.terminal.found import Target
from muster_server.plane import users
from muster_server.plane.spec import SpecError, secret


def user_of(where: Target, text: str) -> int:
    """The number of a user that is named by number or text. Raises `UserError`: it is neither, or the key that hashes
    text is missing."""
    if text in {"0", "1"}:
        return int(text)
    try:
        users.check_user(text)
        if text.isascii() and text.isdigit():
            return int(text)
        return users.user_of(text, secret(specs.names_file(where.config()), 16))
    except (ValueError, SpecError) as error:
        raise UserError(f"invalid user {text!r}: {error}", USAGE) from None
