"""Makes an edge: a thin shell around its engine, which touches every byte of its clients.

Apart from the descriptor, which every command reads: only a node needs the imports of this file.
"""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from muster import __version__
from muster_server import _engines
from muster_server.plane import ways
from muster_server.plane.auth import answer, answering, taking
from muster_server.plane.keys import link_options
from muster_server.plane.role import Handler, Role
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec, SpecError
from muster_server.plane.trust import shared_token, trust_of
from muster_server.plane.users import Texts
from muster_server.systems.edge.calls import Calls
from muster_server.systems.edge.engine import EdgeEngine
from muster_server.systems.edge.options import EdgeSettings
from muster_server.systems.edge.tokens import EdgeAuthenticator
from muster_server.systems.rooms.build import door_options, placing, settings_json


def edge(spec: Spec, settings: EdgeSettings) -> Role:
    """Make an edge, which binds its sockets. Raises `SpecError`, and `OSError` when an address is taken."""
    options = settings.options
    if spec.token_file is None:
        raise SpecError("an edge needs token_file")
    queue = _engines.Undelivered() if settings.not_online else None
    engine: Any = _engines.EdgeEngine(
        link_options(spec),
        door_options(spec),
        blob(settings),
        tls=certificate(settings),
        undelivered=queue,
    )
    calls = Calls(engine, settings.calls, spec)
    anonymous = [word for word in options.anonymous_rights.split(",") if word]
    authenticator = EdgeAuthenticator(
        shared_token(spec.token_file), trust_of(spec), settings.default_rights, anonymous, settings.sends
    )
    texts = Texts()

    def authenticate_room(question: int, credential: bytes, room: str) -> None:
        answer(engine, question, authenticator.for_room(credential, room), texts)

    hands_on = None if queue is None else ways.hands_on(spec, settings.folder, settings.not_online, queue)

    @contextlib.asynccontextmanager
    async def beside(context: Context) -> AsyncIterator[None]:
        async with calls.opened(context), contextlib.nullcontext() if hands_on is None else hands_on(context):
            yield

    handlers: dict[str, Handler] = {
        "authenticate": answering(engine, authenticator, texts),
        "subscribe": authenticate_room,
        "call": calls.call,
    }
    return Role(
        engine,
        handlers,
        partial(taking, engine, authenticator),
        partial(placing, engine),
        partial(take, engine),
        texts=texts,
        beside=beside,
        counters=calls.counters,
    )


def take(engine: EdgeEngine, settings: EdgeSettings) -> None:
    """Use the settings that a running edge can change. Raises `SpecError`."""
    engine.settings(blob(settings))
    if (files := certificate(settings)) is not None:
        engine.tls(*files)


def blob(settings: EdgeSettings) -> bytes:
    """The settings as the engine reads them."""
    return settings_json(settings, version=f"muster {__version__}", methods=list(settings.calls))


def certificate(settings: EdgeSettings) -> tuple[bytes, bytes] | None:
    """The certificates and their key, in PEM; None: the edge speaks no TLS. Raises `SpecError`."""
    if not settings.tls_cert_file:
        return None
    try:
        return Path(settings.tls_cert_file).read_bytes(), Path(settings.tls_key_file).read_bytes()
    except OSError as error:
        raise SpecError(f"edge.tls_cert_file, edge.tls_key_file: cannot be read: {error}") from None
