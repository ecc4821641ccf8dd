"""The console in a process: the HTTP face with another entry."""

from functools import partial

import msgspec

from muster_server.plane.service import Context
from muster_server.plane.spec import Spec, SpecError
from muster_server.systems.console.http.entry import ConsoleEntry
from muster_server.systems.console.http.routes import handlers
from muster_server.systems.console.options import ConsoleOptions
from muster_server.systems.console.system import ConsoleSettings
from muster_server.systems.http.access import Access
from muster_server.systems.http.face import Base
from muster_server.systems.http.keys import Keyring
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.service import HttpService
from muster_server.systems.http.system import HttpSettings


class ConsoleService(HttpService):
    """The `plane.service.Service` of a console."""

    _entry: ConsoleEntry

    def __init__(self, spec: Spec, settings: ConsoleSettings, context: Context) -> None:
        """Raises `SpecError`."""
        port = (spec.bind or ("", 0))[1]
        try:
            super().__init__(spec, http_settings(settings), context, partial(self._enter, settings, port))
        except ValueError as error:
            raise SpecError(f"console.users: {error}") from None

    def _enter(
        self, settings: ConsoleSettings, port: int, base: Base, access: Access, keyring: Keyring
    ) -> ConsoleEntry:
        self._entry = ConsoleEntry(settings, base, access, keyring, port, handlers)
        return self._entry

    def take(self, settings: ConsoleSettings) -> None:  # type: ignore[override]
        """Use other users, hosts and lifetimes."""
        super().take(http_settings(settings))
        self._entry.take(settings.options)


def http_settings(settings: ConsoleSettings) -> HttpSettings:
    """The settings of the face below: the limits of `[http]`, with the console's own names and without the API's page."""
    return msgspec.structs.replace(settings.http, options=http_options(settings.options, settings.http.options))


def http_options(options: ConsoleOptions, http: HttpOptions) -> HttpOptions:
    """As above."""
    return msgspec.structs.replace(http, hosts=options.hosts, cors_origins=(), docs=False)


def build(spec: Spec, settings: ConsoleSettings, context: Context) -> ConsoleService:
    """Make the console. Raises `SpecError`."""
    return ConsoleService(spec, settings, context)
