"""The role `edge`: its descriptor, its options and its settings."""

from pathlib import Path

import pytest

from muster_server.control.config.load import load
from muster_server.control.config.options import UP
from muster_server.control.errors import ConfigError
from muster_server.plane.kind import Around
from muster_server.plane.kinds import kind, peers
from muster_server.systems.edge.options import EdgeSettings, settle


def configured(tmp_path: Path, text: str) -> EdgeSettings:
    file = tmp_path / "muster.toml"
    file.write_text(text)
    config = load(file, profile=UP).config
    around = Around(config.section, "test", tmp_path, 0, lambda path: path and f"/abs/{path}", runs=config.runs)
    return settle(config.section("edge"), around)


def test_its_clients_come_over_tcp_and_it_has_links() -> None:
    edge = kind("edge")
    assert (edge.linked, edge.serves, edge.door) == (True, True, None)
    assert edge.binds == ("bind", "link_bind")
    assert edge.url("::1", 7450) == "ws://[::1]:7450/connection/websocket"
    assert edge.url("::1", 7450, secure=True) == "wss://[::1]:7450/connection/websocket"
    assert {"broker", "router"} <= peers("edge")


def test_presence_hears_of_its_clients() -> None:
    for role in ("online-proxy", "online-writer", "unicast"):
        assert "edge" in peers(role)


def test_its_settings_follow_from_those_of_rooms(tmp_path: Path) -> None:
    settings = configured(
        tmp_path,
        '[rooms]\ndefault_rights = "read"\n[namespaces.feed]\nflow = "paced"\ndefault_rights = "read,publish"\n'
        '[edge]\ntls_cert_file = "c.pem"\ntls_key_file = "k.pem"\n',
    )
    assert settings.default_rights == [("*", ["read"]), ("feed:*", ["read", "publish"])]
    assert settings.paced_namespaces == ["feed"]
    assert settings.tls_cert_file == "/abs/c.pem"
    assert settings.options.arena_mib == 64
    assert settings.presence is None


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ('origins = ["example.com"]', "is no origin"),
        ('origins = ["https://example.com/path"]', "is no origin"),
        ('tls_cert_file = "c.pem"', "tls_key_file"),
        ("pong_ms = 30000", "pong_ms"),
        ('anonymous_rights = "write"', "anonymous_rights"),
    ],
)
def test_a_mistake_in_its_section_is_named(tmp_path: Path, text: str, mistake: str) -> None:
    with pytest.raises(ConfigError, match=mistake):
        configured(tmp_path, f"[edge]\n{text}\n")


@pytest.mark.parametrize("origin", ["https://example.com", "https://*.example.com", "http://localhost:8080", "*"])
def test_origins_may_have_a_star(tmp_path: Path, origin: str) -> None:
    assert configured(tmp_path, f'[edge]\norigins = ["{origin}"]\n').options.origins == (origin,)
