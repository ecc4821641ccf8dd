"""The portal as on several hosts: databases, sentinels, and a front whose address moves. It needs root."""

import os
import re
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx2
import pytest

from portal import real
from portal.hosts import ADDRESS, FRONTS, Hosts, missing, ran, refused
from portal.processes import Failed, Missing
from portal.start import Plan
from tests.portal.site import BO, Site, Visitor, running
from tests.waiting import wait_for

PASSWORD = "a long password"
CLIENTS = set(real.CLIENTS.values())


def test_what_is_missing_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(tmp_path, 0, 10)
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    monkeypatch.setattr(real, "PROGRAMS", {"sh": "dash"})
    with pytest.raises(Missing, match=r"^it needs root, for network namespaces and a moving address$"):
        real.outside(plan, [])
    monkeypatch.setattr(real, "PROGRAMS", {"no-such-program": "its-package", "sh": "dash"})
    with pytest.raises(Missing) as found:
        real.outside(plan, [])
    assert str(found.value) == "programs are missing; install them: apt-get install --no-install-recommends its-package"
    assert found.value.code == 69


def test_a_port_in_use_is_said_and_leaves_no_host(tmp_path: Path, need: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        plan = Plan(tmp_path, taken.getsockname()[1], 10)
        with pytest.raises(Failed, match="cannot be used"):
            real.outside(plan, [])
    assert f"portal{os.getpid()}-" not in ran("ip", "netns", "list").stdout


@pytest.fixture
def need() -> None:
    """Skip without the programs, and where no namespace can be made; fail where nothing may be missing."""
    if packages := missing(real.PROGRAMS):
        mend = f"needs {', '.join(packages)}; to install: apt-get install --no-install-recommends {' '.join(packages)}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(mend)
    if why := refused():
        pytest.skip(why)


def answered(action: Callable[[], httpx2.Response], code: int, what: str) -> httpx2.Response:
    """Repeat an action until it is answered with this code, as a person does whose page failed."""

    def tried() -> httpx2.Response | None:
        try:
            answer = action()
        except (httpx2.HTTPError, AssertionError):
            return None
        return answer if answer.status_code == code else None

    found: httpx2.Response = wait_for(tried, what)
    return found


def registered(site: Site, visitor: Visitor, contact: str) -> None:
    page = visitor.send("/register", contact=contact, name="Cleo", password=PASSWORD, kind="person").text
    registration = re.search(r'name="registration" value="(\w+)"', page)
    assert registration is not None, page
    code = re.search(r"\b\d{6}\b", site.mail(contact).partition("\n\n")[2])
    assert code is not None
    assert visitor.send("/register/code", registration=registration[1], code=code[0]).status_code == 303


def noticed(visitor: Visitor, text: str) -> bool:
    return text in answered(lambda: visitor.get("/inbox"), 200, "notices").text


def round_of(cleo: Visitor, bo: Visitor, title: str) -> None:
    """Publish, reply and like, until the notices are there."""
    answer = answered(
        lambda: cleo.send("/shares", title=title, text="by Cleo", field="seeds", at=""), 303, "a publication"
    )
    path = answer.headers["location"]
    wait_for(lambda: title in answered(lambda: bo.get("/"), 200, "the front page").text, "the share at the front page")
    answered(lambda: bo.send(f"{path}/replies", text=f"about {title}"), 303, "a reply")
    assert f"about {title}" in answered(lambda: cleo.get(path), 200, "the share").text
    answered(lambda: bo.send(f"/likes/share/{path.rpartition('/')[2]}", likes="yes"), 303, "a like")
    for notice in f"Bo replies to “{title}”", f"Bo likes “{title}”":
        wait_for(partial(noticed, cleo, notice), notice)


def printed(words: list[str], expected: set[str]) -> bool:
    return set(ran(*words).stdout.split()) == expected


def test_people_go_on_when_a_front_and_the_primary_of_the_cache_die(tmp_path: Path, need: None) -> None:
    with running(tmp_path, "--real") as site:
        cleo, bo = site.visitor(), site.visitor(1)
        registered(site, cleo, "cleo@example.org")
        assert bo.login(BO).status_code == 303
        round_of(cleo, bo, "Before")

        hosts = Hosts("portal", site.process.pid)
        (owner,) = (host for host in FRONTS if hosts.has(host, ADDRESS))
        (other,) = FRONTS.keys() - {owner}
        os.killpg(site.child("nginx", f"front-{owner}/"), signal.SIGKILL)
        os.kill(site.child("redis-server", ":6379"), signal.SIGKILL)
        wait_for(lambda: hosts.has(other, ADDRESS), "the address at the other host")
        round_of(cleo, bo, "After")
        assert "Log out" in cleo.get("/").text  # the sessions are rows

        # Each client has a server of its own, and the portal learns the client's address from the front alone.
        asked = ("mariadb", "-uroot", "-h127.0.0.1", "-N", "-e", "SELECT DISTINCT address FROM portal.sessions")
        for port in real.DATABASES:
            words = hosts.words("s", *asked, f"-P{port}")
            wait_for(partial(printed, words, CLIENTS), "the clients' addresses at the primary and at the replica")
        for each in cleo, bo:
            each.close()
    assert f"portal{site.process.pid}-" not in ran("ip", "netns", "list").stdout
