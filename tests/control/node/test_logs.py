"""A log blocks nobody: the program goes on when nobody reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LOGS = """
from muster_server.control.node import logs
log = logs.configure("info", "json", role="broker")
for number in range(3_000):
    log.info("something happened", number=number, text="\\udcff" + "x" * number)
print(logs.lost(), "lost", flush=True)
"""


LIBRARIES = """
import asyncio, logging
from muster_server.control.node import logs
logs.configure("info", "json", role="proxy")
logs.configure("info", "json", role="broker")
async def fail():
    asyncio.get_running_loop().create_future().set_exception(ValueError("seen by nobody"))
asyncio.run(fail())
for number in range(3_000):
    logging.getLogger("library").warning("item %d" + "x" * number, number)
logging.getLogger("library").log(35, "%d", "none")
print(logs.lost(), "lost", flush=True)
"""


def run(stderr: int, script: str = LOGS) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=20, check=False)


def test_each_line_is_one_document(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("wb") as stream:
        assert run(stream.fileno()).stdout == "0 lost\n"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["number"] for line in lines] == list(range(3_000))
    assert lines[-1]["event"] == "something happened"
    assert lines[-1]["role"] == "broker"


@pytest.mark.parametrize("reader", ["stands still", "has gone", "has a full disk"])
def test_nobody_need_take_it(reader: str) -> None:
    ours, theirs = os.pipe()
    if reader == "has a full disk":
        os.close(theirs)
        theirs = os.open("/dev/full", os.O_WRONLY)
    if reader == "has gone":
        os.close(ours)
    done = run(theirs)
    os.close(theirs)
    taken = 0
    if reader == "stands still":
        with os.fdopen(ours, "rb") as stream:
            taken = stream.read().count(b"\n")
    assert (done.returncode, done.stdout) == (0, f"{3_000 - taken} lost\n")


def test_what_libraries_say_is_one_document_each_too(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("wb") as stream:
        assert run(stream.fileno(), LIBRARIES).stdout == "0 lost\n"
    first, *items, last = [json.loads(line) for line in file.read_text().splitlines()]
    assert (first["logger"], first["level"], first["role"]) == ("asyncio", "error", "broker")
    assert "ValueError: seen by nobody" in first["exception"]
    assert [line["event"] for line in items] == [f"item {number}{'x' * number}" for number in range(3_000)]
    assert (last["event"], last["level"], last["logger"]) == ("%d", "warning", "library")


def test_what_libraries_say_need_nobody_take_either() -> None:
    ours, theirs = os.pipe()
    done = run(theirs, LIBRARIES)
    os.close(theirs)
    with os.fdopen(ours, "rb") as stream:
        taken = stream.read().count(b"\n")
    assert (done.returncode, done.stdout) == (0, f"{3_002 - taken} lost\n")


BEGINS = """
import runpy, sys
try:
    runpy.run_module("muster_server.systems.node", run_name="__main__")
except SystemExit:  # it is told no spec
    print(*sys.modules)
"""


def test_a_node_begins_without_what_shows_tracebacks_in_colour() -> None:
    read_in = subprocess.run(
        [sys.executable, "-c", BEGINS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    ).stdout.split()
    assert "muster_server.control.node.process" in read_in
    assert not {"rich", "pygments"} & set(read_in)
