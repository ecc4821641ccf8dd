"""The command by its own text and exit codes: data on stdout, one clear line on stderr for every mistake."""

import contextlib
import fcntl
import http.server
import json
import os
import pty
import signal
import stat
import subprocess
import sys
import termios
import threading
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from muster_server import _engines
from muster_server.control.cli import main as cli
from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Folder
from muster_server.control.config.load import load
from muster_server.systems.probes.cli import report as paths
from tests import strikes
from tests.control.command import Command, Running
from tests.documents import ROOT
from tests.together import together
from tests.waiting import PATIENT_S, until_asked

ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


MISTAKES: Final = [
    (("--nope",), 2, "No such option: --nope; see muster --help"),
    (("upp",), 2, "upp"),
    (("sub",), 2, "ROOM"),
    (("sub", "room", "--count", "0"), 2, "--count"),
    (("up", "--loss", "much"), 2, "--loss: invalid probability 'much' (use 0.02 or 2%)"),
    (("up", "--loss", "2.5"), 78, "--loss: faults.loss = 2.5"),
    (("up", "--gateways", "0"), 78, "--gateways: up.gateways = 0"),
    (("up", "--gateways", "two"), 2, "--gateways"),
    (
        ("up", "--brokers", "3"),
        78,
        "--brokers: up.brokers: invalid number of partitions 3",
    ),
    (
        ("up", "--brokers", "2x"),
        78,
        "--brokers: up.brokers: invalid size '2x' (expected PARTITIONSxREPLICAS",
    ),
    (("up", "--routers", "1x17"), 78, "--routers: up.routers: invalid number of replicas 17 (expected 1 to 16)"),
    (("status",), 69, "start one: muster up"),
    (("rooms", "ls"), 69, "start one: muster up"),
    (("rooms", "show", "demo"), 69, "start one: muster up"),
    (("cluster", "show"), 69, "start one: muster up"),
    (("top",), 69, "start one: muster up"),
    (("top", "--sort", "size"), 2, "--sort"),
    (("sub", "demo"), 69, "start one: muster up"),
    (("pub", "demo"), 69, "start one: muster up"),
    (("up", "--for", "nan"), 2, "--for"),
    (("up", "--json"), 2, "--json needs --demo"),
    (("up", "--members", "3"), 2, "--members needs --demo"),
    (("members", "room", "--start", "5"), 2, "--start needs --ids"),
    (("cluster", "grow", "broker", "--abort", "--grace", "1"), 2, "--abort excludes --grace"),
    (("cluster", "grow", "broker", "--to", "2", "--wait", "nan"), 2, "--wait"),
    (("config", "check", "--config", "absent.toml"), 78, "absent.toml: cannot be read"),
    (("up", "--config", "absent.toml"), 78, "absent.toml: cannot be read"),
]


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, ...], subprocess.CompletedProcess[str]]:
    """The result of each mistake, in a folder of its own."""

    def end(*words: str) -> subprocess.CompletedProcess[str]:
        return Command(tmp_path_factory.mktemp("mistake") / "instance")(*words)

    return together(end, [words for words, _, _ in MISTAKES])


@pytest.mark.parametrize(("words", "code", "text"), MISTAKES)
def test_a_mistake_is_one_line_on_stderr_and_its_exit_code(
    mistaken: Mapping[tuple[str, ...], subprocess.CompletedProcess[str]], words: tuple[str, ...], code: int, text: str
) -> None:
    done = mistaken[words]
    assert done.returncode == code
    assert done.stdout == ""
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("muster: ")


def test_the_key_of_a_node_is_made_once_and_its_public_part_printed(muster: Command, tmp_path: Path) -> None:
    file = tmp_path / "broker-a" / "node.key"  # of a node that has not started yet
    first, again = (muster("cluster", "node-key", str(file)) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert first.stdout == again.stdout == bytes(_engines.public_key(bytes.fromhex(file.read_text()))).hex() + "\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o400
    assert file.read_text().strip() not in first.stdout
    nowhere = muster("cluster", "node-key", str(tmp_path / "no" / "where" / "node.key"))
    assert (nowhere.returncode, len(nowhere.stderr.splitlines())) == (1, 1)
    assert "cannot be written" in nowhere.stderr


def test_nodes_of_one_folder_prove_no_identities(muster: Command) -> None:
    done = muster("up", MUSTER_CLUSTER__IDENTITY="required")
    assert (done.returncode, len(done.stderr.splitlines())) == (78, 1)
    assert done.stderr.startswith("muster: cluster.identity: applies only to muster serve")


@pytest.mark.parametrize("words", [["status"], ["up"]])
def test_the_home_of_nobody_is_one_line(muster: Command, words: list[str]) -> None:
    done = muster(*words, MUSTER_INSTANCE__DIR="~nosuch/x")
    assert (done.returncode, done.stderr) == (78, "muster: '~nosuch/x': unknown user's home; write the full path\n")


@pytest.mark.parametrize("body", [b"hello", b"{}", b"[]", b'{"paths": 1, "probed": 1, "left_out": 0}'])
def test_who_is_asked_as_a_prober_and_is_none_is_one_line(body: bytes) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        where = f"127.0.0.1:{server.server_port}"
        record: Any = SimpleNamespace(pid=0, of=lambda _role: [])
        probed = paths.asked(record, load(environment={}, flags={"probes.ask": (where, "flag")}).config)
        thread.join()
    assert probed is not None
    assert f"{where} is not a " in probed.error


def test_an_unknown_variable_stops_every_command_that_reads_the_configuration(muster: Command) -> None:
    done = muster("status", MUSTER_GATEWAY_ARENA_MIB="1")
    assert done.returncode == 78
    assert "did you mean MUSTER_GATEWAY__ARENA_MIB?" in done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "muster: not enough memory, or the limit `ulimit -v` is too low\n"),
        (ImportError("a.so: failed to map\nsegment"), "muster: cannot load: a.so: failed to map segment\n"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setitem(sys.modules, "uvloop", SimpleNamespace(run=fails))
    assert cli.main(["pub", "room"]) == 1
    assert capsys.readouterr().err == said


def test_the_help_names_every_word(muster: Command) -> None:
    done = muster("--help")
    assert done.returncode == 0
    for word in ("up", "sub", "pub", "status", "rooms", "cluster", "top", "doctor", "config", "bench", "version"):
        assert f" {word} " in done.stdout


def test_the_version_is_that_of_the_library(muster: Command) -> None:
    from muster import __version__

    assert muster("version").stdout == f"{__version__}, protocol 1\n"
    said = {"muster": __version__, "protocol": 1, "protocol_lowest": 1}
    assert json.loads(muster("version", "--json").stdout) == said
    asked = muster("--version")
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, f"{__version__}, protocol 1\n", "")


def test_the_configuration_shows_where_values_come_from(muster: Command) -> None:
    done = muster("config", "show", "--json", "--origin", MUSTER_DEMO__RATE="7")
    shown = json.loads(done.stdout)
    assert shown["demo.rate"] == {"value": 7, "origin": "MUSTER_DEMO__RATE"}
    assert shown["gateway.arena_mib"] == {"value": 64, "origin": "muster up"}
    assert "demo.rate" in muster("config", "show").stdout
    assert muster("config", "docs").stdout == (ROOT / "docs" / "configuration.md").read_text()
    assert muster("config", "check").returncode == 0


@contextmanager
def hanging_up(means: signal.Handlers) -> Iterator[None]:
    """The effect of SIGHUP on a child that does not handle it: this process may itself ignore it."""
    before = signal.signal(signal.SIGHUP, means)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_instance_whose_terminal_goes_away_drains(muster: Command) -> None:
    terminal, other_end = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(other_end, termios.TIOCSCTTY, 0)

    with hanging_up(signal.SIG_DFL), muster.up(anew=True, start_new_session=True, preexec_fn=take_terminal) as process:
        os.close(other_end)
        roles = json.loads(muster("status", "--json").stdout)["nodes"]
        for role in roles:
            os.kill(role["pid"], signal.SIGHUP)  # the terminal tells all
        again = json.loads(muster("status", "--json").stdout)["nodes"]
        assert [(role["pid"], role["state"]) for role in again] == [(role["pid"], "ready") for role in roles]
        os.close(terminal)
        assert process.wait(PATIENT_S) == 0


async def test_sighup_has_an_instance_read_its_configuration_again_and_pass_it_on(
    muster: Command, tmp_path: Path
) -> None:
    file, other = tmp_path / "muster.toml", tmp_path / "other.secret"

    def written(text: str) -> None:
        file.write_text(text)
        process.send_signal(signal.SIGHUP)

    def asked() -> dict[str, dict[str, Any]]:
        return {role["role"]: role for role in json.loads(muster("status", "--json").stdout)["nodes"]}

    def accepted() -> list[list[int]]:
        return [role.get("key_ids", []) for role in asked().values()]

    def back() -> bool:
        broker = asked()["broker"]
        return bool(broker["state"] == "ready") and int(broker["pid"]) != before["broker"]

    def said(event: str) -> dict[str, Any]:
        def is_it(line: str) -> bool:
            with contextlib.suppress(json.JSONDecodeError):
                found = json.loads(line)
                return bool(found["event"] == event and found["role"] == "supervisor")
            return False

        line: dict[str, Any] = json.loads(muster.heard.next(is_it))
        return line

    file.write_text("")
    with muster.up("--config", str(file)) as process:
        before = {name: int(role["pid"]) for name, role in asked().items()}
        other.write_text("short")
        written(f"[cluster]\nother_secret_file = '{other}'\n")
        assert "is not hex" in said("not reloaded, the old configuration stays")["error"]
        other.write_text("ab" * 32)
        keys = (
            "[gateway]\nhistory_max = 7\npayload_bytes = 1300\n[clients]\nbackoff_ms = 900\n[proxy]\ncommand_burst = 3\n"
            "[loop]\nlinger_us = 500\n"
        )
        written(f"[cluster]\nother_secret_file = '{other}'\n{keys}")
        line = said("reloaded")
        assert line["in_force"] == {
            "cluster.other_secret_file": str(other),
            "gateway.history_max": 7,
            "clients.backoff_ms": 900,
            "proxy.command_burst": 3,
            "loop.linger_us": 500,
        }
        assert line["needs_restart"] == ["gateway.payload_bytes"]
        await until_asked(lambda: accepted() == [[1, 2]] * 4, PATIENT_S)
        after = asked()
        settings = {name: role["settings"] for name, role in after.items()}
        assert settings["gateway"]["history_max"] == 7
        assert [role["linger_us"] for role in after.values()] == [500] * 4
        assert [settings[name]["backoff_ms"] for name in ("gateway", "proxy")] == [900, 900]
        assert settings["broker"] is None, "none of a broker's is reloaded"
        assert settings["proxy"]["command_burst"] == 3
        assert {name: role["pid"] for name, role in after.items()} == before
        strikes.kill(before["broker"])
        await until_asked(back, PATIENT_S)
        returned = asked()["broker"]
        assert (returned["key_ids"], returned["linger_us"]) == ([1, 2], 500), "who comes back has it too"
        written("[log]\nlevel = 'loud'\n")
        assert "log.level" in said("not reloaded, the old configuration stays")["error"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENT_S) == 0


def test_who_asked_to_outlive_the_terminal_does(muster: Command) -> None:
    with hanging_up(signal.SIG_IGN), muster.up(anew=True) as process:  # as nohup does
        process.send_signal(signal.SIGHUP)
        assert muster("status").returncode == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENT_S) == 0


def test_an_instance_is_seen_from_other_terminals_and_ends_with_0(muster: Command) -> None:
    with muster.up() as process:
        status = muster("status")
        assert status.returncode == 0
        for role in ("router", "broker", "gateway", "proxy"):
            assert role in status.stdout
        document = json.loads(muster("status", "--json").stdout)
        assert [role["state"] for role in document["nodes"]] == ["ready"] * 4
        assert [room["name"] for room in json.loads(muster("rooms", "ls", "--json").stdout)] == [
            "room-0",
            "room-1",
            "room-2",
        ]
        assert "room-1" in muster("rooms", "ls", "--offset", "1").stdout
        assert json.loads(muster("rooms", "show", "room-1", "--json").stdout)["gateway"]["members"] == 1
        assert "members" in muster("rooms", "show", "room-1").stdout
        absent = muster("rooms", "show", "absent")
        assert (absent.returncode, absent.stdout) == (1, "")
        again = muster("up")
        assert again.returncode == 1
        assert "already running" in again.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENT_S) == 0
    assert muster("status").returncode == 69


@pytest.mark.parametrize(("flag", "in_file", "processes"), [("--together", "apart", 1), ("--apart", "together", 4)])
def test_a_flag_says_whether_nodes_share_a_process_whatever_the_file_says(
    muster: Command, tmp_path: Path, flag: str, in_file: str, processes: int
) -> None:
    file = tmp_path / "muster.toml"
    file.write_text(f"[up]\nprocesses = '{in_file}'\n")
    with muster.up(flag, "--config", str(file)):
        nodes = json.loads(muster("status", "--json").stdout)["nodes"]
    assert [node["state"] for node in nodes] == ["ready"] * 4
    assert len({node["pid"] for node in nodes}) == processes


@contextmanager
def standing(muster: Command, name: str) -> Iterator[None]:
    """A node that does nothing, not even end."""
    (pid,) = (each.pid for each in instance.find(Folder(muster.folder)).processes if each.name == name)
    with strikes.standing_still(pid):
        yield


def said(muster: Command, word: str) -> str:
    """The line on stderr that contains it."""
    return muster.heard.next(lambda line: word in line)


@pytest.mark.parametrize("again", ENDS)
def test_a_drain_is_finished_whatever_signals_come_again(muster: Command, again: signal.Signals) -> None:
    with hanging_up(signal.SIG_DFL), muster.up(anew=True, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        with standing(muster, "proxy"):
            process.send_signal(signal.SIGINT)
            await_signal(process, signal.SIGINT)
            process.send_signal(again)
            if again == signal.SIGINT:
                assert "draining" in said(muster, "Ctrl-C")
            await_signal(process, again)
            process.send_signal(signal.SIGTERM)
            await_signal(process, signal.SIGTERM)
        assert process.wait(PATIENT_S) == 0
        assert not any("did not end in time" in line for line in muster.heard.rest())
    assert not (muster.folder / "instance.json").exists()
    assert not (muster.folder / "requests.sock").exists()


def test_ctrl_c_after_the_word_about_the_drain_ends_it_as_it_stands(muster: Command) -> None:
    with muster.up() as process, standing(muster, "proxy"):
        process.send_signal(signal.SIGINT)
        await_signal(process, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        said(muster, "draining")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENT_S) == 130


def test_a_question_that_is_interrupted_is_not_answered_and_what_never_ends_has_ended(muster: Command) -> None:
    endings: list[tuple[tuple[str, ...], int, int]]
    endings = [(("command", "room", "text"), number, 128 + number) for number in ENDS]
    endings += [
        (words, signal.SIGINT, 130) for words in (("members", "room"), ("pub", "room"), ("sub", "room", "-n", "1"))
    ]
    endings += [(("sub", "room"), signal.SIGTERM, 0)]
    with muster.up():
        for words, number, code in endings:
            pipe = subprocess.PIPE
            with standing(muster, "broker"), muster.start(*words, stdin=pipe, stdout=pipe, stderr=pipe) as process:
                await_handler(process)  # nothing answers it before
                process.send_signal(number)
                out, errors = process.communicate(timeout=PATIENT_S)
            assert (words, process.returncode, out) == (words, code, ""), errors
            assert ("muster: interrupted\n" in errors) == (code != 0)


def await_handler(process: Running) -> None:
    """Until the process handles all of them itself; Python handles only the first."""
    handled = 0
    while not all(handled >> (number - 1) & 1 for number in ENDS):
        assert process.poll() is None
        status = Path(f"/proc/{process.pid}/status").read_text()
        handled = int(dict(line.split(":", 1) for line in status.splitlines())["SigCgt"], 16)


def await_signal(process: Running, number: signal.Signals) -> None:
    """Until the kernel has delivered all signals of that number to the process."""
    pending = 1 << (number - 1)
    while pending:
        status = Path(f"/proc/{process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        pending &= int(fields["ShdPnd"], 16) | int(fields["SigPnd"], 16)


def test_what_several_nodes_say_is_put_together(muster: Command) -> None:
    with muster.up("--gateways", "2", "--brokers", "2x2", "--proxies", "2"):
        roles = json.loads(muster("status", "--json").stdout)["nodes"]
        assert [(role["name"], role["node"], role["partition"]) for role in roles] == [
            ("router", 1, 0),
            *(("broker", 2, 0), ("broker-1", 6, 0), ("broker-2", 10, 1), ("broker-3", 14, 1)),
            *(("gateway", 3, 0), ("gateway-1", 7, 0)),
            *(("proxy", 4, 0), ("proxy-1", 8, 0)),
        ]
        status = muster("status").stdout
        assert all(f"{role['name']} " in status for role in roles)
        rooms = json.loads(muster("rooms", "ls", "--json").stdout)
        assert [(room["name"], room["members"]) for room in rooms] == [("room-0", 0), ("room-1", 2), ("room-2", 4)]
        assert [(room["gateways"], room["owner"]) for room in rooms] == [(["gateway", "gateway-1"], "broker")] * 3
        for offset, limit in ((0, 1), (1, 1), (1, 100), (3, 1)):
            page = muster("rooms", "ls", "--json", "--offset", str(offset), "--limit", str(limit))
            assert json.loads(page.stdout) == rooms[offset : offset + limit]
        shown = json.loads(muster("rooms", "show", "room-1", "--json").stdout)
        assert list(shown) == ["room", *(role["name"] for role in roles)]


def test_a_node_that_does_not_answer_is_named_and_the_others_are_shown(muster: Command) -> None:
    with muster.up("--gateways", "2"):
        pids = {role["name"]: role["pid"] for role in json.loads(muster("status", "--json").stdout)["nodes"]}
        asked = (("rooms", "ls"), ("rooms", "show", "room-1"), ("cluster", "show"), ("top",))
        # Each waits for the one that does not answer.
        with strikes.standing_still(pids["gateway-1"]), ThreadPoolExecutor() as at_once:
            done = list(at_once.map(lambda words: muster(*words, "--json"), asked))
    for each in done:
        assert each.returncode == 75
        assert each.stderr.startswith("muster: gateway-1 does not answer on 127.0.0.1:")
        assert len(each.stderr.splitlines()) == 1
    listed, shown, cluster, top = done
    assert [room["gateways"] for room in json.loads(listed.stdout)] == [["gateway"]] * 3
    assert list(json.loads(shown.stdout)) == ["room", "router", "broker", "gateway", "proxy"]
    gateways = json.loads(cluster.stdout)["layers"][2]["nodes"]
    assert [node["state"] for node in gateways] == ["ready", "no answer"]
    assert [node["state"] for node in json.loads(top.stdout)["nodes"]] == [*["ready"] * 3, "no answer", "ready"]


def test_the_cluster_is_shown_once_or_again_and_again(muster: Command) -> None:
    with muster.up("--brokers", "2x1", "--gateways", "2"):
        done = muster("cluster", "show")
        assert done.returncode == 0
        assert [line.split()[:3] for line in done.stdout.splitlines()[1:4]] == [
            ["broker/main", "0/2", "broker"],
            ["broker/main", "1/2", "broker-1"],
            ["router", "0/1", "router"],
        ]
        assert done.stdout.splitlines()[-1] == "no growth is due"
        with muster.start("cluster", "show", "--watch", "--json", stdout=subprocess.PIPE) as watching:
            assert watching.stdout is not None
            for _ in range(2):
                layers = json.loads(watching.stdout.readline())["layers"]
                assert [len(each["nodes"]) for each in layers] == [2, 1, 2, 1]
            watching.send_signal(signal.SIGINT)
            assert watching.wait(PATIENT_S) == 0


def test_when_no_gateway_answers_that_is_all_there_is_to_say(muster: Command) -> None:
    with muster.up("--gateways", "2"):
        roles = json.loads(muster("status", "--json").stdout)["nodes"]
        pids = [role["pid"] for role in roles if role["role"] == "gateway"]
        with strikes.standing_still(*pids):
            done = muster("rooms", "ls")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("muster: gateway does not answer on ")


def test_faults_are_shouted_about(muster: Command) -> None:
    with muster.up("--loss", "1%"):
        assert "FAULTS" in muster("status").stdout
        assert json.loads(muster("status", "--json").stdout)["faults"] is True


def test_the_demo_ends_by_itself_and_every_member_got_everything(muster: Command) -> None:
    done = muster("up", "--demo", "--for", "1.5", "--members", "5", "--rate", "200")
    assert done.returncode == 0, done.stderr
    assert "every member got every message" in done.stdout
    assert "muster sub demo" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["seconds", "published", "delivered", "repaired", "lost", "p50_ms", "p99_ms"]
    summary = json.loads(muster("up", "--demo", "--for", "1", "--members", "3", "--json").stdout)
    assert summary["whole"] is True
    assert summary["delivered"] == 3 * summary["published"] > 0


def test_a_member_that_missed_a_message_is_exit_code_1(muster: Command) -> None:
    done = muster("up", "--demo", "--for", "1", "--members", "5", FAKE_DROP="3")
    assert done.returncode == 1, done.stderr
    assert "5 lost" in done.stdout


SAYING: Final = [
    tuple(words.split())
    for words in ("status", "links", "cluster show", "doctor", "--help", "config show", "status --json")
]


@pytest.fixture(scope="module")
def unread(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, ...], tuple[int, str]]:
    """Exit code and complaints of each command whose output nobody reads, at one instance that it does not change."""
    muster = Command(tmp_path_factory.mktemp("unread") / "instance")

    def say(*words: str) -> tuple[int, str]:
        reading, writing = os.pipe()
        os.close(reading)
        process = muster.start(*words, stdout=writing, stderr=subprocess.PIPE)
        os.close(writing)
        _, complaints = process.communicate(60)
        return process.wait(), complaints

    with muster.up():
        return together(say, SAYING)


@pytest.mark.parametrize("words", SAYING, ids=" ".join)
def test_whoever_reads_no_more_has_enough_and_nothing_has_failed(
    unread: Mapping[tuple[str, ...], tuple[int, str]], words: tuple[str, ...]
) -> None:
    code, complaints = unread[words]
    hint = "muster: paths are not probed"  # of links, which is no complaint
    assert (code, [line for line in complaints.splitlines() if not line.startswith(hint)]) == (0, [])


STREAMS: Final = ("stdout", "stderr")
HALF_DEAF: Final = {
    ("status",): 1,
    ("status", "--json"): 1,
    ("links",): 75,
    ("links", "--json"): 75,
    ("cluster", "show"): 75,
    ("rooms", "ls"): 75,
    ("rooms", "show", "room-1", "--json"): 75,
    ("top", "--once"): 75,
    ("rooms", "show", "nowhere"): 1,
}
"""The result of each command if a gateway does not answer."""


@pytest.fixture(scope="module")
def unheard(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, ...], Mapping[str, int]]:
    """The exit code of each command if a gateway does not answer, by the stream that nobody reads."""
    muster = Command(tmp_path_factory.mktemp("unheard") / "instance")

    def end(*words: str) -> Mapping[str, int]:
        codes: dict[str, int] = {}
        for stream in STREAMS:
            reading, writing = os.pipe()
            os.close(reading)
            streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: writing}
            process = muster.start(*words, **streams)
            os.close(writing)
            codes[stream] = process.wait(PATIENT_S)
        return codes

    with muster.up("--gateways", "2"):
        roles = json.loads(muster("status", "--json").stdout)["nodes"]
        pid = next(role["pid"] for role in roles if role["name"] == "gateway-1")
        with strikes.standing_still(pid):
            return together(end, list(HALF_DEAF))


@pytest.mark.parametrize("words", HALF_DEAF, ids=" ".join)
def test_what_was_found_out_is_the_exit_code_whoever_reads_to_the_end(
    unheard: Mapping[tuple[str, ...], Mapping[str, int]], words: tuple[str, ...]
) -> None:
    assert unheard[words] == dict.fromkeys(STREAMS, HALF_DEAF[words])


COMMANDED = """
import asyncio, sys
import muster
from muster_server.control.cli import main as cli
from muster_server.systems.rooms.cli import tell
from muster_server.control.errors import UserError
from tests.fakes import library
async def answered(*_, **__):
    if "raises" in sys.argv:
        raise UserError("nobody is there", 3)
    return muster.NoMember()
library.Client.command = answered
tell.connected = library.connect
cli.verbatim = lambda _: lambda *_, **__: asyncio.run(tell.command(None, "room", "hi", 1.0, True))
sys.exit(cli.main())
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_what_became_of_a_command_is_the_exit_code_whoever_reads(how: str, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    for unread in (["stdout"], ["stderr"], ["stdout", "stderr"]):
        streams: dict[str, Any] = {each: writing if each in unread else subprocess.DEVNULL for each in STREAMS}
        command = [sys.executable, "-c", COMMANDED, how]
        done = subprocess.run(command, cwd=ROOT, env=environment, timeout=PATIENT_S, check=False, **streams)
        assert done.returncode == 3, unread
    os.close(writing)


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts tests in the background has it ignored
class Interrupting:
    def find_spec(self, name, *_):
        if name == "muster_server.control.terminal.choices":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from muster_server.systems.start import main
sys.exit(main())
"""


def test_ctrl_c_while_the_command_is_loaded_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "version"], cwd=ROOT, capture_output=True, timeout=PATIENT_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


TERMINATED = """
import os, signal, sys
class Ending:
    def find_spec(self, name, *_):
        if name == "muster_server.control.terminal.choices":
            os.kill(os.getpid(), signal.SIGTERM)
            os.write(1, b"goes on")
            os._exit(0)
sys.meta_path.insert(0, Ending())
from muster_server.systems.start import main
sys.exit(main())
"""

HOLDING = """
import os, signal, sys
class Looking:
    def find_spec(self, name, *_):
        if name == "muster_server.control.terminal.choices":
            os.write(1, b"left" if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else b"held")
            os._exit(0)
sys.meta_path.insert(0, Looking())
from muster_server.systems.start import main
main()
"""


@pytest.mark.parametrize(
    ("above", "code"),
    [([], -signal.SIGTERM), (["unshare", "--user", "--map-root-user", "--pid", "--fork"], 128 + signal.SIGTERM)],
    ids=["a process", "process 1"],
)
def test_sigterm_while_a_node_is_loaded_ends_it(above: list[str], code: int) -> None:
    if above and subprocess.run(["sh", "-c", f"{' '.join(above)} true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody be process 1")
    command = [*above, sys.executable, "-c", TERMINATED, "serve", "broker"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


@pytest.mark.parametrize(("word", "held"), [("serve", True), ("version", False), ("up", False)])
def test_only_a_node_takes_sigterm_before_its_loop(word: str, held: bool) -> None:
    command = [sys.executable, "-c", HOLDING, word]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENT_S, check=False)
    assert (done.returncode, done.stdout) == (0, b"held" if held else b"left")


def test_the_command_begins_where_it_is_said_to() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["muster"] == "muster_server.systems.start:main"
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from muster_server.systems.start import main; sys.exit(main())", "version"],
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
