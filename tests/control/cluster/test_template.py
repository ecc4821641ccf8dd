"""Nodes are forked from one process that has loaded them, as children of the process that asked."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import IO

import pytest

from muster_server.control.cluster.template import Node, Template
from muster_server.control.errors import UserError
from tests import strikes
from tests.waiting import until

PROGRAM = """
import os, sys, threading
from muster_server.control.node.template import started
words = started(sys.argv[1:], lambda words: None)
exec(words[0])
"""
STAYS = "print('here', flush=True); sys.stdin.read()"


class Watched(Template):
    """Knows the nodes that it started."""

    def __init__(self) -> None:
        super().__init__((sys.executable, "-c", PROGRAM))
        self.nodes: list[Node] = []

    async def start(self, name: str, words: Sequence[str], stderr: IO[bytes] | None = None) -> Node:
        self.nodes.append(await super().start(name, words, stderr))
        return self.nodes[-1]


@pytest.fixture
async def template() -> AsyncIterator[Template]:
    """All its nodes end with the test."""
    made = Watched()
    yield made
    await end(*made.nodes)
    await made.close()


async def said(node: Node) -> str:
    """All that it prints until it ends."""
    return (await node.stdout.read()).decode()


async def end(*nodes: Node) -> None:
    for node in nodes:
        with contextlib.suppress(ProcessLookupError):
            node.kill()
        await node.wait()


async def test_a_node_is_a_child_with_words_and_streams_of_its_own_and_nothing_else_open(
    template: Template, tmp_path: Path
) -> None:
    program = "print(os.getppid(), os.getsid(0) == os.getpid(), *words[1:], len(os.listdir('/proc/self/fd')))"
    program += "; print('e', file=sys.stderr)"
    nodes: list[Node] = []
    for name in ("one", "two"):
        with (tmp_path / name).open("wb") as errors:
            nodes.append(await template.start(name, [program, name], errors))
    for name, node in zip(("one", "two"), nodes, strict=True):
        assert await said(node) == f"{os.getpid()} True {name} 4\n", "streams, and the folder listed"
        assert await node.wait() == 0
        assert (tmp_path / name).read_text() == "e\n"


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(78)", 78), ("os.kill(os.getpid(), 9)", -9), ("", 0)])
async def test_the_exit_code_of_a_node_is_known(template: Template, program: str, code: int) -> None:
    node = await template.start("node", [program])
    assert await node.wait() == node.returncode == code
    with pytest.raises(ProcessLookupError):
        node.terminate()


async def test_a_node_is_told_to_end(template: Template) -> None:
    node = await template.start("node", [STAYS])
    assert await node.stdout.readline() == b"here\n"
    node.send_signal(signal.SIGTERM)
    assert await node.wait() == -signal.SIGTERM


async def test_a_node_that_closes_its_streams_has_not_ended_yet(template: Template, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "waits")
    closes = "os.write(1, b'here'); os.close(0); os.close(1); open(words[1]).read()"
    node = await template.start("node", [closes, str(tmp_path / "waits")])
    assert await said(node) == "here"
    assert node.returncode is None
    node.kill()
    assert await node.wait() == -signal.SIGKILL


async def test_nodes_outlive_their_template_and_the_next_one_has_a_new_template(template: Template) -> None:
    first = await template.start("first", [STAYS])
    assert await first.stdout.readline() == b"here\n"
    assert template._process is not None
    strikes.kill(template._process.pid)
    second = await template.start("second", [STAYS])
    assert await second.stdout.readline() == b"here\n"
    assert (first.returncode, second.returncode) == (None, None)


async def test_a_node_ends_when_its_starter_closes_its_end(template: Template) -> None:
    node = await template.start("node", [STAYS])
    assert await node.stdout.readline() == b"here\n"
    assert node._transport is not None
    node._transport.close()
    assert await node.wait() == 0


def shown(node: Node) -> bytes:
    """As `ps` has it."""
    return Path(f"/proc/{node.pid}/cmdline").read_bytes()


async def test_ps_shows_the_name_of_a_node(template: Template) -> None:
    for name in ("gateway-17", "n" * 1_000):
        node = await template.start(name, [STAYS])
        await until(lambda: shown(node).startswith(b"muster"))  # noqa: B023 - it is awaited here
        line = shown(node)
        assert line.rstrip(b"\0") == f"muster {name}".encode()[: len(line) - 1]
        await end(node)


async def test_nodes_that_start_at_once_are_all_there(template: Template) -> None:
    nodes = await asyncio.gather(*(template.start(f"n{number}", [STAYS]) for number in range(20)))
    assert len({node.pid for node in nodes}) == 20


async def test_a_program_that_cannot_start_nodes_says_so() -> None:
    template = Template((sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(UserError, match="the template process that starts nodes ended with code 3"):
        await template.start("node", [STAYS])
    await template.close()
