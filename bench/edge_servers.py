"""The servers of `muster bench edge`: an edge of Muster, and those of Centrifugo, Bun and Nchan that are there."""

import json
import os
import shutil
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import cpu, pin
from bench.child import Child, free_port, listens, private_directory
from bench.edge_sessions import CENTRIFUGE, CHANNEL, Encoding
from bench.muster import Instance
from muster_server.systems.edge.wire import PATH

MUSTER: Final = "muster"
WAITS: Final = "muster with a write interval"
CENTRIFUGO: Final = "centrifugo"
UWEBSOCKETS: Final = "uWebSockets"
NCHAN: Final = "nchan"
GET: Final = {
    CENTRIFUGO: "go install github.com/centrifugal/centrifugo/v6@latest",
    UWEBSOCKETS: "npm install bun, and its program `bun` in PATH",
    NCHAN: "apt-get install nginx libnginx-mod-nchan",
}
"""How to get each peer."""
NCHAN_MODULE: Final = "MUSTERBENCH_NCHAN"
"""The variable with the module's file where it is not the system's."""
NCHAN_MODULES: Final = "/usr/lib/nginx/modules/ngx_nchan_module.so"
BUN_PROGRAM: Final = Path(__file__).with_name("edge_bun.js")
QUEUE_BYTES: Final = 64 << 20
"""A client's queue at Centrifugo: with its default of 1 MiB it cuts clients of a saturated run."""
SETTINGS: Final = {
    "systems.enabled": "edge",
    "edge.anonymous_rights": "read,publish",
    "edge.command_rate": 1_000_000,
    "edge.command_burst": 1_000_000,
}

NGINX: Final = """
load_module {module};
daemon off;
master_process off;
pid {directory}/nginx.pid;
worker_rlimit_nofile 20000;
events {{ worker_connections 10000; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  nchan_shared_memory_size 256M;
  server {{
    listen 127.0.0.1:{port};
    location ~ ^/channel/(.+)$ {{
      nchan_pubsub websocket;
      nchan_channel_id $1;
      nchan_subscriber_first_message newest;
      nchan_message_buffer_length 10000;
      nchan_message_timeout 10s;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Server:
    """One server that runs."""

    name: str
    port: int
    cpu_ns: Callable[[], int]
    """CPU of all its processes."""
    rss_bytes: Callable[[], int]
    """Memory of the process that has the sessions."""
    encodings: Sequence[Encoding] = CENTRIFUGE
    path: str = PATH
    tls: ssl.SSLContext | None = None
    pid: int = 0
    """The process that has the sessions, of an edge."""


def muster(stack: ExitStack, interval_ms: int = 0, tls: Path | None = None) -> Server:
    """An edge with its broker and router, on the servers' core; its messages leave this long after each other.

    `tls`: the folder of `server.pem` and `server.key`, by which it encrypts.
    """
    settings: dict[str, object] = {**SETTINGS, "edge.write_interval_ms": interval_ms}
    context = None
    if tls is not None:
        settings |= {"edge.tls_cert_file": str(tls / "server.pem"), "edge.tls_key_file": str(tls / "server.key")}
        context = ssl.create_default_context(cafile=str(tls / "server.pem"))
    instance = Instance(settings=settings)
    stack.callback(instance.stop)
    instance.start()
    bind = next(each.bind for each in instance.record.processes if each.role == "edge")
    assert isinstance(bind, tuple)
    edge = instance.pids["edge"]
    name = WAITS if interval_ms else MUSTER
    used, memory = lambda: sum(instance.cpu_ns().values()), lambda: cpu.rss_bytes(edge)
    return Server(name, bind[1], used, memory, tls=context, pid=edge)


def centrifugo(stack: ExitStack) -> Server | None:
    """Centrifugo with its memory engine, without history; None: it is not there."""
    program = _found(CENTRIFUGO, Path.home() / "go" / "bin")
    if program is None:
        return None
    directory, port = Path(stack.enter_context(private_directory(CENTRIFUGO))), free_port()
    settings = {
        "http_server": {"address": "127.0.0.1", "port": str(port)},
        "client": {"insecure": True, "allowed_origins": ["*"], "queue_max_size": QUEUE_BYTES},
        "log": {"level": "error"},
    }
    file = directory / "config.json"
    file.write_text(json.dumps(settings))
    environment = {"GOMAXPROCS": "1"}
    words = [program, "--config", str(file)]
    child = Child(CENTRIFUGO, words, core=pin.SERVER_CORE, directory=directory, environment=environment)
    stack.callback(child.stop)
    child.wait_until(lambda: listens(port))
    return Server(CENTRIFUGO, port, lambda: cpu.process_ns(child.pid), lambda: cpu.rss_bytes(child.pid))


def uwebsockets(stack: ExitStack) -> Server | None:
    """uWebSockets in Bun, raw frames; None: it is not there."""
    program = _found("bun", Path.home() / ".bun" / "bin")
    if program is None:
        return None
    directory, port = Path(stack.enter_context(private_directory(UWEBSOCKETS))), free_port()
    child = Child(UWEBSOCKETS, [program, str(BUN_PROGRAM), str(port)], core=pin.SERVER_CORE, directory=directory)
    stack.callback(child.stop)
    child.wait_until(lambda: listens(port))
    return Server(UWEBSOCKETS, port, lambda: cpu.process_ns(child.pid), lambda: cpu.rss_bytes(child.pid), ("raw",), "/")


def nchan(stack: ExitStack) -> Server | None:
    """Nchan in nginx without a master process, raw frames; None: it is not there."""
    program, module = _found("nginx", Path("/usr/sbin")), Path(os.environ.get(NCHAN_MODULE) or NCHAN_MODULES)
    if program is None or not module.exists():
        return None
    directory, port = Path(stack.enter_context(private_directory(NCHAN))), free_port()
    file = directory / "nginx.conf"
    file.write_text(NGINX.format(module=module, directory=directory, port=port))
    words = [program, "-c", str(file), "-p", str(directory), "-e", str(directory / "error.log")]
    child = Child(NCHAN, words, core=pin.SERVER_CORE, directory=directory)
    stack.callback(child.stop)
    child.wait_until(lambda: listens(port))
    path = f"/channel/{CHANNEL}"
    return Server(NCHAN, port, lambda: cpu.process_ns(child.pid), lambda: cpu.rss_bytes(child.pid), ("raw",), path)


PEERS: Final = (centrifugo, uwebsockets, nchan)


def _found(program: str, folder: Path) -> str | None:
    return shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), str(folder))))
