"""Hosts on one bridge, which are network namespaces, and the programs of `deploy/front` on them.

Owns the namespaces. It needs root. It must not know the portal.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

from .processes import path

FRONT: Final = Path(__file__).parents[3] / "deploy" / "front"
ADDRESS: Final = "192.0.2.100"
"""The address of clients, which one of both hosts of the front has."""
FRONTS: Final = {"a": "192.0.2.1", "b": "192.0.2.2"}
NJS: Final = "/usr/lib/nginx/modules/ngx_http_js_module.so"
NEEDS: Final = {
    "nginx": "nginx",
    "keepalived": "keepalived",
    "ip": "iproute2",
    "curl": "curl",
    "setpriv": "util-linux",
    NJS: "libnginx-mod-http-js",
}
"""Debian's packages, by program or file."""


def missing(needs: dict[str, str]) -> list[str]:
    """The packages of programs that are not there."""
    places = path().split(os.pathsep)
    return sorted({package for name, package in needs.items() if not any(Path(each, name).exists() for each in places)})


def refused() -> str:
    """The reason why this process cannot make hosts; empty: it can."""
    if os.geteuid() != 0:
        return "it needs root, for network namespaces and a moving address"
    tried = f"tried-{os.getpid()}"
    words = [("netns", "add", tried), ("-n", tried, "link", "add", "br0", "type", "bridge")]
    words += [("-n", tried, "link", "add", "v0", "type", "veth", "peer", "name", "v1"), ("netns", "del", tried)]
    for each in [ran("ip", *line) for line in words]:
        if each.returncode:
            return f"it needs the right to make network namespaces with a bridge: {each.stderr.strip():.200}"
    return ""


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a short command to its end, however it ends."""
    environment = os.environ | {"PATH": path()}
    return subprocess.run(words, check=False, capture_output=True, text=True, env=environment)


class Hosts:
    """Hosts on one bridge. Their names begin with the name of their owner and its pid."""

    def __init__(self, owner: str, pid: int = 0) -> None:
        """`pid`: of the process that made them, if it is not this one."""
        self._prefix = f"{owner}{pid or os.getpid()}"
        self._made: list[str] = []

    def name(self, host: str) -> str:
        """The namespace of a host."""
        return f"{self._prefix}-{host}"

    def words(self, host: str, *words: str) -> list[str]:
        """The command that runs these words on a host, in the same process."""
        return ["ip", "netns", "exec", self.name(host), *words]

    def run(self, *words: str) -> None:
        """Run a short command. Raises `OSError`."""
        done = ran(*words)
        if done.returncode:
            raise OSError(f"{' '.join(words)} failed: {done.stderr.strip():.300}")

    def bridge(self) -> None:
        """Make the bridge. Raises `OSError`."""
        self._add("br")
        self.run("ip", "-n", self.name("br"), "link", "add", "br0", "type", "bridge")
        self.run("ip", "-n", self.name("br"), "link", "set", "br0", "up")

    def add(self, host: str, *addresses: str) -> None:
        """Make a host with an interface `eth0` that has these addresses. Raises `OSError`."""
        self._add(host)
        self.run(
            *("ip", "-n", self.name("br"), "link", "add", f"to-{host}", "type", "veth"),
            *("peer", "name", "eth0", "netns", self.name(host)),
        )
        self.run("ip", "-n", self.name("br"), "link", "set", f"to-{host}", "master", "br0", "up")
        self.run("ip", "-n", self.name(host), "link", "set", "eth0", "up")
        for address in addresses:
            self.run("ip", "-n", self.name(host), "address", "add", f"{address}/24", "dev", "eth0")

    def _add(self, host: str) -> None:
        self.run("ip", "netns", "add", self.name(host))
        self._made.append(host)
        self.run("ip", "-n", self.name(host), "link", "set", "lo", "up")

    def link(self, host: str, state: str) -> None:
        """Set the link of a host `up` or `down`. Raises `OSError`."""
        self.run("ip", "-n", self.name("br"), "link", "set", f"to-{host}", state)

    def has(self, host: str, address: str) -> bool:
        """Return whether the host has the address."""
        return f" {address}/" in ran("ip", "-n", self.name(host), "address", "show", "dev", "eth0").stdout

    def close(self) -> None:
        """Remove the hosts; their processes have ended."""
        for host in reversed(self._made):
            ran("ip", "netns", "del", self.name(host))
        self._made.clear()


def left_over(owner: str) -> None:
    """Remove the hosts of owners that were killed."""
    for line in ran("ip", "netns", "list").stdout.splitlines():
        found = re.match(rf"{owner}(\d+)-\w+", line)
        if found and not Path("/proc", found[1]).exists():
            ran("ip", "netns", "del", found[0])


def nginx(folder: Path, edges: int = 2) -> list[str]:
    """The words that run nginx with the file of `deploy/front`, in the foreground. `folder` is for its files alone.
    `edges`: how many of the two edges of the file there are."""
    folder.mkdir(exist_ok=True)
    text = (FRONT / "nginx.conf").read_text().replace("/run/nginx.pid", f"{folder}/nginx.pid")
    text = text.replace("/etc/nginx/", f"{FRONT}/").replace("modules/", f"{Path(NJS).parent}/")
    kinds = "client_body", "proxy", "fastcgi", "uwsgi", "scgi"
    temporary = "".join(f"    {kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    text = text.replace("http {\n", f"daemon off;\nhttp {{\n{temporary}", 1)
    text = text.replace("worker_processes auto", "worker_processes 1")
    if edges == 1:
        text = text.replace("        server 192.0.2.22:7450;\n", "")
    (folder / "nginx.conf").write_text(text)
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def keepalived(folder: Path, host: str) -> list[str]:
    """The words that run keepalived with the file of `deploy/front`, in the foreground, on host `a` or `b`."""
    folder.mkdir(exist_ok=True)
    text = (FRONT / "keepalived.conf").read_text()
    if host == "b":
        text = text.replace(f"unicast_src_ip {FRONTS['a']}", f"unicast_src_ip {FRONTS['b']}")
        text = re.sub(rf"(unicast_peer \{{\s+){re.escape(FRONTS['b'])}", rf"\g<1>{FRONTS['a']}", text)
    (folder / "keepalived.conf").write_text(text)
    pids = {"-p": "keepalived.pid", "-r": "vrrp.pid", "-c": "checkers.pid"}
    words = [word for option, name in pids.items() for word in (option, str(folder / name))]
    return ["keepalived", *words, "-n", "-l", "-D", "-f", str(folder / "keepalived.conf")]
