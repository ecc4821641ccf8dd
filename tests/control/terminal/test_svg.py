"""Pictures are whole XML, for light and dark pages, whatever a stranger wrote into a name."""

import re
from xml.etree import ElementTree

import pytest

from muster_server.control.terminal.svg import COLORS, Drawing

SVG = "{http://www.w3.org/2000/svg}"


def texts(file: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(file).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "a&b", "\"'", "\x1b[31mred", "\u202eback", "\ud800", "\x00", "\ufffe", "名前"]
)
def test_a_name_of_a_stranger_is_text(name: str) -> None:
    drawing = Drawing(300, name)
    drawing.text(0, 10, name)
    drawing.text(0, 30, name * 50, width=100)
    whole, cut = texts(str(drawing))
    assert not re.search("[\x00-\x1f\u202e]", whole)
    assert len(cut) > len(whole), "what is cut stands whole in its title"
    assert "<script" not in str(drawing)


def test_a_picture_has_both_pages_and_loads_nothing() -> None:
    drawing = Drawing(300, "some")
    drawing.box(0, 0, 10, 10, "card", "line")
    drawing.arrow((0, 0), (5, 50))
    drawing.bars(50, 60, [("a", 1.0), ("b", 3.0), ("c", 0.0)], 100)
    file = str(drawing)
    assert all(color in file for colors in COLORS.values() for color in colors)
    assert not re.search(r"(?:src|href)=|url\((?!#)|@import", file)
    root = ElementTree.fromstring(file)
    assert float(root.attrib["height"]) > 60 + 3 * 22 - 10
    assert [each for each in texts(file) if each] == ["a", "1", "b", "3", "c", "0"]
