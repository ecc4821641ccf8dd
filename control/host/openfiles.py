"""The number of files that a supervisor of nodes needs to have open, and the limit for it."""

import resource
from typing import Final

from muster_server.control.errors import UserError

FILES: Final = 32
FILES_EACH: Final = 8
"""Open files of a supervisor, and further ones for each node, doubled; with fewer, libuv aborts or a start fails
midway."""
NODES: Final = 4
"""Nodes of the smallest instance. A command without nodes requests as many files, so that its error names one limit
that is enough for all commands."""


def files_wanted(nodes: int) -> int:
    """The number of files that the supervisor of this many nodes may have open."""
    return FILES + FILES_EACH * nodes


def enough_files(nodes: int = NODES) -> None:
    """Raise the limit for this process and its children. Raises `UserError` if that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files_wanted(nodes)
    if resource.RLIM_INFINITY != hard < wanted:
        raise UserError(f"the limit of {hard} open files is too low; raise it: ulimit -n {wanted}")
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
