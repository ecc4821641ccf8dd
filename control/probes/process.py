"""The process that probes steadily: `python -m control.probes.process`, started by `muster up` or `muster serve
prober`.

Owns its HTTP for operators. It is a client of the nodes, and does not register.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
import uvloop

import muster
from control.cluster import instance
from control.cluster.instance import Folder
from control.errors import UserError
from control.node import admin, logs, metrics
from control.node.enrolment import tree
from control.node.live import Live, Now
from control.node.process import Owner, Parent, child
from control.probes.maps import Fixed
from control.probes.prober import Prober, Source
from control.probes.spec import NAME, Spec
from control.probes.told import Told
from control.registry import Directory, Snapshot
from muster.instance import read_token
from plane.spec import SpecError, secret


class App(admin.App):
    """Whether it probes, and the results."""

    def __init__(self, prober: Prober, about: dict[str, Any], session: Callable[[], str | None]) -> None:
        self._prober, self._about, self._session = prober, about, session
        self._metrics = metrics.alone(NAME, 0, str(about["version"]), self._counted)

    @property
    def ready(self) -> bool:
        """Whether it knows the nodes."""
        return self._prober.snapshot.epoch > 0

    def answer(self, path: str, query: str) -> admin.Answer:
        """All reports if there are few paths."""
        if path == "/readyz":
            return admin.json_answer(200 if self.ready else 503, {"ready": self.ready})
        if path == "/metrics":
            return 200, metrics.CONTENT_TYPE, metrics.text(self._metrics)
        if path == "/api/v1/status":
            return admin.json_answer(200, self._status())
        return admin.nothing(path)

    def _status(self) -> dict[str, Any]:
        prober, session = self._prober, self._session()
        registry = {} if session is None else {"registry": {"session": session}}
        return {
            **self._about,
            **registry,
            "state": "ready" if self.ready else "starting",
            "probed": prober.paths,
            "left_out": prober.left_out,
            "paths": list(prober.figures(time.monotonic())),
        }

    def _counted(self) -> metrics.Counted:
        return Told(self._prober, self.ready)


async def serve(spec: Spec, log: structlog.typing.FilteringBoundLogger, owner: Owner) -> None:
    """Probe until the owner ends it. Raises `SpecError`."""
    end = asyncio.Event()
    directory = None if spec.registry is None else Directory(tree(spec.registry), log)
    snapshot = _fixed(spec) if directory is None else lambda: directory.snapshot
    prober = Prober(spec.probes, Source(snapshot, _client(spec), secret(spec.name_key_file, 16)), log)
    owner.watch(end, end, limit=prober.limit)
    async with contextlib.AsyncExitStack() as stack:
        if directory is not None:
            await stack.enter_async_context(directory)
        about = {"instance": spec.instance, "role": NAME, "node": 0, "pid": os.getpid(), "version": muster.__version__}
        app = App(prober, about, lambda: None if directory is None else directory.session)
        http = admin.http(app)
        serving = asyncio.create_task(http.serve(sockets=[admin.listen(spec.admin)]))
        work = asyncio.create_task(prober.run())
        ending = asyncio.create_task(end.wait())
        log.info("started", admin=spec.admin)
        saying = asyncio.create_task(_say(spec, directory, owner))
        try:
            await asyncio.wait([work, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, ending, saying):
                task.cancel()
            await asyncio.wait([work, ending, saying])
            http.end()
            await serving
        if not work.cancelled():
            work.result()
    log.info("ended")


async def _say(spec: Spec, directory: Directory | None, owner: Owner) -> None:
    if directory is not None and spec.registry is not None:
        owner.tell("waiting", error=f"the registry {spec.registry.url}")
        await directory.known()
    owner.tell("ready")


def _client(spec: Spec) -> muster.Address:
    """The credential of a client."""
    try:
        return muster.Address((), (), read_token(spec.token_file))
    except muster.MusterError as error:
        raise SpecError(str(error)) from None


def _fixed(spec: Spec) -> Callable[[], Snapshot]:
    try:
        return Fixed(instance.find(Folder(Path(spec.folder)))).snapshot
    except UserError as error:
        raise SpecError(str(error)) from None


def run(owner: Parent) -> None:
    """Probe until told to end. Raises `SpecError`, and `OSError` when the address is taken."""

    def again() -> Now:
        now = owner.spec(Spec)
        return Now(now.log_level, now.probes)

    spec = owner.spec(Spec)
    log = logs.configure(spec.log_level, spec.log_format, role=NAME, instance=spec.instance)
    owner.reloads(Live(log, spec.log_level, spec.probes), again)
    uvloop.run(serve(spec, log, owner))


def main() -> int:
    """Run it under a supervisor, and return the exit code."""
    return child("control.probes.process", run)


if __name__ == "__main__":
    sys.exit(main())
