"""`deploy/front`: nginx and keepalived on two hosts, which are network namespaces. A client's server stays the same, and
the address of clients moves when a host dies.

It needs root and the right to make namespaces, as in most containers for tests.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from portal.hosts import ADDRESS, FRONT, NEEDS, Hosts, keepalived, missing, nginx, ran, refused
from portal.processes import path
from tests.waiting import wait_for

AWAY_S_MAX: Final = 3.0
ROUNDS: Final = 3
BACKEND: Final = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(sys.argv[2].encode())
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer((sys.argv[1], 8000), Handler).serve_forever()
"""
CLIENT: Final = """
import socket, time
while True:
    try:
        with socket.create_connection(("192.0.2.100", 80), 0.2) as to:
            to.settimeout(0.3)
            to.sendall(b"GET /front/ok HTTP/1.0\\r\\n\\r\\n")
            if b"200" in to.recv(4096):
                print(time.monotonic(), flush=True)
    except OSError:
        pass
    time.sleep(0.02)
"""


def need() -> None:
    """Skip without the programs, and where no namespace can be made; fail where nothing may be missing."""
    if packages := missing(NEEDS):
        mend = f"needs {', '.join(packages)}; to install: apt-get install --no-install-recommends {' '.join(packages)}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(mend)
    if why := refused():
        pytest.skip(why)


class Net(Hosts):
    """Hosts on one bridge, and their processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__("front")
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, host: str, *words: str, log: str = "") -> subprocess.Popen[bytes]:
        """Start a process on a host, in a session of its own."""
        with (self.folder / (log or f"{host}.log")).open("ab") as output:
            process = subprocess.Popen(
                self.words(host, *words),
                start_new_session=True,
                env=os.environ | {"PATH": path()},
                stdout=output,
                stderr=output,
            )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End all processes, and remove the hosts."""
        for process in self._processes:
            strike(process, signal.SIGKILL)
            process.wait()
        super().close()


def strike(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


class Front:
    """Two hosts of the front, two servers, and a client."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.nginx: dict[str, subprocess.Popen[bytes]] = {}
        self.keepalived: dict[str, subprocess.Popen[bytes]] = {}
        net.bridge()
        net.add("a", "192.0.2.1")
        net.add("b", "192.0.2.2")
        net.add("s", "192.0.2.11", "192.0.2.12")
        net.add("c", *(f"192.0.2.{number}" for number in range(201, 221)))
        self.servers = [
            net.start("s", sys.executable, "-c", BACKEND, f"192.0.2.{11 + number}", str(number)) for number in range(2)
        ]
        for host in "a", "b":
            self.begin(host)
        self.seen = net.folder / "seen"
        net.start("c", sys.executable, "-c", CLIENT, log="seen")

    def begin(self, host: str) -> None:
        """Start a host's programs, or those of them that have ended."""
        folder = self.net.folder / host
        if host not in self.nginx or self.nginx[host].poll() is not None:
            self.nginx[host] = self.net.start(host, *nginx(folder))
        if host not in self.keepalived or self.keepalived[host].poll() is not None:
            self.keepalived[host] = self.net.start(host, *keepalived(folder, host))

    def owner(self) -> str:
        """The host that answers at the address: the one whose keepalived gave it the address."""
        return next((host for host in ("a", "b") if self.net.has(host, ADDRESS)), "")

    def answered(self) -> list[float]:
        """When the client got answers."""
        return [float(line) for line in self.seen.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def away_s(self, since: float) -> float:
        """Wait for steady answers after a strike, and return the longest time without one."""

        def steady() -> bool:
            after = [at for at in self.answered() if at > time.monotonic() - 1.5]
            return len(after) > 5 and after[-1] > since + 4.0

        wait_for(steady, "answers at the address")
        times = [since, *(at for at in self.answered() if at > since)]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def server_of(self, address: str) -> str:
        """The server that answers a client with this address."""
        words = ("curl", "-sS", "-m", "5", "--interface", address, f"http://{ADDRESS}/")
        done = ran(*self.net.words("c", *words))
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    need()
    net = Net(tmp_path_factory.mktemp("front"))
    try:
        made = Front(net)
        wait_for(lambda: len(made.answered()) > 10, "the first answers")
        yield made
    finally:
        net.close()


def place(address: str, servers: int) -> int:
    """What `spread.js` chooses: the halves of the address XORed, modulo the number of servers."""
    one, two, three, four = map(int, address.split("."))
    return ((one << 8 | two) ^ (three << 8 | four)) % servers


def test_clients_keep_their_servers_and_a_server_that_dies_is_replaced(front: Front) -> None:
    addresses = [f"192.0.2.{number}" for number in range(201, 221)]
    found = {address: front.server_of(address) for address in addresses}
    assert found == {address: str(place(address, 2)) for address in addresses}
    assert Counter(found.values()) == {"0": 10, "1": 10}
    strike(front.servers[0], signal.SIGKILL)
    front.servers[0].wait()
    assert {front.server_of(address) for address in addresses} == {"1"}
    front.servers[0] = front.net.start("s", sys.executable, "-c", BACKEND, "192.0.2.11", "0")
    wait_for(lambda: front.server_of("192.0.2.202") == "0", "the server that came back")  # after fail_timeout


def test_addresses_are_spread_evenly(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node; to install it: apt-get install --no-install-recommends nodejs")
    (tmp_path / "spread.mjs").write_bytes((FRONT / "spread.js").read_bytes())
    (tmp_path / "count.mjs").write_text(
        "import spread from './spread.mjs'\n"
        "const counts = [0, 0, 0]\n"
        "for (let n = 0; n < 1e5; n++) {\n"
        "  const at = (n * 2654435761) >>> 0\n"
        "  counts[spread.place([at >>> 24, (at >>> 16) & 255, (at >>> 8) & 255, at & 255], 3)]++\n"
        "}\n"
        "const v6 = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]\n"
        "console.log(JSON.stringify([counts, spread.place([192, 168, 1, 10], 4), spread.place(v6, 5)]))\n"
    )
    said = subprocess.run([node, str(tmp_path / "count.mjs")], capture_output=True, check=True, text=True).stdout
    counts, four, six = json.loads(said)
    assert all(abs(count - 1e5 / 3) < 1e4 / 3 for count in counts), counts
    assert four == place("192.168.1.10", 4)
    assert six == (0x2001 ^ 0x0DB8 ^ 7) % 5


def test_the_address_moves_when_its_host_dies_and_stays_when_that_one_comes_back(
    front: Front, record_property: Callable[[str, object], None]
) -> None:
    def dies_nginx(host: str) -> None:
        strike(front.nginx[host], signal.SIGKILL)
        front.nginx[host].wait()

    def dies_keepalived(host: str) -> None:
        strike(front.keepalived[host], signal.SIGKILL)
        front.keepalived[host].wait()
        # A host that is alive without keepalived keeps the address; the other one takes it over by its announcements.

    def link_down(host: str) -> None:
        front.net.link(host, "down")

    def link_up(host: str) -> None:
        front.net.link(host, "up")

    def stands_still(host: str) -> None:
        strike(front.nginx[host], signal.SIGSTOP)
        strike(front.keepalived[host], signal.SIGSTOP)

    def goes_on(host: str) -> None:
        strike(front.nginx[host], signal.SIGCONT)
        strike(front.keepalived[host], signal.SIGCONT)

    away: dict[str, list[float]] = {}
    for name, death, back in (
        ("nginx", dies_nginx, front.begin),
        ("keepalived", dies_keepalived, front.begin),
        ("link", link_down, link_up),
        ("standing still", stands_still, goes_on),
    ):
        times = away.setdefault(name, [])
        while len(times) < ROUNDS and not any(each <= AWAY_S_MAX for each in times):  # a machine may be busy
            wait_for(lambda: sum(front.net.has(host, ADDRESS) for host in ("a", "b")) == 1, "one owner")
            host = front.owner()
            other = "b" if host == "a" else "a"
            since = time.monotonic()
            death(host)
            times.append(round(front.away_s(since), 2))
            assert front.net.has(other, ADDRESS)
            back(host)
            wait_for(lambda: sum(front.net.has(host, ADDRESS) for host in ("a", "b")) == 1, "one owner")
            # After a standstill both hosts believe that they own it, and the one with the higher address goes on.
            assert front.owner() == (other if name != "standing still" else "b")
    record_property("away_s", away)
    print(away)
    assert all(min(times) <= AWAY_S_MAX for times in away.values()), away
