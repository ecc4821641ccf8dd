"""A log blocks nobody: the program goes on when nobody reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENT_S

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
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=PATIENT_S, check=False)


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


LONG = """
import sys
from muster_server.control.node import logs
log = logs.configure("info", "json", role=sys.argv[1])
for number in range(300):
    text = "<" + "\\n" * 20 * number + ">"
    log.info("something long happened", number=number, first="a" * 3_000, text=text, many=["x"] * number)
print(logs.lost(), "lost", flush=True)
"""


@pytest.mark.parametrize("shared", ["pipe", "file"])
def test_long_lines_of_processes_that_write_to_one_place_stay_whole(tmp_path: Path, shared: str) -> None:
    """Found: a line came in pieces of 4,096 bytes, and another process wrote between two of them."""
    file = tmp_path / "log"
    with file.open("ab") as stream:
        if shared == "pipe":
            copying = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=stream)
            theirs = copying.stdin
        else:
            theirs = stream
        assert theirs is not None
        writing = [subprocess.Popen([sys.executable, "-c", LONG, name], stderr=theirs) for name in ("one", "two")]
        assert [process.wait(PATIENT_S) for process in writing] == [0, 0]
        if shared == "pipe":
            copying.communicate(timeout=PATIENT_S)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["role"] for line in lines} == {"one", "two"}
    texts = [line["text"] for line in lines]
    assert all(text[:1] + text[-1:] == "<>" for text in texts), "both ends stay"
    if shared == "pipe":  # lines that find it full are lost whole
        assert max(map(len, file.read_bytes().splitlines(keepends=True))) <= 4_096
        assert any("[…]" in text for text in texts)
    else:
        assert len(lines) == 600
        assert max(map(len, texts)) == 2 + 20 * 299


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
