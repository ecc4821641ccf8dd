"""How many files the supervisor of so many nodes has open, and that the kernel lets it."""

import resource
from typing import Final

from control.errors import UserError

FILES: Final = 32
FILES_EACH: Final = 8
"""Open at once in a supervisor, and more for each node, twice; below, libuv aborts or raises in the midst of its start."""


def files_wanted(nodes: int) -> int:
    """How many may have to be open at once in the supervisor of so many nodes."""
    return FILES + FILES_EACH * nodes


def enough_files(nodes: int = 1) -> None:
    """Have the kernel let this process, and its children, open enough at once. Raises `UserError` where it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files_wanted(nodes)
    if resource.RLIM_INFINITY != hard < wanted:
        raise UserError(f"only {hard} files may be open here at once; allow more: ulimit -n {wanted}")
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
