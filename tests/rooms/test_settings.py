"""Engines take their settings by name, and a name that they do not know says nothing: both sides are compared here."""

import re
from collections.abc import Iterator
from typing import Any, Final, get_type_hints

import msgspec
import pytest

from muster_server.systems.edge.options import EdgeSettings
from muster_server.systems.presence.options import PresenceSettings
from muster_server.systems.rooms import gateway
from muster_server.systems.rooms.broker import BrokerSettings
from muster_server.systems.rooms.gateway import GatewaySettings
from muster_server.systems.rooms.proxy import ProxySettings
from muster_server.systems.rooms.router import RouterSettings
from tests.documents import ROOT

MORE: Final[dict[type[msgspec.Struct], set[str]]] = {EdgeSettings: {"version", "methods"}}
"""Names that `settings_json` is given beside those of the class."""
FOR_BENCHES: Final = {"bundle"}
"""Names that only benches set."""


def engine_names(struct: str, text: str) -> Iterator[str]:
    """The fields of a struct of the engine, with those of the structs that it flattens."""
    found = re.search(rf"pub struct {struct} \{{\n(.*?)\n\}}", text, re.DOTALL)
    assert found is not None, struct
    for flat, name, kind in re.findall(r"(#\[serde\(flatten\)\]\s*)?pub (\w+): (\w+)", found[1]):
        if flat:
            yield from engine_names(kind, text)
        else:
            yield name


def given_names(settings: type[msgspec.Struct]) -> set[str]:
    """What `settings_json` writes: own fields, and those of the two tables of the configuration."""
    hints: dict[str, Any] = get_type_hints(settings)
    names = set(hints) - {"options", "clients"}
    for table in ("options", "clients"):
        names |= set(hints[table].__struct_fields__ if table in hints else ())
    return names | MORE.get(settings, set())


@pytest.mark.parametrize("settings", [GatewaySettings, ProxySettings, BrokerSettings, RouterSettings, EdgeSettings])
def test_every_setting_of_an_engine_of_rooms_is_given(settings: type[msgspec.Struct]) -> None:
    text = (ROOT / "core" / "rooms" / "src" / "settings.rs").read_text()
    wanted = set(engine_names(settings.__name__, text)) - FOR_BENCHES
    assert wanted
    assert wanted - given_names(settings) == set()


def test_every_setting_of_presence_is_given_by_gateways_or_writers() -> None:
    text = (ROOT / "core" / "presence" / "src" / "settings.rs").read_text()
    wanted = set(engine_names("PresenceSettings", text))
    assert wanted
    assert wanted - given_names(PresenceSettings) - given_names(gateway.PresenceSettings) == set()
