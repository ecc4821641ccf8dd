"""The catalogues of the console: every text of its pages in every language, with the same values in it."""

import json
import re
from pathlib import Path

import pytest

from muster_server.systems.console.http.pages import ASSETS
from muster_server.systems.console.users import ROLES

VALUES = re.compile(r"\{\w+\}")


def texts() -> set[str]:
    """The English texts of all pages, which are the keys of the catalogues."""
    found: set[str] = set(ROLES)
    for file in sources():
        code = file.read_text()
        found |= {each.replace('\\"', '"') for each in re.findall(r'\bt\("((?:[^"\\]|\\.)*)"', code)}
        found |= set(re.findall(r'title: "([^"]+)"', code))
    return found


def sources() -> list[Path]:
    """The pages, without the libraries."""
    return [each for each in ASSETS.rglob("*.js") if "vendor" not in each.parts]


@pytest.mark.parametrize("file", sorted((ASSETS / "texts").glob("*.json")), ids=lambda file: file.stem)
def test_a_catalogue_has_each_text_and_no_other(file: Path) -> None:
    catalogue: dict[str, str] = json.loads(file.read_text())
    assert catalogue.keys() == texts()
    wrong = {text for text, said in catalogue.items() if sorted(VALUES.findall(text)) != sorted(VALUES.findall(said))}
    assert not wrong
    assert all(catalogue.values())


def test_pages_say_nothing_outside_the_catalogues() -> None:
    # A tag whose content begins with an English word that `t` did not get.
    bare = re.compile(r">\s*[A-Z][a-z]+ [a-z]+")
    found = {file.name: bare.findall(file.read_text()) for file in sources()}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_each_library_names_its_licence() -> None:
    told = (ASSETS / "vendor" / "LICENCES.txt").read_text()
    wanted = json.loads((ASSETS.parent / "package.json").read_text())["dependencies"]
    for name, version in wanted.items():
        assert re.search(rf"^{name} {re.escape(version)}, (MIT|ISC|Apache-2.0)$", told, re.MULTILINE), name


def test_pages_load_nothing_from_elsewhere() -> None:
    for file in [
        each for each in ASSETS.rglob("*") if each.suffix in {".js", ".css", ".html"} and "vendor" not in each.parts
    ]:
        addresses = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", re.sub(r"(?m)^\s*//.*$", "", file.read_text()))
        assert [each for each in addresses if "shop.example" not in each] == [], file.name


def test_maps_are_small_and_have_each_place_once() -> None:
    maps = {each.stem: json.loads(each.read_text()) for each in (ASSETS / "vendor" / "maps").glob("*.json")}
    world = maps.pop("world")
    codes = [each["code"] for each in world["places"]]
    assert len(codes) == len(set(codes)) > 200
    assert set(world["maps"]) == maps.keys() <= set(codes)
    for name, shapes in {"world": world, **maps}.items():
        places = [each["code"] or each["name"] for each in shapes["places"]]
        assert len(places) == len(set(places)), name
        assert all(re.fullmatch(r"[Ma-z0-9 .-]+", each["d"]) for each in shapes["places"]), name
        assert len(json.dumps(shapes)) <= 64 << 10, name
    assert len(maps["CN"]["places"]) == 34
    guizhou = next(each for each in maps["CN"]["places"] if "520000" in each["codes"])
    assert (guizhou["code"], guizhou["name"], guizhou["zh"]) == ("CN-GZ", "Guizhou", "贵州")
