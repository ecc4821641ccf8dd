"""A user's mistakes against a real instance: one clear line and the right exit code, never a traceback."""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import muster
from tests import strikes
from tests.faults.conftest import Make
from tests.faults.instance import APART, MUSTER, ROOT, Instance, configuration
from tests.together import together
from tests.waiting import PATIENT_S


def run(instance: Instance, *words: str, stdin: bytes = b"") -> tuple[int, str]:
    """One command to its end: exit code, and stderr, which must be the only thing it says."""
    done = instance.ran(*words, stdin=stdin, seconds=PATIENT_S)
    assert done.stdout == b"", done.stdout
    return done.returncode, done.stderr.decode()


def run_under(under: str, instance: Instance, *words: str, stdin: bytes = b"", **environment: str) -> tuple[int, str]:
    """The same from its start, after the shell did `under`."""
    done = subprocess.run(
        ["sh", "-c", f'{under}; exec "$@"', "sh", *MUSTER, *words],
        cwd=ROOT,
        env=instance.environment | environment,
        input=stdin,
        capture_output=True,
        timeout=PATIENT_S,
        check=False,
    )
    assert done.stdout == b"", done.stdout
    return done.returncode, done.stderr.decode()


def check_line(said: str, *wanted: str) -> None:
    """It is one line, and contains these."""
    lines = said.splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("muster: ")
    for text in wanted:
        assert text in lines[0]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One instance for all mistakes that do not change it."""
    instance = Instance(tmp_path_factory.mktemp("mistakes"), configuration(up=APART, log={"level": "warning"}))
    with instance.running():
        yield instance


BAD_NAMES = [
    (*words.split(), name)
    for words in ("sub", "pub", "rooms show")
    for name in ("", "two\nlines", "x" * 161, ":room", "NAMESPACE?:room", "\udcff")
]


@pytest.fixture(scope="module")
def badly_named(running: Instance) -> Mapping[tuple[str, ...], tuple[int, str]]:
    return together(lambda *words: run(running, *words, stdin=b"line\n"), BAD_NAMES)


@pytest.mark.parametrize("words", BAD_NAMES)
def test_a_bad_room_name(badly_named: Mapping[tuple[str, ...], tuple[int, str]], words: tuple[str, ...]) -> None:
    code, said = badly_named[words]
    check_line(said, "name")
    assert code == 2


def test_a_line_that_is_too_long_is_named(running: Instance) -> None:
    code, said = run(running, "pub", "room", stdin=b"short\n" + b"x" * 65_537 + b"\nnever\n")
    check_line(said, "line 2", "65537", "65536")
    assert code == 1


def test_the_longest_line_is_taken(running: Instance) -> None:
    code, said = run(running, "pub", "room", stdin=b"x" * 65_536 + b"\n")
    assert (code, said) == (0, "published 1 to room\n")


def test_a_traced_message_that_is_too_long(running: Instance) -> None:
    code, said = run(running, "trace", "room", "--message", "x" * 65_537)
    check_line(said, "--message", "65537", "65536")
    assert code == 2


async def test_what_is_typed_and_is_no_text_is_sent_as_it_is(running: Instance) -> None:
    async with muster.connect(running.folder.path) as client, client.join("typed") as room:
        told = aiter(room)
        for words in (("command", "typed"), ("trace", "typed", "--message")):
            telling = running.command(*words, "\udcff\udcc3(", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            async with asyncio.timeout(PATIENT_S):
                item = await anext(told)
            assert isinstance(item, muster.Message | muster.Command)
            assert item.data == b"\xff\xc3("
            _, errors = await asyncio.to_thread(telling.communicate, timeout=PATIENT_S)
            assert (telling.returncode, errors) == (0, b"")


def test_a_full_disk_takes_what_sub_prints_no_more(running: Instance) -> None:
    with Path("/dev/full").open("wb") as full:
        subscriber = running.command("sub", "full", "--count", "1", stdout=full, stderr=subprocess.PIPE)
        assert subscriber.stderr is not None
        assert subscriber.stderr.readline() == b"joined full\n"
        assert run(running, "pub", "full", stdin=b"line\n")[0] == 0
        check_line(subscriber.communicate(timeout=PATIENT_S)[1].decode(), "No space left on device")
    assert subscriber.returncode == 1


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_standard_stream_may_be_closed(running: Instance, closed: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *MUSTER, "pub", "closed"]
    assert subprocess.run(command, cwd=ROOT, env=running.environment, input=b"line\n", check=False).returncode == 0


FEW_FILES = [(files, *words) for words in (("up",), ("sub", "few"), ("pub", "few")) for files in ("6", "8", "12", "24")]


@pytest.fixture(scope="module")
def with_few_files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, ...], tuple[int, str]]:
    def said(files: str, *words: str) -> tuple[int, str]:
        instance = Instance(tmp_path_factory.mktemp("few"), configuration(database={"url": "none"}))
        return run_under(f"ulimit -n {files}", instance, *words, stdin=b"line\n")

    return together(said, FEW_FILES)


@pytest.mark.parametrize("words", FEW_FILES, ids=" ".join)
def test_too_few_files_may_be_open(
    with_few_files: Mapping[tuple[str, ...], tuple[int, str]], words: tuple[str, ...]
) -> None:
    code, said = with_few_files[words]
    check_line(said, f"limit of {words[0]} open files", "ulimit -n 64")
    assert code == 1


def test_a_soft_limit_on_open_files_is_raised(running: Instance) -> None:
    assert run_under("ulimit -S -n 12", running, "pub", "few", stdin=b"line\n") == (0, "published 1 to few\n")


@pytest.mark.parametrize("word", ["sub", "pub"])
def test_a_wrong_token(running: Instance, word: str) -> None:
    token = running.folder.token
    right = token.read_bytes()
    token.write_bytes(b"not the token\n")
    try:
        code, said = run(running, word, "room", stdin=b"line\n")
    finally:
        token.write_bytes(right)
    check_line(said, "token is wrong")
    assert code == 1


def test_a_second_instance_in_the_same_folder(running: Instance) -> None:
    code, said = run(running, "up")
    check_line(said, "already running", str(running.folder.path))
    assert code == 1


def test_a_room_that_nobody_is_in(running: Instance) -> None:
    code, said = run(running, "rooms", "show", "nobody")
    check_line(said, "no room 'nobody'", "muster rooms ls")
    assert code == 1


def test_an_unreadable_token(running: Instance) -> None:
    token = running.folder.token
    right = token.read_bytes()
    token.unlink()
    try:
        code, said = run(running, "sub", "room")
    finally:
        token.write_bytes(right)
    check_line(said, str(token), "cannot be read")
    assert code == 69


@pytest.mark.parametrize("key", ["gateway.bind", "gateway.link_bind", "proxy.bind", "broker.bind", "router.bind"])
def test_an_address_in_use(make: Make, key: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        role, _, name = key.partition(".")
        code, said = run(make(**{role: {name: address}}), "up")
    check_line(said, key, address, "in use")
    assert code == 1


def test_an_address_of_another_machine(make: Make) -> None:
    code, said = run(make(gateway={"bind": "192.0.2.1:7400"}), "up")
    check_line(said, "gateway.bind", "192.0.2.1:7400")
    assert code == 1


def test_an_unknown_key(make: Make) -> None:
    instance = make(gateway={"arena_mb": 3})
    for words in (["up"], ["status"], ["sub", "room"], ["config", "check"]):
        code, said = run(instance, *words)
        check_line(said, str(instance.config), "gateway.arena_mb", "did you mean gateway.arena_mib?")
        assert code == 78


def test_a_file_that_is_none(make: Make, tmp_path: Path) -> None:
    code, said = run(make(), "up", "--config", str(tmp_path))
    check_line(said, str(tmp_path), "cannot be read")
    assert code == 78


def test_a_cluster_secret_that_is_none(make: Make, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not hex")
    code, said = run_under(":", make(cluster={"secret_file": str(secret)}), "up", MUSTER_LOG__LEVEL="error")
    assert "Traceback" not in said
    check_line(said, str(secret), "is not hex")
    assert code in {1, 78}


def test_no_instance(make: Make) -> None:
    for words in (["sub", "room"], ["pub", "room"], ["status"], ["rooms", "ls"]):
        code, said = run(make(), *words, stdin=b"line\n")
        check_line(said, "no instance runs here", "muster up")
        assert code == 69


def test_an_instance_that_was_killed(make: Make) -> None:
    instance = make()
    with instance.running() as up:
        pids = instance.pids()
        strikes.kill(up.pid)
        up.wait(PATIENT_S)
        deadline = time.monotonic() + PATIENT_S
        while any(os.path.exists(f"/proc/{pid}") for pid in pids.values()):
            assert time.monotonic() < deadline, "a role outlived its parent"
            time.sleep(0.02)
        for words in (["sub", "room"], ["pub", "room"], ["status"]):
            code, said = run(instance, *words, stdin=b"line\n")
            check_line(said, "died", "muster up")
            assert code == 69
    with instance.running():  # the dead instance's files are in nobody's way
        assert run(instance, "pub", "room", stdin=b"line\n") == (0, "published 1 to room\n")


@pytest.mark.soak
def test_a_standing_gateway_is_a_time_out_and_not_a_hang(make: Make) -> None:
    instance = make()
    with instance.running():
        strikes.stop(instance.process("gateway").pid)
        began = time.monotonic()
        code, said = run(instance, "sub", "room")
        assert time.monotonic() - began < PATIENT_S
        check_line(said, "gateway")
        assert code == 75


async def test_a_command_does_without_the_role_that_it_does_not_use(running: Instance) -> None:
    async with running.stopped("gateway"):
        assert run(running, "pub", "alone", stdin=b"line\n") == (0, "published 1 to alone\n")
    async with running.stopped("proxy"):
        reader = running.command("sub", "alone", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert reader.stderr is not None
        assert reader.stderr.readline() == b"joined alone\n"
        reader.send_signal(signal.SIGINT)
        reader.communicate(timeout=PATIENT_S)
        assert reader.returncode == 0
