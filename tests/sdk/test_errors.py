"""Mistakes and misfortune: each has a type, a code, one clear line, and an end in time."""

import asyncio
import contextlib
import fcntl
import gc
import json
import os
import pickle
import socket
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import muster
import muster.testing
from muster.instance import default_folder, find
from muster.turns import Engine
from tests.sdk.record import record
from tests.waiting import PATIENT_S, until

KEY = "11" * 32
SOMEBODY = 12_345
"""Another user, if this one is root, who may read anybody's files."""


@pytest.fixture
def nobody() -> tuple[str, int, str]:
    """An address where nobody answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        return "127.0.0.1", taken.getsockname()[1], KEY


async def test_a_wrong_token_is_refused(address: muster.testing.Instance) -> None:
    with pytest.raises(muster.Refused, match="the token is wrong") as told:
        await muster.connect(address, token="wrong")
    assert (told.value.code, told.value.retry) == ("bad_credential", False)


async def test_a_client_that_nobody_closes_is_collected_and_named(address: muster.testing.Instance) -> None:
    """Found: it stayed for ever with its descriptors, a member of its rooms, and nothing told."""

    async def forgets() -> int:
        client = await muster.connect(address)
        await client.join("r")
        descriptor = client.engine.fd()
        del client
        gc.collect()
        return descriptor

    with pytest.warns(ResourceWarning, match=r"unclosed client, opened at .*test_errors\.py:\d+"):
        descriptor = await forgets()

    def closed() -> bool:
        try:
            os.fstat(descriptor)
        except OSError:
            return True
        return False

    await until(closed)
    await until(lambda: address.status("gateway")["gauges"]["members"] == 0)


async def test_a_token_that_is_no_longer_good_ends_readers_and_publishers() -> None:
    tokens = {b"mine": 5}
    async with muster.testing.instance(tokens=tokens) as address, muster.connect(address) as client:
        room = await client.join("r")
        await client.publish("r", b"x")
        message = await anext(room)
        assert isinstance(message, muster.Message)
        assert message.sender == 5
        address._tokens.clear()
        address.restart("gateway")
        address.restart("proxy")
        with pytest.raises(muster.Refused, match="bad_credential"):
            async with asyncio.timeout(PATIENT_S):
                await anext(room)
        with pytest.raises(muster.Refused, match="bad_credential"):
            async with asyncio.timeout(PATIENT_S):
                await client.publish("r", b"y")
        async with asyncio.timeout(PATIENT_S):
            for call in (client.join("another"), client.publish("another", b"z"), client.writable("another")):
                with pytest.raises(muster.Refused, match="bad_credential"):
                    await call
        with pytest.raises(muster.Refused, match="bad_credential"):
            client.publish_nowait("another", b"z")


async def test_a_refusal_of_what_was_taken_is_told_though_nobody_waits_any_more() -> None:
    tokens = {b"mine": 5}
    async with muster.testing.instance(tokens=tokens) as address:
        client = await muster.connect(address)
        assert await client.publish("r", b"x")
        address.stop("proxy")
        while client.publish_nowait("r", b"y"):
            pass
        with pytest.raises(muster.TimedOut):
            await client.writable("r", timeout=0.05)
        address._tokens.clear()
        address.start("proxy")
        await until(lambda: client._publishing._publications["default:r"].refused)
        with pytest.raises(muster.Refused, match="bad_credential"):
            await client.flush()
        await client.close()


async def test_commands_and_questions_that_no_proxy_takes_end_at_once() -> None:
    tokens = {b"mine": 5}
    async with muster.testing.instance(tokens=tokens) as address:
        async with asyncio.timeout(PATIENT_S), muster.connect(address, proxies=()) as reader:
            for call in (reader.command("r", b"x", expires=60), reader.members("r", wait=60)):
                with pytest.raises(muster.Unavailable, match="no proxy"):
                    await call
        async with muster.connect(address, gateways=()) as client:
            address.stop("proxy")
            pending = [
                asyncio.ensure_future(client.command("r", b"x", expires=60)),
                asyncio.ensure_future(client.members("r", wait=60)),
            ]
            await asyncio.sleep(0)
            address._tokens.clear()
            address.start("proxy")
            async with asyncio.timeout(PATIENT_S):
                told = await asyncio.gather(*pending, return_exceptions=True)
            assert [getattr(error, "code", error) for error in told] == ["bad_credential"] * 2
            for call in (client.command("r", b"x", expires=60), client.members("r", wait=60)):
                with pytest.raises(muster.Refused, match="bad_credential"):
                    async with asyncio.timeout(PATIENT_S):
                        await call


async def test_an_error_that_is_told_again_keeps_nothing_of_the_times_before(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        await client.publish("r", b"x")
        await anext(room)
        address._tokens.clear()
        address.restart("gateway")
        address.restart("proxy")

        async def publish_nowait() -> None:
            client.publish_nowait("r", b"x")

        for call in (lambda: client.publish("r", b"x"), publish_nowait, lambda: anext(room)):
            told: list[muster.Refused] = []
            async with asyncio.timeout(PATIENT_S):
                while len(told) < 5:
                    try:
                        await call()
                        await asyncio.sleep(0)
                    except muster.Refused as error:
                        told.append(error)
            last = [len(traceback.extract_tb(error.__traceback__)) for error in told[1:]]
            assert len(set(map(id, told))) == 5
            assert len(set(last)) == 1, "the traceback is of the last time alone"


def test_a_refusal_names_its_limit_and_the_wait() -> None:
    told = str(muster.Refused("command", "rate_limited", 0.84))
    assert told.startswith(
        "command: too many commands or requests for members of this user (limit 1 per second unless "
    )
    assert told.endswith("command_rate differs) (rate_limited); try again in 0.8 s")
    assert str(muster.Refused("publish to r", "busy")).endswith("(busy); try again later")
    assert "1,024" in str(muster.Refused("join r", "too_much_history"))
    assert str(muster.Refused("join r", "not_allowed")).endswith("(not_allowed)")


async def test_a_join_that_waits_behind_the_rate_of_joins_says_so(address: muster.testing.Instance) -> None:
    """Found: it ended as `no answer`, though the gateway was there."""
    async with muster.connect(address, proxies=()) as client:
        for number in range(256):
            async with client.join(f"r{number}"):
                pass
        joins = (client.join(f"s{number}", timeout=1.0) for number in range(100))
        joined = await asyncio.gather(*joins, return_exceptions=True)
        late = [str(each) for each in joined if isinstance(each, muster.TimedOut)]
        why = "no answer in 1 s; a session joins 256 rooms at once, then 5 per second (rate_limited); try again"
        assert late, joined
        assert all(why in each for each in late), late
        address.stop("gateway")
        await until(lambda: not client.engine.is_ready(0))
        with pytest.raises(muster.TimedOut, match=r"the gateway does not answer[^;]*$"):
            await client.join("another", timeout=0.05)


async def test_json_is_published_as_it_is_read_and_what_is_none_is_told(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        assert await client.publish("r", json={"é": [1, None]})
        assert client.publish_nowait("r", json=None)
        messages = [await anext(room), await anext(room)]
        assert [each.data for each in messages if isinstance(each, muster.Message)] == [
            '{"é":[1,null]}'.encode(),
            b"null",
        ]
        assert [each.json() for each in messages if isinstance(each, muster.Message)] == [{"é": [1, None]}, None]
        for wrong, said in (
            ({"data": b"x", "json": 1}, "exclude each other"),
            ({}, "give data or json"),
            ({"json": {1, 2}}, "json: Object of type set"),
            ({"json": float("nan")}, "json: Out of range"),
        ):
            with pytest.raises(muster.Invalid, match=said):
                await client.publish("r", **wrong)
            with pytest.raises(muster.Invalid, match=said):
                client.publish_nowait("r", **wrong)


async def test_a_gap_names_its_room(address: muster.testing.Instance) -> None:
    async with muster.connect(address, buffer_bytes=1) as client, client.join("r") as room:
        for number in range(3):
            await client.publish("r", b"%d" % number)
        item = await anext(room)
        while not isinstance(item, muster.Gap):
            item = await anext(room)
        assert (item.reason, item.room) == ("reader", "r")


def test_an_error_goes_into_another_process_as_it_is() -> None:
    for error in (
        muster.Refused("publish to r", "busy"),
        muster.Refused("publish to r", "unknown"),
        muster.TimedOut("late"),
        muster.BadRoomName("no name"),
    ):
        other = pickle.loads(pickle.dumps(error))
        assert (type(other), str(other), other.code, other.retry) == (type(error), str(error), error.code, error.retry)


async def test_without_an_instance_connecting_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(muster.Unavailable, match=r"no instance runs here .*; start one: muster up") as told:
        await muster.connect(tmp_path)
    assert told.value.code == "unavailable"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x"}'])
async def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "instance.json").write_text(text)
    with pytest.raises(muster.Unavailable, match=r"instance\.json was written by another version"):
        await muster.connect(tmp_path)


async def test_an_instance_is_found_by_its_folder_and_a_dead_one_is_told(
    address: muster.testing.Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, address)
    monkeypatch.setenv("MUSTER_INSTANCE__DIR", str(tmp_path))
    async with muster.connect() as client:
        assert await client.publish("r", b"x")
    said = json.loads((tmp_path / "instance.json").read_text())
    (tmp_path / "instance.json").write_text(json.dumps({**said, "started": said["started"] - 1}))
    with pytest.raises(muster.Unavailable, match="died"):
        await muster.connect()


async def test_an_instance_of_another_pid_namespace_lives_while_its_folder_is_locked(
    address: muster.testing.Instance, tmp_path: Path
) -> None:
    record(tmp_path, address)
    file = tmp_path / "instance.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "started": 1, "pid_namespace": "pid:[1]"}))
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with muster.connect(tmp_path) as client:
            assert await client.publish("r", b"x")
    with pytest.raises(muster.Unavailable, match="died"):
        await muster.connect(tmp_path)
    (tmp_path / "lock").unlink()
    with pytest.raises(muster.Unavailable, match="died"):
        await muster.connect(tmp_path)


def test_the_default_folder_is_of_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_folder({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/muster")
    assert default_folder({}) == Path(f"/tmp/muster-{os.getuid()}")
    (tmp_path / "muster").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4_294_967_294)
    with pytest.raises(muster.Unavailable, match="belongs to another user"):
        find(environment={"XDG_RUNTIME_DIR": str(tmp_path)})


async def test_the_default_folder_is_no_link(
    address: muster.testing.Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    record(tmp_path / "real", address)
    (tmp_path / "muster").symlink_to("real")
    monkeypatch.delenv("MUSTER_INSTANCE__DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(muster.Unavailable, match="is a link"):
        await muster.connect()


async def test_a_record_of_somebody_else_names_no_file_but_of_theirs(
    address: muster.testing.Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, address)
    said = json.loads((tmp_path / "instance.json").read_text())
    assert find(tmp_path).token == address.token
    for file in (tmp_path / "instance.json", tmp_path / "token"):
        os.chown(file, os.getuid() or SOMEBODY, -1)
    monkeypatch.setattr(os, "getuid", lambda: 4_294_967_294)
    assert find(tmp_path).token == address.token, "their own token they may say"
    (tmp_path / "token").unlink()
    (tmp_path / "token").symlink_to("/proc/version")
    for named in (tmp_path / "token", "/proc/version"):
        (tmp_path / "instance.json").write_text(json.dumps({**said, "token_file": str(named)}))
        with pytest.raises(muster.Unavailable, match=f"{named} does not belong to the instance's user"):
            find(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"instance": "~nosuch/x"},
        {"instance": 5},
        {"gateways": [("127.0.0.1", "7400", KEY)], "token": "x"},
        {"gateways": [(b"127.0.0.1", 7400, KEY)], "token": "x"},
        {"proxies": [("127.0.0.1", 7400, 5)], "token": "x"},
        {"gateways": [("127.0.0.1", 7400, KEY)], "token": 5},
        {"instance": muster.Address((("127.0.0.1", 7400, KEY),), (), None)},  # type: ignore[arg-type]
    ],
)
async def test_what_is_no_instance_no_server_and_no_token_is_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(muster.Invalid):
        await muster.connect(**wrong)


def test_a_folder_in_the_home_of_nobody_is_told() -> None:
    with pytest.raises(muster.Invalid, match="invalid folder"):
        find(environment={"MUSTER_INSTANCE__DIR": "~nosuch/x"})


async def test_nobody_there_is_a_time_out_that_names_the_side(nobody: tuple[str, int, str]) -> None:
    with pytest.raises(
        muster.NothingListens, match=r"connect: nothing listens at .*, the address of the gateway"
    ) as told:
        await muster.connect(gateways=[nobody], token="x", timeout=0.3)
    assert (told.value.code, told.value.retry) == ("nothing_listens", True)
    assert isinstance(told.value, TimeoutError)


async def test_names_of_hosts_are_looked_up_without_holding_up_the_loop(
    address: muster.testing.Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()

    async def look_up(host: str, port: int, **_: Any) -> list[Any]:
        if host == "known.example":
            return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", port))]
        host.encode("idna")
        if host == "unknown.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await loop.create_future()  # type: ignore[no-any-return]

    monkeypatch.setattr(loop, "getaddrinfo", look_up)
    for host, ends in (
        ("unknown.example", muster.Unavailable),
        ("x" * 70, muster.Unavailable),
        ("slow.example", muster.TimedOut),
    ):
        with pytest.raises(ends) as told:
            await muster.connect(gateways=[(host, 7400, KEY)], token="x", timeout=0.1)
    assert str(told.value) == "connect: no answer in 0.1 s"
    proxies = [("known.example", port, key) for _, port, key in address.proxies]
    async with muster.connect(address, proxies=proxies) as client:
        await client.publish("r", b"x")
    with pytest.raises(muster.Invalid, match=r"invalid server"):
        await muster.connect(gateways=[("127.0.0.1", 7400)], token="x")  # type: ignore[list-item]


async def test_each_address_of_a_host_name_is_tried(
    address: muster.testing.Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`localhost` is `::1` first on most machines, and a gateway listens at 127.0.0.1."""

    async def look_up(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "localhost"
        return [
            (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    for gateways, proxies in ((True, False), (False, True), (True, True)):
        async with muster.connect(
            address,
            gateways=[("localhost", port, key) for _, port, key in address.gateways if gateways],
            proxies=[("localhost", port, key) for _, port, key in address.proxies if proxies],
            timeout=PATIENT_S,
        ) as client:
            if proxies:
                await client.publish("r", b"x")


async def test_calls_end_in_time_while_a_server_is_gone(address: muster.testing.Instance) -> None:
    async with asyncio.timeout(PATIENT_S):
        client = await muster.connect(address, timeout=2)
        address.stop("proxy")
        address.stop("gateway")
        with pytest.raises(muster.TimedOut, match=r"publish to r: no answer in 0\.1 s"):
            await client.publish("r", b"x", timeout=0.1)
        with pytest.raises(muster.TimedOut, match=r"join r: no answer in 0\.1 s"):
            await client.join("r", timeout=0.1)
        while client.publish_nowait("r", bytes(1_000)):
            pass
        with pytest.raises(muster.TimedOut, match="wait for r to take messages"):
            await client.writable("r", timeout=0.1)
        with pytest.raises(muster.TimedOut, match="flush of 256 unacknowledged messages"):
            await client.flush(0.1)
        with pytest.raises(muster.TimedOut, match="no answer in 2 s"):
            await client.close()
        assert client.closed


class Refusing:
    """The engine of a client that every room's owner has told that it takes nothing."""

    def __init__(self, engine: Any, code: str) -> None:
        self._engine, self._code = engine, code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def put_off(self, publication: int) -> tuple[str, float]:
        assert self._engine.put_off(publication) is None, "nobody told it"
        return self._code, 2.5


async def test_what_an_owner_has_no_place_for_is_refused_when_the_wait_ends(
    address: muster.testing.Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with muster.connect(address) as client:
        await client.publish("r", b"x")
        address.stop("proxy")
        for code, error in (
            ("not_ready", muster.TimedOut),
            ("rate_limited", muster.TimedOut),
            ("busy", muster.Refused),
        ):
            monkeypatch.setattr(client, "engine", Refusing(client.engine, code))
            with pytest.raises(error, match=r"^publish to r: ") as told:
                await client.publish("r", b"y", timeout=0.1)
            assert told.value.retry
            assert str(told.value).endswith("user_byte_rate); try again in 2.5 s") == (code == "rate_limited")
            monkeypatch.undo()
        assert told.value.code == "busy"
        address.start("proxy")
        assert await client.publish("r", b"z"), "the client tries again by itself"


async def test_an_owner_that_is_not_there_puts_publishers_off(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        await client.publish("r", b"x")
        number = client._publishing._publications["default:r"].number
        assert number is not None
        assert client.engine.put_off(number) is None
        address.stop("broker")
        assert client.publish_nowait("r", b"y")
        await until(lambda: (client.engine.put_off(number) or ("", 0.0))[0] == "not_ready")
        address.start("broker")
        await client.flush(PATIENT_S)
        assert client.engine.put_off(number) is None


@pytest.mark.parametrize("name", ["", "x" * 500, "UPPER:x", "a:", ":x", "a\nb", "\ud800"])
async def test_a_bad_room_name_is_an_error_before_anything_is_sent(address: muster.testing.Instance, name: str) -> None:
    async with muster.connect(address) as client:
        with pytest.raises(muster.BadRoomName) as told:
            client.join(name)
        assert told.value.code == "bad_room_name"
        with pytest.raises(muster.BadRoomName):
            client.publish_nowait(name, b"x")
        with pytest.raises(muster.BadRoomName):
            await client.publish(name, b"x")


async def test_wrong_arguments_are_told(address: muster.testing.Instance) -> None:
    with pytest.raises(muster.Invalid, match="no address"):
        await muster.connect(gateways=[], proxies=[], token="x")
    with pytest.raises(muster.Invalid, match="expected hex"):
        await muster.connect(gateways=[("127.0.0.1", 1, "zz")], token="x")
    with pytest.raises(muster.Invalid, match="32 bytes"):
        await muster.connect(gateways=[("127.0.0.1", 1, "11")], token="x")
    async with muster.connect(address) as client:
        with pytest.raises(muster.Invalid, match="invalid policy"):
            client.join("r", policy="sometimes")  # type: ignore[arg-type]
        with pytest.raises(muster.Invalid, match="positions"):
            await client.join("r", positions=b"\xffnonsense")
        position = await client.publish("r", b"x")
        with pytest.raises(muster.Invalid, match=r"invalid positions of type Position"):
            client.join("r", positions=position)  # type: ignore[arg-type]
        with pytest.raises(muster.Invalid, match="invalid message of type str"):
            client.publish_nowait("r", "text")  # type: ignore[arg-type]
        async with client.join("r", positions=client.join("r").positions):  # of a room that was never entered
            pass
    async with muster.connect(address, proxies=()) as client:
        with pytest.raises(muster.Unavailable, match="no proxy"):
            await client.publish("r", b"x")
    async with muster.connect(address, gateways=()) as client:
        with pytest.raises(muster.Unavailable, match="no gateway"):
            await client.join("r")


@pytest.mark.parametrize("timeout", [float("nan"), "5", timedelta(seconds=5)])
async def test_a_timeout_that_is_no_number_is_told_before_anything_is_sent(
    address: muster.testing.Instance, timeout: Any
) -> None:
    with pytest.raises(muster.Invalid, match="invalid time-out"):
        muster.connect(address, timeout=timeout)
    async with muster.connect(address) as client:
        for call in (
            client.publish("r", b"x", timeout=timeout),
            client.writable("r", timeout=timeout),
            client.flush(timeout),
        ):
            with pytest.raises(muster.Invalid, match="invalid time-out"):
                await call
        with pytest.raises(muster.Invalid, match="invalid time-out"):
            client.join("r", timeout=timeout)
        assert client.stats()["unacknowledged"] == 0


async def test_a_client_belongs_to_the_loop_that_opened_it(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        await client.publish("r", b"x")
        calls: list[Callable[[], Any]] = [
            lambda: client.publish("r", b"x"),
            lambda: client.join("other"),
            lambda: client.writable("r"),
            client.flush,
            client.close,
            lambda: asyncio.sleep(0, client.publish_nowait("r", b"x")),
        ]

        async def elsewhere() -> None:
            for call in calls:
                with pytest.raises(muster.Invalid, match="belongs to the loop and the thread that opened it"):
                    await call()

        await asyncio.to_thread(asyncio.run, elsewhere())
        with pytest.raises(muster.Invalid, match="belongs to the loop and the thread that opened it"):
            await asyncio.to_thread(client.publish_nowait, "r", b"x")
        assert (await client.publish("r", b"y")).offset == 2


def test_a_client_whose_loop_has_ended_takes_nothing_more() -> None:
    async def opened() -> muster.Client:
        async with muster.testing.instance() as address:
            client = await muster.connect(address)
            await client.publish("r", b"x")
            return client

    client = asyncio.run(opened())
    with pytest.raises(muster.Invalid, match="belongs to the loop and the thread that opened it"):
        client.publish_nowait("r", b"never")
    del client
    with pytest.warns(ResourceWarning, match="unclosed client"):
        gc.collect()


@pytest.mark.filterwarnings("error")
def test_what_a_thread_left_behind_can_be_collected_by_another() -> None:
    async def use(closes: bool) -> None:
        running = muster.testing.instance()
        address = await running.__aenter__()
        client = await muster.connect(address)
        await client.publish("r", b"x")
        if closes:
            await client.close()
            address.close()

    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for closes in (False, True):
        thread = threading.Thread(target=lambda: asyncio.run(use(closes)))  # noqa: B023
        thread.start()
        thread.join()
        with contextlib.nullcontext() if closes else pytest.warns(ResourceWarning, match="unclosed client"):
            gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_role_that_runs_or_does_not_is_told(address: muster.testing.Instance) -> None:
    with pytest.raises(muster.Invalid, match="the gateway runs already"):
        address.start("gateway")
    address.stop("gateway")
    for call in (address.stop, address.restart, address.status):
        with pytest.raises(muster.Invalid, match="the gateway does not run"):
            call("gateway")
        with pytest.raises(
            muster.Invalid, match=r"invalid role 'edge' \(expected one of router, broker, gateway, proxy\)"
        ):
            call("edge")  # type: ignore[arg-type]
    address.start("gateway")
    async with muster.connect(address) as client:
        await client.publish("r", b"x")


async def test_a_closed_client_says_so(address: muster.testing.Instance) -> None:
    client = muster.connect(address)
    with pytest.raises(muster.Invalid, match="not open"):
        client.publish_nowait("r", b"x")
    joining = client.join("r")
    with pytest.raises(muster.Invalid, match="not open"):
        await joining
    await client
    room = await joining
    await client.publish("r", b"x")
    await anext(room)
    reading = asyncio.ensure_future(anext(room))
    await asyncio.sleep(0)
    await client.close()
    await client.close()
    with pytest.raises(muster.Closed):
        await reading
    for call in (client.publish("r", b"x"), client.flush(), client.writable("r"), client.join("r"), anext(room)):
        with pytest.raises(muster.Closed):
            await call
    with pytest.raises(muster.Closed):
        client.publish_nowait("r", b"x")
    with pytest.raises(muster.Closed):
        client.stats()
    with pytest.raises(muster.Invalid, match="opened once"):
        await client
    assert muster.Position.from_bytes(room.positions[1:]).offset == room.stats()["delivered"] == 1
    room.leave()


async def test_closing_waits_for_what_was_published(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as reader, reader.join("r") as room:
        async with muster.connect(address) as client:
            assert all(client.publish_nowait("r", b"%d" % number) for number in range(200))
        taken = [await anext(room) for _ in range(200)]
    assert [item.data for item in taken if isinstance(item, muster.Message)] == [b"%d" % n for n in range(200)]


async def test_closing_ends_who_waits_to_publish(address: muster.testing.Instance) -> None:
    client = await muster.connect(address)
    address.stop("proxy")
    waiting = [asyncio.ensure_future(client.publish("r", b"x")) for _ in range(300)]
    await asyncio.sleep(0)
    with pytest.raises(muster.TimedOut):
        await client.close(timeout=0.05)
    assert {type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)} == {muster.Closed}


async def test_a_cancelled_publish_that_waits_for_credit_is_not_published(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        while client.publish_nowait("r", b"before"):
            pass
        waiting = asyncio.ensure_future(client.publish("r", b"never"))
        await asyncio.sleep(0)
        waiting.cancel()
        await client.publish("r", b"last")
        async with asyncio.timeout(PATIENT_S):
            seen: set[bytes] = set()
            while b"last" not in seen:
                item = await anext(room)
                assert isinstance(item, muster.Message)
                seen.add(item.data)
    assert seen == {b"before", b"last"}


async def test_publishes_whose_wait_for_credit_ended_leave_nothing_behind(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        await client.publish("r", b"x")
        address.stop("broker")
        while client.publish_nowait("r", b"x"):
            pass
        for _ in range(100):
            with pytest.raises(muster.TimedOut):
                await client.publish("r", b"never", timeout=0)
        assert client.stats()["unacknowledged"] == 256
        address.start("broker")
        await client.flush(PATIENT_S)


async def test_closing_ends_a_flush_with_an_error_when_messages_are_not_acknowledged(
    address: muster.testing.Instance,
) -> None:
    client = await muster.connect(address)
    await client.publish("r", b"x")
    address.stop("proxy")
    assert client.publish_nowait("r", b"lost")
    waiting = [asyncio.ensure_future(call) for call in (client.publish("r", b"y"), client.flush())]
    await asyncio.sleep(0)
    with pytest.raises(muster.TimedOut):
        await client.close(timeout=0.05)
    for call in waiting:
        with pytest.raises(muster.Closed):
            await call


async def test_a_client_that_closes_publishes_nothing_new_and_what_it_has_published(
    address: muster.testing.Instance,
) -> None:
    """Beside tasks that publish all the time it waited for their messages, too, and timed out."""
    client = await muster.connect(address)
    await client.publish("r", b"x")
    address.stop("proxy")
    assert client.publish_nowait("r", b"last")
    closing = asyncio.ensure_future(client.close(PATIENT_S))
    await asyncio.sleep(0)
    for room in ("r", "other"):
        with pytest.raises(muster.Closed, match="the client is closing"):
            client.publish_nowait(room, b"new")
        with pytest.raises(muster.Closed, match="the client is closing"):
            await client.publish(room, b"new")
    assert client.stats()["unacknowledged"] == 1
    address.start("proxy")
    await closing
    assert client.closed


async def test_a_flush_waits_for_what_was_published_before_it_alone(address: muster.testing.Instance) -> None:
    """Beside a task that publishes all the time it waited until nothing was in flight by chance."""
    async with muster.connect(address) as client, client.join("r") as room:
        published = 0

        async def busy() -> None:
            nonlocal published
            while True:
                published += client.publish_nowait("r", str(published).encode())
                await asyncio.sleep(0)

        publishing = asyncio.create_task(busy())
        for _ in range(20):
            await asyncio.sleep(0.005)
            before = published
            await client.flush(PATIENT_S)
            read = -1
            async with asyncio.timeout(PATIENT_S):
                while read < before - 1:
                    message = await anext(room)
                    assert isinstance(message, muster.Message), message
                    read = int(message.data)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        assert published > 20


async def test_a_cancelled_connect_leaves_nothing_behind(nobody: tuple[str, int, str]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    connecting = asyncio.ensure_future(muster.connect(gateways=[nobody], token="x"))
    await asyncio.sleep(0.01)
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("again", [False, True], ids=["once", "in_close_too"])
async def test_a_defect_of_the_engine_ends_everything_with_one_error(
    address: muster.testing.Instance, again: bool
) -> None:
    class Panics:
        def __init__(self, engine: Engine) -> None:
            self._close = engine.close

        def close(self) -> None:
            self._close()
            if again:
                raise RuntimeError("once more")

        def turn(self) -> int:
            raise RuntimeError("out of order")

    client = await muster.connect(address)
    room = await client.join("r")
    await asyncio.gather(client.publish("r", b"one"), client.publish("r", b"two"))
    await until(lambda: room.stats()["delivered"] == 2)
    await anext(room)
    client.turns._engine = Panics(client.engine)  # type: ignore[assignment]
    waiting = asyncio.ensure_future(client.publish("r", b"three"))
    for call in (waiting, anext(room), client.publish("r", b"four")):
        with pytest.raises(muster.MusterError, match=r"out of order.*please report") as told:
            async with asyncio.timeout(PATIENT_S):
                await call
        assert told.value.code == "error"
    assert muster.Position.from_bytes(room.positions[1:]).offset == 1
    await client.close()
