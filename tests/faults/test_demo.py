"""`muster up --demo` by its exit code and summary, and the roles' metrics of the same messages (I-8)."""

import asyncio
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping

import pytest

import muster
from muster_server.systems.rooms.cli.demo import DemoRoom, Figures, spoken
from muster_server.systems.rooms.system import Demo
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.waiting import PATIENT_S, until

LOSSES = [0.0, 0.01]


def run(instance: Instance, *words: str) -> subprocess.CompletedProcess[str]:
    """`muster up` to its end."""
    done = instance.ran("up", *words, seconds=PATIENT_S)
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize(
    ("loss", "seconds"),
    [
        (0.01, 3),
        pytest.param(0.0, 10, marks=pytest.mark.soak),
        pytest.param(0.01, 10, marks=pytest.mark.soak),
    ],
)
def test_the_demo_loses_nothing_and_a_second_one_starts_at_once(
    make: Make, figures: Callable[..., None], loss: float, seconds: int
) -> None:
    instance = make(faults={"loss": loss})
    began = time.monotonic()
    first = run(instance, "--demo", "--for", str(seconds), "--json")
    took = time.monotonic() - began
    summary = json.loads(first.stdout)
    figures(loss=loss, seconds=took, summary=summary)
    assert first.returncode == 0, first.stderr[-2000:]
    assert summary["lost"] == summary["repeated"] == 0
    assert summary["delivered"] == summary["published"] * summary["members"]
    assert summary["published"] >= 90 * seconds
    assert ("FAULTS" in first.stderr) == bool(loss)
    began = time.monotonic()
    second = run(instance, "--demo", "--for", "1", "--members", "5")
    assert second.returncode == 0, second.stderr[-2000:]
    assert "every member got every message" in second.stdout
    # As soon as the first, on any machine: it waits for nothing that the first left behind.
    assert time.monotonic() - began - 1 < 2 * (took - seconds)


def dropped(metrics: Mapping[str, float], *reasons: str) -> float:
    return sum(metrics[reason] for reason in reasons)


@pytest.mark.parametrize("loss", LOSSES)
async def test_the_summary_agrees_with_the_metrics_of_every_role(
    make: Make, figures: Callable[..., None], loss: float
) -> None:
    instance = make(faults={"loss": loss})
    room = DemoRoom(Demo(members=50, rate=400))
    with instance.running():
        async with room.opened(instance.folder):
            await until(lambda: room.published > 500, PATIENT_S)
            async with asyncio.timeout(PATIENT_S):  # a role that sends little may be spared for seconds
                while loss and not all(instance.metrics(role)["faults_lost"] for role in ROLES):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            summary = await room.finish()
            await asyncio.sleep(0.5)  # the last acknowledgements of members
            proxy, broker, gateway = [instance.metrics(role) for role in ROLES]
    figures(loss=loss, summary=str(summary))
    assert summary.whole, summary
    check_proxy(proxy, broker)
    check_broker(broker, gateway, summary)
    check_gateway(gateway, summary)
    if loss:
        assert gateway["messages_repaired"] > 0


async def test_what_others_publish_is_not_the_loads_own_and_stands_among_its_words(make: Make) -> None:
    instance = make()
    room = DemoRoom(Demo(members=5, rate=100))
    with instance.running():
        async with (
            room.opened(instance.folder),
            spoken(room, instance.folder),
            muster.connect(instance.folder.path) as other,
            other.join("demo") as heard,
        ):
            for data in (b"", b"hello", bytes(24), b"a line of some length, as a person types it"):
                await other.publish("demo-load", data)
            await other.publish("demo", b"hello")
            said: list[str] = []
            async with asyncio.timeout(PATIENT_S):
                while len(said) < 2 or "hello" not in said:
                    item = await anext(heard)
                    assert isinstance(item, muster.Message)
                    said.append(item.data.decode())
            summary = await room.finish()
    assert summary.whole, summary
    lines = [line for line in said if line != "hello"]
    assert re.fullmatch(r"[\d:]{8}  \d+ messages to 5 members so far, half of them within [\d.]+ ms, 0 lost", lines[0])


ROLES = ("proxy", "broker", "gateway")


def check_proxy(proxy: Mapping[str, float], broker: Mapping[str, float]) -> None:
    """Clients' messages were passed on or dropped for a reason; none is anywhere else, as all are acknowledged."""
    reasons = dropped(proxy, "dropped_no_owner", "dropped_queue_full", "dropped_handle")
    assert proxy["messages_received"] == proxy["messages_forwarded"] + reasons
    taken = broker["messages_published"] + broker["messages_repeated"]
    reasons = dropped(broker, "dropped_ahead", "dropped_not_ready", "dropped_not_owner", "dropped_full")
    # What the link lost is the difference; the broker takes no more than it was sent.
    assert taken + reasons <= proxy["messages_forwarded"]


def check_broker(broker: Mapping[str, float], gateway: Mapping[str, float], summary: Figures) -> None:
    """Published messages were numbered, and each went to the one gateway once, without repairs."""
    assert broker["messages_published"] == summary.published
    assert broker["messages_sent"] == summary.published
    assert gateway["messages_placed"] == summary.published
    lost_of_them = broker["messages_sent"] + broker["messages_repaired"]
    assert gateway["messages_received"] <= lost_of_them


def check_gateway(gateway: Mapping[str, float], summary: Figures) -> None:
    """Accepted for members = delivered + dropped by reason + pending, the latter two being none."""
    accepted = gateway["messages_placed"] * summary.members
    assert gateway["messages_sent"] == accepted == summary.delivered
    assert dropped(gateway, "dropped_no_member", "dropped_stale_stream", "dropped_held_full") == 0
    assert gateway["cursors_moved"] == gateway["gaps_unrepaired"] == 0


def test_ctrl_c_ends_the_demo_with_0_and_leaves_no_process(make: Make) -> None:
    instance = make()
    with instance.running("--demo", "--members", "10"):
        pids = instance.pids()
        assert len(pids) == 5  # the console is one of them
        assert instance.end() == 0
    assert not [pid for pid in pids.values() if os.path.exists(f"/proc/{pid}")]
    assert re.search(r"FAULTS", instance.log.read_text()) is None
