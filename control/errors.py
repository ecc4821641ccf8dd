"""Errors of a user or of the environment: one clear line (what, where, how to mend) and an exit code, never a
traceback."""

from typing import Final

FAILURE: Final = 1
USAGE: Final = 2
NO_MEMBER: Final = 3
EXPIRED: Final = 4
"""Exit codes of the outcomes of `muster command` and `muster rooms request`; `muster rooms end` has the first."""
ALREADY_FIRED: Final = 5
UNKNOWN_MESSAGE: Final = 6
"""Exit codes of the outcomes of `muster delay`, which nothing else uses."""
UNAVAILABLE: Final = 69
TRY_LATER: Final = 75
BAD_CONFIG: Final = 78


class UserError(Exception):
    """Ends the command with `message` on stderr and `exit_code`."""

    exit_code: int = FAILURE

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        if exit_code is not None:
            self.exit_code = exit_code


class ConfigError(UserError):
    """A key, value or file of the configuration is wrong."""

    exit_code = BAD_CONFIG


class NotRunning(UserError):
    """No instance runs here."""

    exit_code = UNAVAILABLE
