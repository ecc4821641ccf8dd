"""The template process for nodes: it has imported all that a node needs, and forks for each start.

So a start takes a fraction of the processor time of a Python that imports everything again, and nodes share memory.
`control/cluster/template.py` sends it requests through a socket. It knows no role, and nothing of the life of a node: a
node is a child of the requesting process, which must adopt orphans at that time (`PR_SET_CHILD_SUBREAPER`).
"""

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from muster_server.control.node import memory

PR_SET_PDEATHSIG: Final = 1
OPTION: Final = "--template"
"""With this option a node's program is a template, and its standard input is the socket of requests."""
ASKED: Final = 0
FIRST: Final = 3
"""The first descriptor after the standard streams."""
STREAMS: Final = 2
"""Descriptors of a request: standard input and output in one, and standard error."""
GO: Final = b"1"
REQUEST_MAX: Final = 1 << 14
"""Limit of a request in bytes: a name, and a few arguments."""


class Start(msgspec.Struct, frozen=True):
    """A request for a node. The answer is its process id as decimal text."""

    name: str
    """The name that `ps` shows."""
    words: list[str]


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; end now if the parent has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def started(words: Sequence[str], load: Callable[[Sequence[str]], None]) -> Sequence[str]:
    """Return the arguments of a node. With `--template` it returns in each forked node, and never in the template.

    `load` imports what a node with these arguments needs.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(OPTION, action="store_true")
    template, _ = parser.parse_known_args(words)
    if not template.template:
        return words
    parser.add_argument("--parent", type=int, required=True)
    template = parser.parse_args(words)
    die_with(template.parent)
    os.closerange(FIRST, os.sysconf("SC_OPEN_MAX"))  # all other descriptors that this program inherited
    with socket.socket(fileno=os.dup(ASKED)) as asked:
        return _served(asked, load)


def _served(asked: socket.socket, load: Callable[[Sequence[str]], None]) -> Sequence[str]:
    """Fork for each request until the other end closes."""
    while True:
        message, streams, _, _ = socket.recv_fds(asked, REQUEST_MAX, STREAMS)
        if not message:
            os._exit(0)
        start = msgspec.json.decode(message, type=Start)
        load(start.words)
        memory.freeze()  # a garbage collection in a node would copy shared memory
        pid, going = _forked()
        if not pid:
            _become(start.name, streams)
            return start.words
        for each in streams:
            os.close(each)
        asked.send(b"%d" % pid)
        os.write(going, GO)
        os.close(going)


def _forked() -> tuple[int, int]:
    """Fork a process whose parent has ended, so it is an orphan at once.

    Returns its process id, and the pipe from which it waits for `GO`. In the new process returns zeros, once `GO` came.
    """
    told, telling = os.pipe()
    waiting, going = os.pipe()
    if middle := os.fork():
        os.close(telling)
        os.close(waiting)
        with open(told, "rb") as stream:
            said = stream.read()
        os.waitpid(middle, 0)  # from now on the requesting process is the node's parent
        if not said:
            raise ChildProcessError("too many processes; raise the limit (ulimit -u) or stop some")
        return int(said), going
    os.close(told)
    os.close(going)
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid:
        os.write(telling, b"%d" % pid)
        os._exit(0)
    os.close(telling)
    if os.read(waiting, 1) != GO:  # the requesting process did not get its id
        os._exit(1)
    os.close(waiting)
    return 0, 0


def _become(name: str, streams: Sequence[int]) -> None:
    """Replace the standard streams, and leave the session of the template."""
    os.setsid()
    both, errors = streams
    for number, each in ((0, both), (1, both), (2, errors)):
        os.dup2(each, number)
    for each in streams:
        os.close(each)
    with contextlib.suppress(OSError, ValueError, IndexError):
        _show(name)


def _show(name: str) -> None:
    """Write the node's name over the arguments of the template, which `ps` would show for all nodes."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, proc(5)
    text = f"muster {name}".encode()[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
    sys.argv = [sys.argv[0], name]
