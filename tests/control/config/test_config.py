"""Configuration: precedence, unknown names, origins, and messages with the mistake, its place and its fix."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from muster_server.control.cli.config_docs import markdown
from muster_server.control.config.layout import seats
from muster_server.control.config.load import find_file, load, values
from muster_server.control.config.options import ROLES, UP
from muster_server.control.errors import BAD_CONFIG, ConfigError
from muster_server.control.host.addresses import address_text, split_address
from muster_server.plane.kind import Around
from muster_server.systems.rooms.broker import BROKER
from muster_server.systems.rooms.gateway import GATEWAY
from muster_server.systems.rooms.proxy import PROXY
from tests.control.nodes import configured

ROOT = Path(__file__).parents[3]


def write(folder: Path, text: str) -> Path:
    file = folder / "muster.toml"
    file.write_text(text)
    return file


def refusal(tmp_path: Path, text: str = "", environment: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), environment or {})
    assert caught.value.exit_code == BAD_CONFIG
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_each_layer_wins_over_the_one_before(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "[gateway]\narena_mib = 1\nkeepalive_ms = 900\n[demo]\nrate = 10\nmembers = 5\n[broker]\narena_mib = 9\n",
    )
    environment = {"MUSTER_DEMO__RATE": "20", "MUSTER_DEMO__MEMBERS": "6"}
    loaded = load(file, environment, {"demo.members": (7, "--members")}, UP)
    config, origins = loaded.config, loaded.origins
    assert (config.section("proxy").keepalive_ms, origins["proxy.keepalive_ms"]) == (400, "muster up")
    assert (config.section("gateway").keepalive_ms, origins["gateway.keepalive_ms"]) == (900, str(file))
    assert (config.section("demo").rate, origins["demo.rate"]) == (20, "MUSTER_DEMO__RATE")
    assert (config.section("demo").members, origins["demo.members"]) == (7, "--members")
    assert (config.section("demo").payload_bytes, origins["demo.payload_bytes"]) == (200, "default")


def test_the_registry_and_the_database_that_muster_up_presets_can_be_turned_off(tmp_path: Path) -> None:
    off = {"MUSTER_REGISTRY__URL": "none", "MUSTER_DATABASE__URL": "none"}
    told = [load(write(tmp_path, ""), environment, profile=UP).config for environment in ({}, off)]
    assert [(each.registry.url, each.section("database").url) for each in told] == [("embedded", "sqlite"), ("", "")]


def test_a_command_takes_a_file_that_enables_every_system_and_leaves_the_registry_to_muster_up(tmp_path: Path) -> None:
    file = write(tmp_path, '[systems]\nenabled = "all"\n')
    assert load(file, {}).config.registry.url == ""
    assert load(file, {}, profile=UP).config.registry.url == "embedded"
    with pytest.raises(ConfigError, match="nodes of the fleet find each other in a registry"):
        load(file, {"MUSTER_REGISTRY__URL": "none"}, profile=UP)


def test_every_value_has_an_origin(tmp_path: Path) -> None:
    loaded = load(
        write(tmp_path, '[namespaces.files]\nflow = "paced"\n[faults.links."gateway->client"]\nloss = 0.5\n'), {}
    )
    assert {name for name, _ in values(loaded.config)} == set(loaded.origins)
    assert loaded.origins["namespaces.files.flow"].endswith("muster.toml")
    assert loaded.config.faults.links["gateway->client"].loss == 0.5
    assert loaded.config.faults.active()


def test_the_result_is_frozen(tmp_path: Path) -> None:
    config: Any = load(write(tmp_path, '[namespaces.a]\nflow = "live"\n'), {}).config
    with pytest.raises(AttributeError):
        config.section("gateway").arena_mib = 1
    with pytest.raises(TypeError):
        config.namespaces["b"] = None


def test_how_a_namespace_keeps_its_rooms_reaches_brokers_gateways_and_proxies(tmp_path: Path) -> None:
    text = (
        "[namespaces.b]\nhistory_messages = 300\nhistory_kib = 512\nhistory_s = 5\narena_share = 9\n"
        '[namespaces.a]\nhistory_s = 3600\n[namespaces.c]\nflow = "paced"\n'
    )
    config = load(write(tmp_path, text), {}).config
    around = Around(section=config.section, instance="a", folder=tmp_path, partition=0, absolute=str)
    kept = [("a", 0, None, None, 3600), ("b", 9, 300, 512 << 10, 5)]
    assert BROKER.settle(config.role("broker"), around).namespaces == kept
    assert GATEWAY.settle(config.role("gateway"), around).namespaces == kept
    assert PROXY.settle(config.role("proxy"), around).namespaces == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gatewy]\nx = 1", ["unknown key gatewy", "did you mean gateway?"]),
        ("[gateway]\narena = 1", ["unknown key gateway.arena", "did you mean gateway.arena_mib?"]),
        ("[gateway]\nzzz = 1", ["unknown key gateway.zzz", "muster config docs"]),
        ("gateway = 1", ["write [gateway]"]),
        ('[instance]\ndir = "a\\u0000b"', ["instance.dir", "'a\\x00b'", "contains a NUL"]),
        ('[gateway]\narena_mib = "64"', ["gateway.arena_mib", "`int`"]),
        ("[gateway]\narena_mib = 0", [">= 1"]),
        ('[gateway]\nbind = "somewhere"', ["gateway.bind", "127.0.0.1:7400"]),
        ('[gateway]\nbind = "::1:7400"', ["gateway.bind", "[::1]:7400"]),
        ('[gateway]\nbind = "[fe80::1%lo]:7400"', ["gateway.bind", "not an IP address"]),
        ('[router]\nbind = "0.0.0.0:7400"', ["router.bind", "'0.0.0.0:7400'", "name one"]),
        ('[proxy]\nlink_bind = "[::]:0"', ["proxy.link_bind", "'[::]:0'", "name one"]),
        ('[router]\nbind = "[::1]:0"', ["muster.toml: router.bind", "broker.bind", "IPv4", "IPv6"]),
        ("[gateway]\nkeepalive_ms = 60000", ["gateway.keepalive_ms", "45000"]),
        ("[clients]\nbackoff_ms = 9000", ["clients.backoff_ms", "5000", "9000"]),
        ('[namespaces."No Name"]\nflow = "live"', ['namespaces."No Name"', "a-z"]),
        ('[faults.links."gateway-client"]\nloss = 0.1', ["did you mean gateway->client?"]),
        ('[admin]\nhost = "0.0.0.0"', ["admin.host"]),
        ("[faults]\nloss = 2.0", ["faults.loss"]),
        ("[gateway", ["not TOML"]),
        ("x = " + "[" * 20_000, ["not TOML"]),
        ("x = " + "9" * 20_000, ["not TOML"]),
        ("#" * ((1 << 20) + 1), ["limit 1 MiB"]),
        ('[log]\nformat = "xml"', ["log.format = 'xml'", "not one of 'json', 'text'"]),
        ('[namespaces.a]\nflow = "fast"', ["namespaces.a.flow", "not one of 'live', 'paced'"]),
        ("[namespaces.a]\nhistory_messages = 255", ["namespaces.a.history_messages = 255", ">= 256"]),
        ("[namespaces.a]\nhistory_s = 4", ["namespaces.a.history_s = 4", ">= 5"]),
        ("[namespaces.a]\narena_share = 91", ["namespaces.a.arena_share = 91", "<= 90"]),
        (
            "[namespaces.a]\narena_share = 50\n[namespaces.b]\narena_share = 41",
            ["muster.toml: namespaces.a.arena_share", "add up to 91 %", "limit 90 %"],
        ),
        (
            "[broker]\narena_mib = 16\n[namespaces.a]\narena_share = 6",
            ["namespaces.a.arena_share", "6 % of broker.arena_mib are 983 KiB", "at least 1024 KiB"],
        ),
        (
            "[gateway]\narena_mib = 10\n[namespaces.a]\narena_share = 20\nhistory_kib = 1025",
            ["namespaces.a.history_kib", "1025 KiB exceed half", "gateway.arena_mib (limit 1024 KiB)"],
        ),
        (
            "".join(f"[namespaces.n{number}]\nhistory_s = 9\n" for number in range(128)),
            ["namespaces: too many", "128 (limit 127)"],
        ),
        ("[loop]\nlinger_us = 20001", ["loop.linger_us = 20001", "<= 20000"]),
        ('[loop]\nlinger_us = "auto"', ["loop.linger_us", "`int`"]),
        ("[up]\ngateways = 0", ["up.gateways = 0", ">= 1"]),
        ("[up]\nproxies = 65", ["up.proxies = 65", "<= 64"]),
        ('[up]\nbrokers = "3x2"', ["up.brokers", "partitions 3", "power of two from 1 to 256"]),
        ('[up]\nbrokers = "0"', ["up.brokers", "partitions 0"]),
        ('[up]\nbrokers = "512x1"', ["up.brokers", "partitions 512"]),
        ('[up]\nbrokers = "2x0"', ["up.brokers", "invalid number of replicas 0 (expected 1 to 16)"]),
        ('[up]\nbrokers = "2x17"', ["up.brokers", "replicas 17"]),
        *(
            (f'[up]\nbrokers = "{text}"', ["up.brokers", text, "PARTITIONSxREPLICAS, for example 2x2"])
            for text in ("", "x", "2x", "x2", "2x2x2", "-2", "2 x 2", "two", "2,2", "\u0662")
        ),
        ('[up]\nbrokers = "256x2"', ["up: too many nodes: 516", "512"]),
        ('[up]\nrouters = "6x2"', ["up.routers", "partitions 6"]),
        (
            '[up]\nproxies = 3\n[proxy]\nbind = "127.0.0.1:65534"',
            ["proxy.bind", "too many nodes: 3 from", "65535"],
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path: Path, text: str, words: list[str]) -> None:
    message = refusal(tmp_path, text)
    assert "muster.toml" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("MUSTER_GATEWAY_ARENA_MIB", "1", ["did you mean MUSTER_GATEWAY__ARENA_MIB?"]),
        ("MUSTER_GATEWAY__ARENA", "1", ["did you mean gateway.arena_mib?"]),
        ("MUSTER_GATEWAY__ARENA_MIB", "much", ["'much'", "`int`"]),
        ("MUSTER_GATEWAY__BIND__X", "1", ["no keys below"]),
        ("MUSTER_GATEWAY", "1", ["MUSTER_SECTION__KEY"]),
        ("MUSTER_NAMESPACES__FILES", "paced", ["is a table"]),
        ("MUSTER_INSTANCE__DIR", "/tmp/\udcff", ["MUSTER_INSTANCE__DIR", "not text"]),
    ],
)
def test_a_mistake_in_the_environment_is_one_line_that_names_it(
    tmp_path: Path, name: str, raw: str, words: list[str]
) -> None:
    message = refusal(tmp_path, environment={name: raw})
    assert message.startswith(name)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        (
            'url = "zk:/h:1"',
            "registry.url: invalid registry 'zk:/h:1' (expected embedded, zk://",
        ),
        ('url = "zk://h:1,h"', "registry.url: invalid server 'h' in 'zk://h:1,h' (expected HOST:PORT)"),
        ('url = "zk://zk..a:1"', "registry.url: invalid server 'zk..a:1' in 'zk://zk..a:1' (expected HOST:PORT)"),
        ('url = "embedded"\nauth = "digest"', "registry.auth: applies only to ZooKeeper"),
        (
            'url = "zk://h:1"\ntls_cert_file = "c"',
            "registry.tls_key_file: registry.tls_cert_file and",
        ),
        (
            'url = "zk://h:1"\ntls_cert_file = "c"\ntls_key_file = "k"',
            "registry.tls_ca_file: registry.tls_cert_file needs it",
        ),
        ('url = "zk://h:1"\nauth = "sasl"', "registry.user: registry.auth = 'sasl' needs it"),
        ('url = "zk://h:1"\nauth = "digest"\nuser = "me"', "registry.password_file: registry.auth = 'digest' needs it"),
    ],
)
def test_a_registry_that_cannot_be_meant_is_one_line(tmp_path: Path, keys: str, wrong: str) -> None:
    assert wrong in refusal(tmp_path, f"[registry]\n{keys}\n")


def test_a_database_without_its_extra_is_one_line_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    line = refusal(tmp_path, '[database]\nurl = "postgresql://me@db/muster"\n')
    assert "database.url: asyncpg is not installed; to mend: pip install 'muster-server[database]'" in line


def test_a_database_that_cannot_be_meant_is_one_line(tmp_path: Path) -> None:
    line = refusal(tmp_path, '[database]\nurl = "mysql://me@db"\n')
    assert "database.url: 'mysql://me@db' names no database" in line
    line = refusal(tmp_path, '[database]\nurl = "mysql://me:s3cret@db/rooms"\n')
    assert "database.url: the URL must not contain a password; put it into database.password_file" in line
    assert "s3cret" not in line


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: cannot be read: No such file"):
        load(tmp_path / "absent.toml", {})
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(ConfigError, match=r"latin\.toml: is not UTF-8"):
        load(tmp_path / "latin.toml", {})


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "marked.toml").write_bytes(b'\xef\xbb\xbf[instance]\nname = "n"\n')
    assert load(tmp_path / "marked.toml", {}).config.instance.name == "n"


def test_a_file_here_that_others_wrote_or_may_write_is_refused_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "muster.toml"
    file.write_text('[instance]\nname = "n"\n')
    assert load(environment={"HOME": str(tmp_path)}).config.instance.name == "n"
    file.chmod(0o646)
    with pytest.raises(ConfigError, match=r"muster\.toml: any user can write it; .*--config muster\.toml"):
        load(environment={"HOME": str(tmp_path)})
    assert load(Path("muster.toml"), {}).config.instance.name == "n"
    file.chmod(0o664)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    if file.stat().st_uid == 0:
        assert load(environment={"HOME": str(tmp_path)}).config.instance.name == "n", "root is trusted"
        os.chown(file, 4_000_001, -1)
    with pytest.raises(ConfigError, match=r"muster\.toml: belongs to another user; .*--config muster\.toml"):
        load(environment={"HOME": str(tmp_path)})


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"/dev/zero is too long"):
        load(Path("/dev/zero"), {})


def test_the_file_is_searched_in_the_documented_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    own = tmp_path / ".config" / "muster" / "muster.toml"
    own.parent.mkdir(parents=True)
    environment = {"HOME": str(tmp_path)}
    assert find_file(None, environment) is None
    own.touch()
    assert find_file(None, environment) == own
    Path("muster.toml").touch()
    assert find_file(None, environment) == Path("muster.toml")
    assert find_file(None, environment | {"MUSTER_CONFIG": "named.toml"}) == Path("named.toml")
    assert find_file(Path("flag.toml"), environment | {"MUSTER_CONFIG": "named.toml"}) == Path("flag.toml")


def test_a_folder_that_may_not_be_entered_has_no_file_for_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir(mode=0)
    tmp_path.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65_534)
        assert find_file(None, {"HOME": str(home)}) is None
    finally:
        if root:
            os.seteuid(0)
        tmp_path.chmod(0o700)
        home.chmod(0o700)


def test_the_nodes_of_a_layout_are_the_same_ones_when_there_are_more() -> None:
    one, more = (seats(each) for each in (configured(), configured(gateways=3, brokers="2x2", routers="4", proxies=2)))
    assert [(seat.node, seat.name) for seat in one] == [(1, "router"), (2, "broker"), (3, "gateway"), (4, "proxy")]
    assert set(one) < set(more)
    assert len({seat.node for seat in more}) == len({seat.name for seat in more}) == len(more) == 13
    assert [seat.name for seat in more if seat.role == "gateway"] == ["gateway", "gateway-1", "gateway-2"]
    assert [seat.partition for seat in more if seat.role == "broker"] == [0, 0, 1, 1]
    assert [seat.partition for seat in more if seat.role == "router"] == [0, 1, 2, 3]
    assert seats(configured(brokers="4")) == seats(configured(brokers="4x1"))
    assert len(seats(configured(brokers="256"))) == 259


@pytest.mark.parametrize("text", ["", "127.0.0.1", "127.0.0.1:", "localhost:1", "127.0.0.1:65536", "127.0.0.1:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        split_address(text)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert split_address("[::1]:7400") == ("::1", 7400)
    assert address_text("::1", 7400) == "[::1]:7400"
    assert split_address("[::ffff:127.0.0.1]:0") == ("127.0.0.1", 0)
    for wrong in ("::1:7400", "::1", "[::1]", "[127.0.0.1]:0", "127.0.0.1: 1", "127.0.0.1:65536"):
        with pytest.raises(ValueError):
            split_address(wrong)


def test_who_runs_one_role_is_not_asked_for_the_addresses_of_the_others() -> None:
    environment = {"MUSTER_BROKER__BIND": "[::1]:7410"}
    with pytest.raises(ConfigError, match=r"and router\.bind = .* cannot reach each other"):
        load(environment=environment)
    assert load(environment=environment, roles=("broker",)).config.section("broker").bind == "[::1]:7410"


@pytest.mark.parametrize(
    ("sizes", "wrong"),
    [
        (
            {"proxy": 1472},
            "proxy.payload_bytes: a proxy accepts messages for 1472 bytes, but a broker passes on only those",
        ),
        ({"broker": 1472}, "broker.payload_bytes: a broker accepts"),
        ({"proxy": 1472, "broker": 1300, "gateway": 1472}, "broker.payload_bytes: "),
        ({"gateway": 1472}, ""),
        ({"broker": 1400, "gateway": 1472}, ""),
        ({"proxy": 1472, "broker": 1472, "gateway": 1472}, ""),
        ({"router": 1472}, ""),
    ],
)
def test_a_message_that_one_role_takes_the_next_one_can_pass_on(
    tmp_path: Path, sizes: dict[str, int], wrong: str
) -> None:
    text = "".join(f"[{role}]\npayload_bytes = {size}\n" for role, size in sizes.items())
    if wrong:
        assert wrong in refusal(tmp_path, text)
    else:
        load(write(tmp_path, text), {})
    for role in ROLES:
        load(write(tmp_path, text), {}, roles=(role,))


def test_the_documentation_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == markdown(), (
        "run: muster config docs > docs/configuration.md"
    )
