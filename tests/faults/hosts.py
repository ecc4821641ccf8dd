"""Real nodes of `muster serve`, as on hosts of their own, with a registry between them.

Owns the processes that it started and ends them by their ids. Knows nothing of rooms.
"""

import asyncio
import contextlib
import http.client
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import muster
from muster_server.plane.trust import probe_token
from tests import forked, strikes
from tests.faults.instance import COMMAND, MUSTER, ROOT, configuration, samples
from tests.waiting import PATIENT_S, until


class Node:
    """One process, and its output."""

    def __init__(
        self, name: str, role: str, log: Path, begins: int, process: forked.Process | subprocess.Popen[bytes]
    ) -> None:
        self.name, self.role, self.log, self.process = name, role, log, process
        self._begins = begins

    def said(self) -> str:
        """All its output so far."""
        return self.log.read_bytes()[self._begins :].decode(errors="replace")

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Its log's lines of this event."""
        found: list[dict[str, Any]] = []
        for text in self.said().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                line = json.loads(text)
                if line.get("event") == event:
                    found.append(line)
        return found

    def get(self, path: str) -> tuple[int, Any]:
        """Ask its admin port for JSON; status 0 while there is none."""
        status, body = self._fetch(path)
        return status, json.loads(body) if status else None

    def metrics(self, role: str | None = None) -> dict[str, float]:
        """Its counters, in the form of `samples`. `role`: of a process that has several."""
        return samples(self._fetch("/metrics", role)[1].decode())

    def _fetch(self, path: str, role: str | None = None) -> tuple[int, bytes]:
        if not (started := [line for line in self.lines("started") if role in (None, line["role"])]):
            return 0, b""
        host, port = started[-1]["admin"]
        connection = http.client.HTTPConnection(host, port, timeout=PATIENT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def serves(self) -> bool:
        """Whether it is ready; fails if it is gone."""
        assert self.process.poll() is None, self.said()
        return self.get("/readyz")[0] == 200

    def kill(self) -> None:
        """kill -9."""
        strikes.kill(self.process.pid)
        self.process.wait()

    async def end(self) -> int:
        """End it as systemd does. Returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, PATIENT_S)


class Hosts:
    """Nodes that share secrets and a registry."""

    def __init__(self, path: Path, registry: str, **sections: dict[str, Any]) -> None:
        self.path, self.config = path, path / "muster.toml"
        (path / "cluster.secret").write_text(secrets.token_hex(32))
        (path / "names.key").write_text(secrets.token_hex(16))
        (path / "token").write_text(secrets.token_hex(16))
        (path / "probe.token").write_bytes(probe_token((path / "token").read_bytes()))
        (path / "jwt.secret").write_text(secrets.token_hex(32))
        (path / "signing.key").write_text(secrets.token_hex(32))
        cluster = {
            "secret_file": str(path / "cluster.secret"),
            "names_file": str(path / "names.key"),
            "token_file": str(path / "token"),
            "signing_key_file": str(path / "signing.key"),
        }
        self.sections: dict[str, dict[str, Any]] = {
            "cluster": cluster,
            "serve": {"dir": str(path / "nodes")},
            "registry": {"url": registry},
            "instance": {"dir": str(path)},
            **sections,
        }
        self.write()
        self._nodes: list[Node] = []

    def write(self, **sections: dict[str, Any]) -> None:
        """The configuration of all hosts, with other sections."""
        self.sections |= sections
        self.sections["probes"] = {"token_file": str(self.path / "probe.token")} | self.sections.get("probes", {})
        self.config.write_text(configuration(**self.sections))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a host that has nothing but the file."""
        return {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}

    def start(self, name: str, role: str, *words: str, **environment: str) -> Node:
        """A node of this name, in a process that has loaded the command already."""
        log = self.path / f"{name}.log"
        with log.open("ab") as stream:
            begins = stream.tell()
            asked = self._serve(role, "--name", name, *words)
            process = forked.server(COMMAND).start(asked, self.environment | environment, stdout=stream, stderr=stream)
        self._nodes.append(Node(name, role, log, begins, process))
        return self._nodes[-1]

    def start_anew(self, program: Sequence[str], name: str, role: str) -> Node:
        """The same by a program of its own, from its start."""
        log = self.path / f"{name}.log"
        with log.open("ab") as stream:
            begins = stream.tell()
            process = subprocess.Popen(
                [*program, *self._serve(role, "--name", name)],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        self._nodes.append(Node(name, role, log, begins, process))
        return self._nodes[-1]

    def _serve(self, role: str, *words: str) -> list[str]:
        """The words that start a node."""
        return ["serve", role, "--config", str(self.config), *words]

    def run(self, role: str, *words: str, **environment: str) -> tuple[int, str]:
        """A node that ends by itself: its exit code, and its output."""
        done = forked.server(COMMAND).run(self._serve(role, *words), self.environment | environment)
        assert done.stdout == b""
        return done.returncode, done.stderr.decode()

    async def said(self, role: str, *words: str, **environment: str) -> tuple[int, str]:
        """The same, while the loop of the test turns."""
        return await asyncio.to_thread(self.run, role, *words, **environment)

    async def asked(self, *words: str) -> tuple[int, str, str]:
        """A command on a host that has the file: its exit code, and what it said on stdout and stderr."""
        words = (*words, "--config", str(self.config))
        done = await asyncio.to_thread(forked.server(COMMAND).run, words, self.environment)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    async def asking(self, *words: str, stdin: int | None = None) -> asyncio.subprocess.Process:
        """The same while it runs, from its start."""
        return await asyncio.create_subprocess_exec(
            *MUSTER,
            *words,
            "--config",
            str(self.config),
            cwd=ROOT,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    async def serve(self, *nodes: Node) -> None:
        """Wait until these serve."""
        await until(lambda: all(node.serves() for node in nodes), PATIENT_S)

    def address(self) -> muster.Address:
        """The servers that clients learn."""
        ends: dict[str, list[muster.instance.Endpoint]] = {"gateway": [], "proxy": []}
        for node in self._nodes:
            if node.role in ends and node.process.poll() is None:
                told = node.lines("serving clients")[-1]
                ends[node.role].append((*told["address"], told["public_key"]))
        return muster.Address(tuple(ends["gateway"]), tuple(ends["proxy"]), (self.path / "token").read_bytes())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Processes started in the block end with it."""
        try:
            yield
        finally:
            for node in self._nodes:
                if node.process.poll() is None:
                    node.process.kill()
                node.process.wait()
