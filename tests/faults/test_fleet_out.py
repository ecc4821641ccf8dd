"""A fleet by the real command: the page's agent, results out to a room and files, certificates; and deaths in between."""

import asyncio
import contextlib
import csv
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from muster_server.systems.fleet.cli.results import COLUMNS
from tests.documents import ROOT, fenced
from tests.faults.conftest import Make
from tests.faults.instance import MUSTER, Instance
from tests.faults.swarm import broker
from tests.faults.test_fleet import FLEET, online
from tests.fleet.mosquitto import needs_mosquitto
from tests.waiting import PATIENT_S, until_asked

PAGE = (ROOT / "docs" / "fleet.md").read_text()
ALL = fenced(PAGE, "sh")


def example(text: str) -> str:
    """The example of the page that has this text."""
    (found,) = [each for each in ALL if text in each]
    return found


@pytest.fixture
def listener() -> Iterator[str]:
    """A port that connections can be made to."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield f"127.0.0.1:{made.getsockname()[1]}"


def shell(instance: Instance, folder: Path, script: str, **more: str) -> str:
    """Run lines of the page; what they leave in the background ends with this."""
    script = f"trap 'kill $(jobs -p) 2>/dev/null || true; wait || true' EXIT\n{script}"
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env={**instance.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **more},
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def said(instance: Instance, *words: str, code: int = 0) -> Any:
    done = instance.ran(*words)
    assert done.returncode == code, done.stderr.decode()
    return done


@needs_mosquitto
async def test_the_pages_examples_measure_send_out_and_export(make: Make, tmp_path: Path, listener: str) -> None:
    instance = make(fleet=FLEET | {"results_topic": "measured"})
    folder = tmp_path / "shell"
    folder.mkdir()
    with instance.running("--with", "fleet,messages"):
        heard = await asyncio.create_subprocess_exec(
            *MUSTER, "sub", "measured", env=instance.environment, stdout=asyncio.subprocess.PIPE
        )
        try:
            await asyncio.to_thread(said, instance, "topic", "create", "measured", "--callback", "room:measured")
            place = broker(instance).bind
            words = {"BROKER": f"mqtt://{place[0]}:{place[1]}", "TARGET": listener}
            wait = "until muster fleet results shop --format json --minutes 3 | grep -q probe-7; do sleep 1; done\n"
            script = example('muster agent "$BROKER"') + wait + example("muster fleet minutes shop")
            shown = await asyncio.to_thread(shell, instance, folder, script, **words)
            assert "probe-7" in shown
            with (folder / "results.csv").open(newline="") as file:
                rows = list(csv.DictReader(file))
            assert tuple(rows[0]) == COLUMNS
            assert (rows[0]["client"], rows[0]["mark"], rows[0]["ok"]) == ("probe-7", "CN_520000_522200_1", "true")
            assert json.loads(rows[0]["value"])["ms"] == float(rows[0]["ms"])
            table = pyarrow.parquet.read_table(folder / "results.parquet").to_pylist()
            assert [each["client"] for each in table] == [each["client"] for each in rows]
            assert {each.name for each in folder.iterdir()} == {"probe-7.word", "results.csv", "results.parquet"}
            assert heard.stdout is not None
            seen = ""
            async with asyncio.timeout(PATIENT_S):
                while "shop@" not in seen:
                    seen += (await heard.stdout.readline()).decode()
        finally:
            heard.terminate()
            await heard.communicate()
        await asyncio.to_thread(_mistakes, instance, folder)


def _mistakes(instance: Instance, folder: Path) -> None:
    for words, why in (
        (("results", "shop@x"), "invalid run 'shop@x'"),
        (("results", "shop", "--format", "parquet"), "--format parquet needs --out FILE"),
        (("results", "shop", "--out", str(folder / "x")), "--out needs --format csv, json or parquet"),
        (("results", "shop", "--format", "csv", "--out", "/no/such/file"), "cannot write /no/such/file"),
        (("cert", "ls"), "clients have no certificates here; set fleet.tls_bind"),
    ):
        done = instance.ran("fleet", *words)
        assert done.returncode in {1, 2}, words
        assert why in done.stderr.decode(), words
        assert len(done.stderr.splitlines()) == 1


@needs_mosquitto
async def test_results_wait_for_the_topic_and_go_out_after_a_kill(make: Make) -> None:
    instance = make(fleet=FLEET | {"results_topic": "measured"})
    with instance.running("--with", "fleet,messages"):
        done = await asyncio.to_thread(said, instance, "fleet", "run", "ping", "--pick", "1", "--json", code=1)
        run = json.loads(done.stdout.splitlines()[-1])["run"].partition("@")[0]
        (scheduler,) = [each for each in instance.record().processes if each.role == "scheduler"]

        def stuck() -> bool:
            return "topic measured refuses results" in str(instance.status(scheduler.name).get("results"))

        await until_asked(stuck)
        os.kill(scheduler.pid, signal.SIGKILL)
        await asyncio.to_thread(said, instance, "topic", "create", "measured", "--callback", "pull:")
        words = ("delay", "show", f"fleet:{run}:0:0", "--topic", "measured")
        await until_asked(lambda: instance.ran(*words).returncode == 0)


@needs_mosquitto
async def test_the_pages_certificates_let_clients_in_until_they_are_revoked(make: Make, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    instance = make(fleet=FLEET | {"tls_bind": f"127.0.0.1:{port}"})
    folder = tmp_path / "shell"
    folder.mkdir()
    with instance.running("--with", "fleet"):
        issue, ls, revoke = example("muster fleet cert issue").splitlines()
        shown = await asyncio.to_thread(shell, instance, folder, f"{issue}\n{ls}")
        assert "probe-7" in shown
        certificates = folder / "certificates"
        assert {each.name for each in certificates.iterdir()} == {"probe-7.pem", "probe-7.key", "ca.pem"}
        assert (certificates / "probe-7.key").stat().st_mode & 0o077 == 0
        words = example("--cert probe-7.pem").split()[1:]
        words[1] = f"mqtts://localhost:{port}"
        agent = await asyncio.create_subprocess_exec(
            *MUSTER, *words, env=instance.environment, cwd=certificates, stderr=asyncio.subprocess.PIPE
        )
        try:
            await online(instance, 1)
            await asyncio.to_thread(shell, instance, folder, revoke)
            await online(instance, 0)
            async with asyncio.timeout(PATIENT_S):
                _, said = await agent.communicate()
            assert (agent.returncode, b"certificate revoked" in said) == (69, True), said
        finally:
            with contextlib.suppress(ProcessLookupError):
                agent.kill()
        done = json.loads(instance.ran("fleet", "cert", "ls", "--json").stdout)
        assert [bool(each["revoked_ms"]) for each in done["certificates"]] == [True]
