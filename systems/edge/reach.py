"""The edges that a command loads, and the credential for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muster_server.control.errors import UNAVAILABLE, USAGE, UserError
from muster_server.control.terminal.found import Target, client_of, found
from muster_server.systems.edge.options import EdgeOptions
from muster_server.systems.edge.sessions import Server
from muster_server.systems.edge.system import EDGE

NONE_RUNS: Final = "no edge runs here; start one: muster up --with edge"


@dataclass(frozen=True, slots=True)
class Edges:
    """URLs of edges, and the token for them."""

    urls: Sequence[str]
    token: str

    @property
    def servers(self) -> list[Server]:
        """Their addresses."""
        return [Server.of(url) for url in self.urls]


async def edges(where: Target) -> Edges:
    """The edges that `where` names by their URLs, or those of the local instance or of a registry. Raises `UserError`."""
    own = where.end.credential()
    if where.end.edges:
        for url in where.end.edges:
            try:
                Server.of(url)
            except ValueError:
                raise UserError(
                    f"--url: {url!r} is not a URL of an edge (expected ws://HOST:PORT or wss://…)", USAGE
                ) from None
        return Edges(where.end.edges, _text(own or b""))
    async with found(where) as nodes:
        record = await nodes.record()
    options: EdgeOptions = where.config().section("edge")
    urls = [
        EDGE.url(*each.bind, each.secure or bool(options.tls_cert_file))
        for each in record.of(EDGE.name)
        if isinstance(each.bind, tuple)
    ]
    if not urls:
        raise UserError(NONE_RUNS, UNAVAILABLE)
    return Edges(urls, _text(client_of(record).token if own is None else own))


def _text(credential: bytes) -> str:
    try:
        return credential.decode("ascii")
    except UnicodeDecodeError:
        raise UserError("the token is not text, which a client of an edge needs", USAGE) from None
