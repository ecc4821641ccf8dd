"""`muster url`: the address of the running gateways, with a token, in one text that a program anywhere can open."""

import sys
from typing import Final

from muster import url
from muster_server.control.cli import token
from muster_server.control.errors import UNAVAILABLE, UserError
from muster_server.control.terminal.found import Target, client_of, once
from muster_server.control.terminal.words import say

GATEWAYS_MAX: Final = 3
"""Limit of gateways in the URL: an end client learns the others from the first."""


def show(where: Target, wanted: token.Wanted | None) -> int:
    """Print the URL: with this token of a user, else with the shared token. Raises `UserError`."""
    record = once(where)
    ends = [(end.host, end.port, end.public_key) for end in record.gateways][:GATEWAYS_MAX]
    if not ends:
        raise UserError("no gateway runs, so there is no address for clients; start one: muster up", UNAVAILABLE)
    if wanted is None:
        shown = client_of(record).token
        say("muster: this URL contains the shared token, which allows everything; muster url USER makes one for a user")
    else:
        shown = token.made(where.file, wanted).encode()
    print(url.text(ends, shown))
    sys.stdout.flush()
    return 0
