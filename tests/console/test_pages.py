"""The pages of the console in Debian's Chromium, over a real instance with all systems.

Each action's effect is seen by a second means: another face, or a command.
"""

import base64
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Response, Route, expect

from muster_server.plane.systems import actions, named
from muster_server.systems.http import keys
from muster_server.systems.http.system import KEYS
from tests.console.served import USERS
from tests.console.visitors import HEIGHT, WIDTH, Visitor, background, picture
from tests.faults.instance import Instance, configuration
from tests.redis_server import RedisServer
from tests.waiting import PATIENT_S, wait_for

PAGES: Final = ("overview", "rooms", "topology", "presence", "likes", "messages", "fleet", "keys", "doctor")
HOSTILE: Final = "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script>\u202egnp.exe"


class Site:
    """The instance, and what a test needs beside the pages."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        known = {action.name: action.text for action in actions().values()}
        scopes = [f"{action}:*" for action in known if action != "console"]
        _, secret = keys.create(instance.folder.path / KEYS, "second-means", scopes, known)
        faces = self.said("status", "--json")["systems"]
        self.url: str = faces["console"]["url"]
        self.http = httpx2.Client(
            base_url=faces["http"]["url"],
            headers={"x-api-key": secret},
            timeout=PATIENT_S,
            trust_env=False,
            verify=False,
        )

    def said(self, *words: str) -> Any:
        """The JSON that a command prints."""
        done = self.instance.ran(*words)
        return json.loads(done.stdout)

    def api(self, method: str, path: str, **more: Any) -> Any:
        """An answer of the HTTP face."""
        answer = self.http.request(method, f"/api/v1/{path}", **more)
        assert answer.status_code < 400, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One instance with all systems for all tests of this file."""
    sections: dict[str, dict[str, Any]] = {
        "database": {"url": "none"},
        "console": {"users": USERS, "sample_s": 1.0},
        "likes": {"partitions": 16},
        "presence": {"sites": 1},
        "probes": {"every_ms": 500},
    }
    instance = Instance(tmp_path_factory.mktemp("console"), configuration(**sections))
    with instance.running("--with", "all"):
        made = Site(instance)
        with made.http:
            yield made


@pytest.fixture
def enter(site: Site, chromium: Browser) -> Iterator[Callable[..., Visitor]]:
    """Log in as a user."""
    came: list[Visitor] = []

    def made(name: str = "ann", **options: Any) -> Visitor:
        came.append(Visitor(site.url, chromium, name, **options))
        return came[-1]

    yield made
    for each in came:
        each.close()


# --- login --------------------------------------------------------------------------------------------------------------


def test_muster_up_and_a_command_print_links_that_log_in_once(site: Site, chromium: Browser) -> None:
    log = wait_for(lambda: re.findall(r"console +(http\S+#login=\S+)", site.instance.log.read_text()))
    for link in (log[0], site.said("console", "login", "--json")["url"]):
        context = chromium.new_context(locale="en-GB")
        first, second = context.new_page(), chromium.new_context().new_page()
        first.goto(link)
        expect(first.get_by_role("heading", level=1)).to_contain_text("Overview")
        assert "login=" not in first.url
        second.goto(link)
        expect(second.get_by_role("alert")).to_contain_text("used or too old")
        context.close()
        second.context.close()


def test_a_viewer_and_an_operator_at_once(site: Site, enter: Callable[..., Visitor]) -> None:
    viewer, operator = enter("bob"), enter("ann")
    for place, button in (("keys", "Create a key"), ("topology", "Drain a node"), ("rooms/a", "Publish")):
        expect(viewer.go(place).get_by_role("button", name=button)).to_be_disabled()
        expect(operator.go(place).get_by_role("button", name=button)).to_be_enabled()


# --- what pages see -------------------------------------------------------------------------------------------------------


def test_the_overview_shows_all_systems_and_a_node_that_dies_while_it_is_open(
    site: Site, enter: Callable[..., Visitor]
) -> None:
    visitor = enter()
    page = visitor.go("overview")
    rows = page.locator("section", has=page.get_by_role("heading", name="Systems")).get_by_role("row")
    expect(rows).to_have_count(len(named()))
    expect(rows.filter(has_text="serves")).to_have_count(len(named()))
    expect(page.locator("canvas")).to_have_count(4)
    picture(visitor, "overview")
    pid = site.instance.process("likes").pid
    os.kill(pid, signal.SIGSTOP)
    try:
        row = rows.filter(has_text="Likes")
        expect(row).to_contain_text("does not serve")
        alarms = page.locator("section", has=page.get_by_role("heading", name="Alarms"))
        expect(alarms).to_contain_text(f"kill {pid} restarts it")
    finally:
        os.kill(pid, signal.SIGCONT)
    expect(row).to_contain_text("1 of 1 nodes are ready")
    page.get_by_role("searchbox").fill("gateway")
    expect(page.get_by_role("region", name="Nodes").get_by_role("link")).to_have_count(1)
    page.get_by_role("link", name="gateway").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("gateway")
    expect(page.get_by_text("muster_members", exact=True)).to_be_visible()


def test_no_page_keeps_people_out_or_overflows_a_phone(site: Site, enter: Callable[..., Visitor]) -> None:
    visitor = enter()
    for place in (*PAGES, "rooms/demo", "nodes/gateway"):
        page = visitor.go(place)
        assert place.startswith("nodes/") or violations(page) == [], place  # its hundreds of rows are those of others
        page.set_viewport_size({"width": 360, "height": 740})
        page.wait_for_function("() => document.documentElement.scrollWidth <= 360")  # curves follow a frame later
        page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.get_by_label("Look", exact=True).select_option("dark")
    for place in ("overview", "keys"):
        assert violations(visitor.go(place), "color-contrast") == [], place


def violations(page: Page, *rules: str) -> list[tuple[str, str]]:
    """The findings of axe that are serious or worse, each with its first place."""
    only = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else None
    found = Axe().run(page, options=only).response["violations"]
    return [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in {"serious", "critical"}]


def test_chinese(site: Site, enter: Callable[..., Visitor]) -> None:
    page = enter().go("overview")
    page.get_by_label("Language").select_option("zh")
    expect(page.get_by_role("heading", level=1)).to_contain_text("概览")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_contain_text("概览")
    assert page.evaluate("document.documentElement.lang") == "zh-Hans"


# --- what pages do --------------------------------------------------------------------------------------------------------


def test_rooms(site: Site, enter: Callable[..., Visitor]) -> None:
    visitor = enter()
    page = visitor.go("rooms/sports%3Afinal")
    tail = page.get_by_role("log")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    site.api("POST", "rooms/sports:final/messages", json={"data": HOSTILE})
    expect(tail).to_contain_text("\\u{202e}gnp.exe")
    expect(tail).to_contain_text("<script>")
    assert "Published at" in visitor.act("Publish", data="kick-off")
    expect(tail).to_contain_text("kick-off")
    picture(visitor, "rooms")
    last = site.api("GET", "rooms/sports:final/messages")["messages"]
    assert [each["data"] for each in last] == [HOSTILE, "kick-off"]
    page.get_by_role("button", name="Pause").click()
    site.api("POST", "rooms/sports:final/messages", json={"data": "unseen"})
    expect(page.get_by_text("1 events were not shown")).to_be_visible()
    expect(tail).not_to_contain_text("unseen")
    assert "delivered" in visitor.act("Send a command", data="half-time")
    page = visitor.go("rooms")
    page.get_by_role("searchbox").fill("final")
    expect(page.get_by_role("link", name="sports:final")).to_be_visible()
    assert page.title() == "Rooms · Muster"


def test_messages_a_second_of_rooms_and_of_one_room(site: Site, enter: Callable[..., Visitor]) -> None:
    load = ("load", "rooms", "--members", "4", "--rooms", "2", "--publishers", "1", "--rate", "400", "--for", "300s")
    visitor = enter()
    with background(site.instance, *load):
        page = visitor.go("rooms")
        page.get_by_role("searchbox").fill("load-")
        row = page.get_by_role("region", name="Rooms", exact=True).get_by_role("row").nth(1)
        expect(row.get_by_role("cell").nth(2)).to_have_text(re.compile(r"^[1-9][\d.]*/s$"))
        listed = site.said("rooms", "ls", "--rate", "--json")
        assert [each["per_s"] > 0 for each in listed if "load-" in each["name"]] == [True, True]
        row.get_by_role("link").click()
        expect(page.get_by_text(re.compile(r"^[1-9][\d.]* messages/s$"))).to_be_visible()
    page = visitor.go("rooms/sports%3Acup")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    for minute in range(1, 13):
        goal = {"minute": 7 * minute, "score": f"{minute // 4}:{minute // 6}"}
        site.api("POST", "rooms/sports:cup/messages", json={"data": json.dumps(goal)})
    expect(page.get_by_role("log")).to_contain_text('"minute": 84')
    expect(page.get_by_text(re.compile(r"^[1-9][\d.]* messages/s$"))).to_be_visible()
    picture(visitor, "room")


def test_messages(site: Site, enter: Callable[..., Visitor]) -> None:
    site.instance.ran("topic", "create", "orders", "--callback", "room:due:orders")
    refused = ("--callback", "http://127.0.0.1:1/", "--allow", "127.0.0.1/32")
    site.instance.ran("topic", "create", "lost", *refused, "--retries", "none")
    visitor = enter()
    visitor.go("messages").get_by_role("link", name="orders").click()
    assert "Accepted as order-7" in visitor.act("Send a message", data=HOSTILE, in_s="3600", id="order-7")
    before = site.api("GET", "topics/orders/messages/order-7")
    assert (before["state"], base64.b64decode(before["base64"]).decode()) == ("scheduled", HOSTILE)
    expect(visitor.page.get_by_role("region", name="Messages")).to_contain_text("<script>")
    visitor.act("Postpone order-7", by_s="60")
    after = site.api("GET", "topics/orders/messages/order-7")
    assert after["due_at"] == before["due_at"] + 60_000
    picture(visitor, "messages")
    visitor.act("Cancel order-7")
    assert site.api("GET", "topics/orders/messages/order-7")["state"] == "cancelled"
    visitor.act("Change the topic", timeout_s="7")
    assert site.api("GET", "topics/orders")["timeout_s"] == 7
    visitor.act("Pause orders")
    assert site.api("GET", "topics/orders")["paused"]
    expect(visitor.page.get_by_text("This topic is paused")).to_be_visible()
    visitor.act("Resume orders")
    assert not site.api("GET", "topics/orders")["paused"]
    visitor.go("messages/lost")
    visitor.act("Send a message", data="nobody", in_s="0", id="letter-1")
    wait_for(lambda: site.api("GET", "topics/lost/messages/letter-1")["state"] == "dead")
    visitor.page.get_by_role("button", name="Reload").click()
    died = site.api("GET", "topics/lost/dead")["letters"][0]["died_at"]
    assert "done" in visitor.act("Replay letter-1")
    wait_for(lambda: any(each["died_at"] > died for each in site.api("GET", "topics/lost/dead")["letters"]))
    visitor.page.get_by_role("button", name="Reload").click()
    assert "done" in visitor.act("Drop letter-1")
    assert site.api("GET", "topics/lost/messages/letter-1")["state"] == "cancelled"
    for id in ("letter-2", "letter-3"):
        site.api("POST", "topics/lost/messages", json=[{"data": "nobody", "id": id}])
    wait_for(lambda: len(site.api("GET", "topics/lost/dead")["letters"]) == 2)
    assert visitor.act("Drop all") == "2 dead letters were dropped."
    assert site.api("GET", "topics/lost/dead")["letters"] == []


def test_keys_are_shown_once_and_revoked(site: Site, enter: Callable[..., Visitor]) -> None:
    visitor = enter()
    page = visitor.go("keys")
    told = visitor.act("Create a key", name="web", scopes="rooms:* read:sports:*")
    secret = told.split()[-1]
    assert secret.startswith("mk_")
    with_key = {"x-api-key": secret}
    assert site.http.get("/api/v1/rooms", headers=with_key).status_code == 200
    used = wait_for(lambda: {each["name"]: each["used"] for each in site.said("key", "ls", "--json")}["second-means"])
    assert 0 <= time.time() - used < 3_600
    expect(page.get_by_role("region", name="API keys").get_by_text("web", exact=True)).to_be_visible()
    assert secret not in page.content()
    visitor.act("Revoke web")
    wait_for(lambda: site.http.get("/api/v1/rooms", headers=with_key).status_code == 401)
    page = visitor.go("keys")
    expect(page.get_by_role("region", name="Audit log")).to_contain_text("DELETE /api/v1/console/keys/web")
    logged = site.said("console", "audit", "--json")
    assert {"ann"} == {each["user"] for each in logged if "console/keys" in each["action"]}
    assert all(secret not in str(each) for each in logged)


def test_doctor(site: Site, enter: Callable[..., Visitor]) -> None:
    visitor = enter()
    page = visitor.go("doctor")
    expect(page.get_by_role("region", name="Findings")).to_contain_text("instance folder")
    assert "Examined at" in visitor.act("Run again")
    picture(visitor, "doctor")


def test_presence(site: Site, enter: Callable[..., Visitor]) -> None:
    token = site.instance.ran("token", "7", "--rights", "read", "--device", "phone").stdout.decode().strip()
    visitor = enter()
    page = visitor.go("presence/7")
    expect(page.get_by_text("offline")).to_be_visible()
    with background(site.instance, "sub", "lobby", "--token", token):
        expect(page.get_by_text("phone", exact=True)).to_be_visible()
        assert "phone: " in visitor.act("Send to 7", data="hello")
        expect(page.get_by_role("img", name=re.compile("^Devices online: devices 1$"))).to_be_visible()
        assert site.api("POST", "presence", json={"users": ["7"]})["users"][0]["online"]
    expect(page.get_by_text("offline")).to_be_visible()
    expect(page.get_by_role("region", name="Sites and shards")).to_contain_text("serves")


def test_sessions_are_ended(site: Site, enter: Callable[..., Visitor]) -> None:
    def devices() -> set[str]:
        return {each["device"] for each in site.api("POST", "presence", json={"users": ["8"]})["users"][0]["devices"]}

    visitor = enter()
    with contextlib.ExitStack() as stack:
        for name in ("phone", "laptop", "watch"):
            words = ("token", "8", "--rights", "read", "--device", name)
            token = site.instance.ran(*words).stdout.decode().strip()
            stack.enter_context(background(site.instance, "sub", "lobby", "--token", token))
        page = visitor.go("presence/8")
        expect(page.get_by_text("watch", exact=True)).to_be_visible()
        wait_for(lambda: devices() == {"phone", "laptop", "watch"})
        assert visitor.act("End sessions of 8", device="phone") == "phone: ended"
        expect(page.get_by_text("phone", exact=True)).to_have_count(0)
        wait_for(lambda: devices() == {"laptop", "watch"})
        wait_for(lambda: "8" in site.api("GET", "rooms/lobby/members?ids=true")["ids"])
        page = visitor.go("rooms/lobby")
        expect(page.get_by_role("link", name="8", exact=True)).to_be_visible()
        assert visitor.act("End a member's sessions", user="8", device="watch") == "watch: ended"
        wait_for(lambda: devices() == {"laptop"})
        done = site.instance.ran("presence", "end", "8")
        assert done.stdout.startswith(b"ended: laptop")  # a device that has just gone may be named too
        wait_for(lambda: not devices())
    logged = site.said("console", "audit", "--search", "presence/end", "--json")
    assert [(each["user"], each["detail"], each["status"]) for each in logged] == [
        ("ann", "8: watch", 200),
        ("ann", "8: phone", 200),
    ]


def test_likes(site: Site, enter: Callable[..., Visitor]) -> None:
    visitor = enter()
    visitor.go("likes/post%3A1")
    assert visitor.act("Like for a user", user="7") == "1 likes now."
    assert site.api("GET", "likes/post/1")["newest"] == ["7"]
    expect(visitor.page.get_by_role("region", name="Ranking")).to_contain_text("post:1")
    expect(visitor.page.get_by_role("img", name="Likes over time: likes 1")).to_be_visible()
    assert visitor.act("Take a like back", user="7") == "0 likes now."
    assert site.api("GET", "likes/post/1/7")["likes"] is False
    expect(visitor.page.get_by_role("img", name="Likes over time: likes 0")).to_be_visible()
    assert site.api("GET", "likes/post/1/curve")["count"][-1] == 0


def test_partitions_of_likes_move_to_a_new_node_and_off_it(site: Site, enter: Callable[..., Visitor]) -> None:
    def owners() -> dict[str, int]:
        found = site.said("likes", "partitions", "--json")
        return {each["name"]: each["partitions"] for each in found["nodes"]}

    visitor = enter()
    page = visitor.go("likes")
    partitions = page.get_by_role("region", name="Partitions", exact=True)
    (all,) = owners().values()
    expect(partitions.get_by_role("row")).to_have_count(1 + all)
    expect(partitions).to_contain_text(re.compile(r"0.16383|0.1023"))
    told = visitor.act("Move partitions to a new node")
    assert told == "Started: likes-1."
    wait_for(lambda: owners() == {"likes": all - all // 2, "likes-1": all // 2})
    nodes = page.get_by_role("region", name="Nodes of likes")
    expect(nodes.get_by_role("row").filter(has_text="likes-1").get_by_role("cell").nth(2)).to_have_text(str(all // 2))
    picture(visitor, "likes")
    site.api("PUT", "likes/post/9/7")
    visitor.act("Move all partitions off a node", name="muster-likes-1")
    wait_for(lambda: owners() == {"likes": all})
    expect(nodes.get_by_role("row")).to_have_count(2)
    assert site.api("GET", "likes/post/9")["count"] == 1, "a like is kept wherever its partition goes"


def test_bitmaps_of_a_redis_are_imported(site: Site, enter: Callable[..., Visitor], tmp_path: Path) -> None:
    source = RedisServer(tmp_path / "redis", appendonly=False).start()
    try:
        for user in (3, 5, 1_000):
            source.said("SETBIT", "film:1", str(user), "1")
        source.said("SETBIT", "other:1", "4", "1")
        visitor = enter()
        page = visitor.go("likes")
        imports = page.get_by_role("region", name="Imports")
        visitor.act("Import from a Redis", url="redis://:not-told@127.0.0.1:1/0", pattern="film:*")
        expect(imports.get_by_role("row").nth(1)).to_contain_text("failed the source Redis:")  # nothing listens there
        visitor.act("Import from a Redis", url=source.url, pattern="film:*")
        expect(imports.get_by_role("row").nth(1)).to_contain_text("done")
        expect(imports.get_by_role("row").nth(1)).to_contain_text("1 / 1")
        assert "not-told" not in page.content()
    finally:
        source.end()
    shown = site.said("likes", "show", "film:1", "--json")
    assert (shown["count"], sorted(shown["newest"])) == (3, ["1000", "3", "5"])
    assert site.api("GET", "likes/other/1")["count"] == 0
    logged = site.said("console", "audit", "--search", "likes/imports", "--json")
    assert {each["detail"] for each in logged} == {"keys film:*"}


def test_what_a_person_types_stays_when_the_page_is_drawn_again(site: Site, enter: Callable[..., Visitor]) -> None:
    visitor = enter()
    page = visitor.page
    held: list[Route] = []

    def is_held() -> bool:
        page.wait_for_timeout(10)
        return bool(held)

    item = re.compile(r"/api/v1/likes/post/2(\?|$)")
    page.route(item, lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks the handler
    page = visitor.go("likes/post%3A2")
    page.get_by_role("button", name="Like for a user", exact=True).first.click()
    field = page.get_by_role("dialog", name="Like for a user").locator("[name=user]")
    field.fill("7")
    wait_for(is_held)
    held.pop().continue_()
    expect(page.get_by_text("Newest likers:")).to_be_visible()
    expect(field).to_have_value("7")
    page = visitor.go("topology")
    page.get_by_role("button", name="Add a node").first.click()
    field = page.get_by_role("dialog", name="Add a node").locator("[name=partition]")
    field.fill("3")
    for _ in range(3):  # each sample asks for the links again and draws them
        with page.expect_response("**/console/topology"):
            pass
    expect(field).to_have_value("3")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Add a node").first.click()
    expect(field).to_have_value("0")


def test_fleet(site: Site, enter: Callable[..., Visitor]) -> None:
    visitor = enter()
    with background(site.instance, "fleet", "agents", "--count", "20"):
        wait_for(lambda: site.api("GET", "fleet/clients")["total"] == 20)
        page = visitor.go("fleet")
        expect(page.get_by_role("region", name="Clients", exact=True).get_by_role("row")).to_have_count(21)
        counted = site.said("fleet", "counts", "province", "--json")
        assert counted == site.api("GET", "fleet/counts", params={"by": "province"})
        assert counted["clients"] == 20
        places = page.get_by_role("region", name="Clients by place")
        expect(places.get_by_role("row")).to_have_count(1 + len(counted["values"]))
        visitor.act("Add a task", name="hourly", per_hour="30")
        assert [each["name"] for each in site.api("GET", "fleet/tasks")["tasks"]] == ["hourly"]
        visitor.act("Pause hourly")
        assert site.api("GET", "fleet/tasks")["tasks"][0]["paused"]
        picture(visitor, "fleet")
        page.get_by_role("region", name="Clients by country").get_by_role("button", name="China").click()
        expect(page.get_by_role("region", name="Clients by province of China").get_by_role("row")).to_have_count(4)
        picture(visitor, "fleet-map", "Map of clients")
        visitor.act("Remove hourly")
        assert site.api("GET", "fleet/tasks")["tasks"] == []
        page.get_by_role("button", name="Ask clients now").click()
        dialog = page.get_by_role("dialog", name="Ask clients now")
        dialog.locator("[name=pick]").fill("5")
        dialog.locator("button[type=submit]").click()
        page.wait_for_url(re.compile("#/fleet/runs/"))
        expect(page.get_by_text("5 results of")).to_be_visible()
        run = page.url.rpartition("/")[2]
        assert len(site.api("GET", f"fleet/runs/{run}")["done"]) == 5
        page = visitor.go("fleet")
        expect(page.get_by_role("region", name="Runs").get_by_role("link")).to_have_count(1)
        (past,) = site.said("fleet", "runs", "--json")["runs"]
        assert (past["wanted"], past["done"], past["state"]) == (5, 5, "done")
        assert site.api("GET", "fleet/runs")["runs"] == [past]
        expect(page.get_by_role("region", name="Clients by number of picks").get_by_role("row")).to_have_count(3)
        assert site.api("GET", "fleet/fairness")["picked"] == {"0": 15, "1": 5}
        expect(page.get_by_text("clients asked in the last hour")).to_be_visible()


def test_an_event_source_on_a_run_that_has_ended_comes_back_once_and_is_told_to_stop(
    site: Site, enter: Callable[..., Visitor]
) -> None:
    with background(site.instance, "fleet", "agents", "--count", "4"):
        wait_for(lambda: site.api("GET", "fleet/clients")["total"] == 4)
        run = site.api("POST", "fleet/runs", json={"kind": "ping", "pick": 2, "target": "", "where": ""})["run"]
        wait_for(lambda: site.api("GET", f"fleet/runs/{run}")["state"] == "done")
    page = enter().page
    answers: list[Response] = []
    page.on("response", lambda each: answers.append(each) if each.url.endswith("/events") and run in each.url else None)
    told = page.evaluate(
        """async (path) => {
            const source = new EventSource(path);
            const events = [];
            for (const name of ["asked", "result", "ended"]) source.addEventListener(name, () => events.push(name));
            await new Promise((done) => { source.onerror = () => source.readyState === EventSource.CLOSED && done(); });
            return events;
        }""",
        f"/api/v1/fleet/runs/{run}/events",
    )
    assert (told.count("result"), told[-1], told.count("ended")) == (2, "ended", 1), "each event came once"
    assert [each.status for each in answers] == [200, 204], "204 is the answer to the id of `ended`"


def test_clients_are_on_maps_by_codes_and_names_and_others_beside_them(
    site: Site, enter: Callable[..., Visitor]
) -> None:
    visitor = enter()
    marks = "CN_520000_1_1,中国_贵州省_1_1,CHN_Xizang_1_1,CN_999999_1_1,US_California_1_1,Atlantis_1_1_1"
    with background(site.instance, "fleet", "agents", "--count", "12", "--marks", marks):
        wait_for(lambda: site.api("GET", "fleet/clients")["total"] == 12)
        page = visitor.go("fleet")
        world = page.get_by_role("region", name="Clients by country")
        expect(world.get_by_role("row")).to_have_text(
            ["countrytold asclients", "ChinaCN, CHN, 中国8", "United StatesUS2", "not on the mapAtlantis2"]
        )
        expect(page.get_by_role("img", name="Clients by country: China 8, United States 2")).to_be_visible()
        expect(page.get_by_text("12 clients; 2 in places that the map does not have")).to_be_visible()
        assert dict(site.said("fleet", "counts", "country", "--json")["values"])["CN"] == 4
        world.get_by_role("button", name="China").press("Enter")
        china = page.get_by_role("region", name="Clients by province of China")
        expect(china.get_by_role("row")).to_have_text(
            ["provincetold asclients", "Guizhou520000, 贵州省4", "TibetXizang2", "not on the map9999992"]
        )
        expect(page.locator("svg.map path.in-5 title")).to_have_text(["Guizhou: 4"])
        page.get_by_label("Language").select_option("zh")
        expect(china).to_have_count(0)
        expect(page.get_by_role("row", name="贵州 520000, 贵州省 4")).to_be_visible()
        page.get_by_role("combobox", name="地图", exact=True).select_option("")
        page.locator("svg.map path.opens", has_text="美国").click()
        expect(page.get_by_role("row", name="California California 2")).to_be_visible()


def test_topology(site: Site, enter: Callable[..., Visitor]) -> None:
    visitor = enter()
    page = visitor.go("topology")
    drawn = page.get_by_role("img", name=re.compile("[0-9]+ links"))
    expect(drawn).to_contain_text("gateway")
    marks = drawn.locator("line").evaluate_all("all => all.map((each) => each.getAttribute('class'))")
    assert marks
    assert set(marks) <= {"grade-0", "grade-1", "grade-2", "warn", "fail"}
    assert "gateway-1" in visitor.act("Add a node", role="gateway")
    wait_for(lambda: site.instance.is_ready() and "gateway-1" in site.instance.names("gateway"))
    expect(drawn).to_contain_text("gateway-1")
    picture(visitor, "topology")
    visitor.act("Drain a node", name="gateway-1")
    wait_for(lambda: "gateway-1" not in site.instance.names("gateway"))
