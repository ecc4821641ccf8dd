"""A console in a process of its own, beside rooms alone: no HTTP face, no presence. Each effect is seen by a command."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.console.served import USERS
from tests.console.visitors import Visitor, background, picture
from tests.faults.instance import APART, Instance, configuration
from tests.waiting import PATIENT_S, wait_for

ROOM = "sports:final"


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One instance for all tests of this file."""
    sections: dict[str, dict[str, Any]] = {
        "database": {"url": "none"},
        "up": APART,
        "console": {"users": USERS, "sample_s": 0.5},
    }
    made = Instance(tmp_path_factory.mktemp("apart"), configuration(**sections))
    with made.running("--with", "console"):
        yield made


@pytest.fixture
def enter(instance: Instance, chromium: Browser) -> Iterator[Callable[..., Visitor]]:
    """Log in as a user."""
    url = json.loads(instance.ran("status", "--json").stdout)["systems"]["console"]["url"]
    came: list[Visitor] = []

    def made(name: str = "ann") -> Visitor:
        came.append(Visitor(url, chromium, name))
        return came[-1]

    yield made
    for each in came:
        each.close()


def members(instance: Instance) -> int:
    """The members of the room, by a command."""
    found: int = json.loads(instance.ran("members", ROOM, "--json").stdout)["count"]
    return found


def test_pages_of_systems_that_do_not_run_say_how_to_start_them(
    instance: Instance, enter: Callable[..., Visitor]
) -> None:
    process = instance.process("console")
    assert [each.name for each in instance.record().processes if each.pid == process.pid] == ["console"]
    assert not instance.names("http", "online-reader")
    visitor = enter()
    visitor.forgives = re.compile(r"Failed to load resource.* (40[13]|503)")
    visitor.expects = re.compile("/api/v1/(presence|likes|ranks|topics|fleet)")
    for place in ("presence", "likes", "messages", "fleet"):
        expect(visitor.go(place).get_by_text(f"muster up --with {place}")).to_be_visible()


def test_a_member_without_presence_is_ended_and_stays_away(
    instance: Instance, enter: Callable[..., Visitor], tmp_path: Path
) -> None:
    visitor = enter()
    page = visitor.go(f"rooms/{ROOM.replace(':', '%3A')}")
    before = members(instance)  # the page reads the room too
    tokens = {user: instance.ran("token", user, "--rights", "read").stdout.decode().strip() for user in ("7", "8")}
    with background(instance, "sub", ROOM, "--token", tokens["8"]):
        with (tmp_path / "heard").open("wb") as heard:
            process = instance.command("sub", ROOM, "--token", tokens["7"], stdout=subprocess.DEVNULL, stderr=heard)
        wait_for(lambda: members(instance) == before + 2)
        assert visitor.act("End a member's sessions", user="7") == "1 sessions were ended."
        assert process.wait(PATIENT_S) != 0
        assert "ended" in (tmp_path / "heard").read_text()
        assert members(instance) == before + 1
        done = instance.ran("rooms", "end", ROOM, "7")
        assert (done.returncode, done.stdout) == (3, b"7 is no member\n")
        done = instance.ran("rooms", "end", ROOM, "8", "--json")
        assert json.loads(done.stdout) == {"ended": 1}
        wait_for(lambda: members(instance) == before)
    logged = json.loads(instance.ran("console", "audit", "--search", "members/7", "--json").stdout)
    assert [(each["user"], each["detail"], each["status"]) for each in logged] == [("ann", f"7 in {ROOM}", 200)]
    assert page.title() == "Rooms · Muster"


def test_a_rooms_path_is_a_picture_with_the_time_of_each_hop(instance: Instance, enter: Callable[..., Visitor]) -> None:
    visitor = enter()
    with background(instance, "sub", ROOM):
        wait_for(lambda: members(instance) >= 1)
        page = visitor.go(f"rooms/{ROOM.replace(':', '%3A')}")
        drawn = page.get_by_role("region", name="Path through the nodes").get_by_role("img")
        hops = json.loads(instance.ran("trace", ROOM, "--json").stdout)["asked"][0]["hops"]
        assert [(each["asked_by"], each["node"]) for each in hops] == [("proxy", "broker"), ("broker", "gateway")]
        for sender, receiver in (("this console", "proxy"), ("proxy", "broker"), ("broker", "gateway")):
            told = re.compile(rf"{sender} → (muster-)?{receiver} [\d.,]+ ms")
            expect(drawn).to_have_attribute("aria-label", told)
        expect(drawn.locator("text.hop")).to_have_count(3)
        picture(visitor, "path")


def test_a_layer_is_doubled_and_each_step_of_its_growth_is_shown(
    instance: Instance, enter: Callable[..., Visitor]
) -> None:
    visitor, other = enter(), enter("bob")
    page = visitor.go("topology")
    layers = page.get_by_role("region", name="Layers")
    expect(layers.get_by_role("row").filter(has_text="broker")).to_contain_text("stands")
    expect(other.go("topology").get_by_role("button", name="Double", exact=True).first).to_be_disabled()
    page.get_by_role("button", name="Double broker").click()
    about = page.get_by_role("dialog", name="Double broker")
    expect(about).to_contain_text("broker goes from 1 to 2 partitions. 1 more nodes start on this machine.")
    about.get_by_role("button", name="Close").click()
    assert "begun" in visitor.act("Double broker")
    growth = page.get_by_role("region", name="Growth of broker")
    expect(growth).to_contain_text("to 2 partitions: prepare")
    expect(growth).to_contain_text("to 2 partitions: switched")
    expect(page.locator("ol.steps li[aria-current=step]")).to_have_count(1)
    picture(visitor, "growth")
    expect(page.get_by_text("The growth is complete.")).to_be_visible()
    expect(growth).to_contain_text("to 2 partitions: final")
    shown = json.loads(instance.ran("cluster", "show", "--json").stdout)
    assert {each["layer"]: each["partitions"] for each in shown["layers"]}["broker/main"] == 2
    assert len(instance.names("broker")) == 2
    expect(layers.get_by_role("row").filter(has_text="broker")).to_contain_text("stands")


def test_the_console_comes_back_after_its_process_dies_and_the_page_says_so(
    instance: Instance, enter: Callable[..., Visitor]
) -> None:
    visitor = enter()
    page = visitor.go("overview")
    pid = instance.process("console").pid
    visitor.forgives = re.compile("Failed to load resource")
    instance.kill("console")
    wait_for(lambda: instance.process("console").ready and instance.process("console").pid not in {0, pid})
    expect(page.get_by_role("button", name="Log in")).to_be_visible()  # sessions live in the console's memory
