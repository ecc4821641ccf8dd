"""The drawing of the imports in Python and Rust: no arrow upward, no circle among files. Roles stand in their folders."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Final

import pytest

from muster_server.plane.kinds import kinds
from tests.documents import ROOT

LAYERS: Final = ("pyext", "plane", "control", "systems")
"""The folders of the server, from the lowest up: packages of `muster_server`."""
CRATES: Final = (
    "transport",
    "rooms",
    "driver",
    "udp",
    "tcp",
    "edge",
    "simkit",
    "sim",
    "load",
    "journal",
    "likes",
    "messages",
    "firing",
    "presence",
)
DEPENDS: Final[Mapping[str, frozenset[str]]] = {
    "transport": frozenset({"ahead"}),
    "rooms": frozenset({"ahead", "edge", "tcp", "transport"}),
    "udp": frozenset({"ahead", "transport"}),
    "driver": frozenset({"ahead", "transport", "udp"}),
    "tcp": frozenset({"transport", "udp"}),
    "edge": frozenset({"transport"}),
    "simkit": frozenset({"transport"}),
    "journal": frozenset(),
    "likes": frozenset({"journal", "tcp", "transport"}),
    "messages": frozenset({"journal"}),
    "presence": frozenset({"transport"}),
    "callback": frozenset(),
    "firing": frozenset({"callback", "messages"}),
    "py/common": frozenset({"driver", "presence", "rooms", "transport", "udp"}),
    "py/client": frozenset({"driver", "presence", "py-common", "rooms", "transport", "udp"}),
}
"""What a crate may use of the others; the rest stands above all of these."""
LATER: Final = frozenset(
    {"aiosqlite", "alembic", "confluent_kafka", "gmqtt", "httpx2", "kazoo"}
    | {"litestar", "numpy", "pyroaring", "redis", "rich", "sqlalchemy"}
)
"""Libraries that are loaded only where they are used: together they take two seconds."""
NAMED_MAX: Final = 3
"""Files of `plane` and `control` that may name a role."""

Graph = Mapping[str, set[str]]


def circles(graph: Graph) -> list[list[str]]:
    """Groups of nodes that reach each other, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in order:
            visit(node)
    return found


def python_modules() -> dict[str, Path]:
    """All modules of the product by their names."""
    bases = {"muster": ROOT / "core/python/muster", **{f"muster_server.{name}": ROOT / name for name in LAYERS}}
    found: dict[str, Path] = {}
    for package, base in bases.items():
        for path in base.rglob("*.py"):
            parts = [package, *path.relative_to(base).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def python_imports(module: str, path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """What a module imports of the product, also inside functions."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _imports(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                if name in modules:
                    yield name
                elif base in modules:
                    yield base


def _imports(tree: ast.AST) -> Iterator[ast.AST]:
    """All import statements but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _imports(node)


def python_graph() -> dict[str, set[str]]:
    modules = python_modules()
    return {module: set(python_imports(module, path, modules)) - {module} for module, path in modules.items()}


def rust_graph(crate: str) -> dict[str, set[str]]:
    """What each file of a crate uses of the others, tests apart; a folder's `mod.rs` stands for the folder's own text."""
    source = ROOT / "core" / crate / "src"
    files = {".".join(path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.rs")}
    names = {name.removesuffix(".mod"): name for name in files}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        text = re.sub(r"//.*", "", path.read_text().partition("#[cfg(test)]\nmod tests")[0])
        used = {each.replace("::", ".") for each in re.findall(r"\bcrate::([a-z_]+(?:::[a-z_]+)*)", text)}
        parent = (
            name.removesuffix(".mod").rpartition(".")[0] if not name.endswith(".mod") else name.removesuffix(".mod")
        )
        used |= (
            {f"{parent}.{each}".lstrip(".") for each in re.findall(r"\bsuper::([a-z_]+)::", text)} if parent else set()
        )
        targets = set[str]()
        for each in used:
            parts = each.split(".")
            known = next((head for end in range(len(parts), 0, -1) if (head := ".".join(parts[:end])) in names), None)
            if known is not None:
                targets.add(names[known])
        graph[name] = targets - {name}
    return graph


def named_in_texts(path: Path, modules: Mapping[str, Path]) -> set[str]:
    """The modules that a file names in its literal texts, as `module:function` or alone."""
    texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    named = (text.partition(":")[0] for text in texts if isinstance(text, str))
    return {name for name in named if name in modules and name.count(".") > 1}


def test_no_text_names_a_module_of_a_folder_above_or_of_another_system() -> None:
    modules = python_modules()
    wrong = [
        f"{module} names {name}"
        for module, path in modules.items()
        for name in named_in_texts(path, modules)
        if not _may_name(module, name)
    ]
    assert wrong == []


def _may_name(module: str, name: str) -> bool:
    """Whether a lazy import by name is one that an import statement could be."""
    one, other = module.split("."), name.split(".")
    if one[1] != other[1]:
        return LAYERS.index(one[1]) > LAYERS.index(other[1])
    return one[1] != "systems" or len(one) == 3 or one[2] == other[2] or (one[2], other[2]) == ("edge", "rooms")


def test_a_name_that_points_up_is_found(tmp_path: Path) -> None:
    modules = {"muster_server.systems.likes.node": tmp_path / "node.py"}
    (tmp_path / "kind.py").write_text('BUILD = "muster_server.systems.likes.node:build"')
    (named,) = named_in_texts(tmp_path / "kind.py", modules)
    assert not _may_name("muster_server.plane.kind", named)
    assert not _may_name("muster_server.systems.rooms.system", named)
    assert _may_name("muster_server.systems.likes.system", named)
    assert _may_name("muster_server.systems.listed", named)


def texts_and_imports(path: Path) -> Iterator[str]:
    """The literal texts of a file but its docs, and the modules that it imports."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_library_names_the_server_in_its_testing_module_alone() -> None:
    for module, path in python_modules().items():
        if module.partition(".")[0] == "muster":
            named = {text for text in texts_and_imports(path) if text.startswith("muster_server")}
            wanted = {"muster_server", "muster_server._engines"} if module == "muster.testing" else set()
            assert named == wanted, module


def test_servers_take_from_the_compiled_client_only_the_versions_of_the_protocol() -> None:
    for module, path in python_modules().items():
        if module.partition(".")[0] == "muster_server":
            named = {text for text in texts_and_imports(path) if text.startswith("muster._core")}
            assert named <= {"muster._core.PROTOCOLS"}, module


def test_milliseconds_of_the_wall_clock_are_read_in_one_place() -> None:
    files = (path for folder in (*LAYERS, "core/python", "bench") for path in (ROOT / folder).rglob("*.py"))
    assert [
        path.name for path in files if re.search(r"time_ns\(\) // |int\(time\.time\(\) \* 1_?000\)", path.read_text())
    ] == ["clock.py"]


def test_no_circle_among_files_of_python() -> None:
    graph = python_graph()
    assert len(graph) > 150, "the drawing has the product"
    assert circles(graph) == []


@pytest.mark.parametrize("crate", CRATES)
def test_no_circle_among_files_of_a_crate(crate: str) -> None:
    graph = rust_graph(crate)
    assert len(graph) > 2
    # A module's own parts use what it has in common, which is not an arrow upward.
    apart = {name: {each for each in used if not _of_one_module(name, each)} for name, used in graph.items()}
    assert circles(apart) == []


def _of_one_module(one: str, other: str) -> bool:
    return one.partition(".")[0] == other.partition(".")[0]


@pytest.mark.parametrize("crate", sorted(DEPENDS))
def test_a_crate_uses_only_crates_below(crate: str) -> None:
    manifest = (ROOT / "core" / crate / "Cargo.toml").read_text()
    section = manifest.partition("[dependencies]")[2].partition("\n[")[0]
    assert set(re.findall(r"^muster-([a-z-]+)\b", section, flags=re.M)) <= DEPENDS[crate]


def test_no_crate_knows_of_planted_bugs() -> None:
    """They are in `core/planted` alone, which no build but that of their tests reads."""
    crates = [file.parent for pattern in ("*", "py/*") for file in (ROOT / "core").glob(f"{pattern}/Cargo.toml")]
    sources = [ROOT / "core" / "Cargo.toml", *(crate / "Cargo.toml" for crate in crates)]
    sources += (file for crate in crates for file in (crate / "src").rglob("*.rs"))
    assert len(crates) > 15
    assert [file for file in sources if "planted" in file.read_text().lower()] == []


@pytest.mark.parametrize(
    "module", ["muster_server.control.cli.main", "muster_server.control.cli.up", "muster_server.control.node.process"]
)
def test_a_start_loads_no_library_of_one_system_or_one_command(module: str) -> None:
    script = f"from muster_server.control.host.lean import lean; lean(); import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert module in loaded
    assert not loaded & LATER


@pytest.mark.parametrize(
    ("words", "not_loaded"),
    [
        ("version", {"asyncio", "structlog", *LATER}),
        ("key create web --scope read --file keys.json", {"asyncio", "structlog", *LATER}),
        ("key revoke web --file keys.json", {"asyncio", "structlog", *LATER}),
        ("key ls --file keys.json", LATER - {"rich"}),
        ("send 7", LATER),
        ("presence who 7", LATER - {"rich"}),
        ("like song:7 1", LATER - {"redis", "rich"}),
        ("topic ls", LATER - {"rich"}),
        ("fleet clients", LATER - {"rich"}),
    ],
)
def test_a_command_loads_only_what_it_needs(words: str, not_loaded: Set[str], tmp_path: Path) -> None:
    script = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=open("loaded", "w")))
from muster_server.systems.start import main
main()
"""
    subprocess.run(
        [sys.executable, "-c", script, *words.split()],
        cwd=tmp_path,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    loaded = set((tmp_path / "loaded").read_text().split())
    assert "muster_server.control.cli.main" in loaded
    assert not loaded & not_loaded


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]


@pytest.mark.parametrize("role", sorted(kinds()))
def test_a_role_is_named_in_its_own_folder(role: str) -> None:
    named = [
        path
        for folder in ("control", "plane")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(rf"[\"']{role}[\"']", path.read_text())
    ]
    assert len(named) <= NAMED_MAX, named
