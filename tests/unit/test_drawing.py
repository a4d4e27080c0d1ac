"""The pictures of the page: well-formed, to scale, escaped, without inline styles."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from lancekeep.entrypoints.page.drawing import MOST, Bar, Node, bars, relations, shares, sparkline, version_graph

HOSTILE = '</svg><script>alert("1")</script>\u202e\ud800\0'


def parsed(picture: Markup) -> ElementTree.Element:
    """Return a picture as a browser reads it; a picture that is not well-formed fails."""
    root = ElementTree.fromstring(picture)
    assert root.get("role") == "img"
    assert root[0].tag == "title"
    assert not [each for each in root.iter() if "style" in each.attrib or each.tag in ("script", "style", "a")]
    return root


def rectangles(root: ElementTree.Element, colour: str) -> list[dict[str, float]]:
    found = (each.attrib for each in root.iter("rect") if each.get("class") == colour)
    return [{name: float(each[name]) for name in ("x", "y", "width", "height")} for each in found]


@pytest.mark.parametrize(
    "picture",
    [
        sparkline([1, 2], HOSTILE),
        bars([Bar((1, 2), HOSTILE)], HOSTILE, ("fill-1", "fill-2")),
        shares([Bar((1, 2), HOSTILE)], HOSTILE, ("fill-1", "fill-2")),
        version_graph([Node("a", HOSTILE)], HOSTILE),
        relations(HOSTILE, [HOSTILE], [HOSTILE], HOSTILE),
    ],
)
def test_hostile_text_stays_text(picture: Markup) -> None:
    root = parsed(picture)
    shown = "".join(root.itertext())
    assert "<script>" in shown
    assert "\u202e" not in shown
    picture.encode()


@pytest.mark.parametrize(
    "picture",
    [
        sparkline([], ""),
        sparkline([float("nan"), float("inf")], ""),
        bars([], "", ()),
        bars([Bar((0, 0))], "", ("fill-1", "fill-2")),
        bars([Bar((-5, 2)), Bar((-9, 0))], "", ("fill-1", "fill-2")),
        shares([Bar((-1,))], "", ("fill-1",)),
        shares([], "", ()),
        version_graph([], ""),
        relations("t", [], [], ""),
    ],
)
def test_pictures_of_nothing_are_well_formed(picture: Markup) -> None:
    parsed(picture)
    assert "nan" not in picture
    assert "inf" not in picture
    assert 'height="-' not in picture
    assert 'width="-' not in picture


def test_bars_are_to_scale() -> None:
    root = parsed(bars([Bar((50, 50)), Bar((25, 0))], "rows", ("fill-1", "fill-bad"), height=100))
    live, deleted = rectangles(root, "fill-1"), rectangles(root, "fill-bad")
    assert [(each["y"], each["height"]) for each in live] == [(50, 50), (75, 25)]
    assert [(each["y"], each["height"]) for each in deleted] == [(0, 50), (75, 0)]


def test_shares_are_to_scale() -> None:
    root = parsed(shares([Bar((3, 1), "a"), Bar((2, 0), "b")], "bytes", ("fill-1", "fill-2"), width=400))
    assert [each["width"] for each in rectangles(root, "fill-1")] == [300, 200]
    assert [each["x"] for each in rectangles(root, "fill-2")] == [300, 200]


def test_pictures_have_a_bound() -> None:
    many = 50_000
    assert len(list(parsed(bars([Bar((1,))] * many, "", ("fill-1",))).iter("rect"))) == MOST
    assert len(list(parsed(version_graph([Node(str(at), "") for at in range(many)], "")).iter("circle"))) == MOST
    assert len(sparkline(map(float, range(many)), "")) < 5000
    assert len(relations("t", ["s" * many] * many, [], "")) < 8000


def test_sparkline_of_extreme_values_stays_inside() -> None:
    picture = sparkline([-1.7e308, 1.7e308, 0.0, float("nan"), 5e-324], "", width=100, height=20)
    path = next(iter(parsed(picture).iter("path"))).attrib["d"]
    assert path.count("M") == 2
    heights = [float(each.split(" ")[1].split("h")[0]) for each in path.replace("M", "L").split("L")[1:]]
    assert heights == [19, 1, 10, 10]


def test_graph_leads_each_version_to_its_parent() -> None:
    nodes = [Node("b2", "b", "2", 1), Node("3", "three", "2"), Node("2", "two", "1")]
    root = parsed(version_graph(nodes, "versions"))
    circles = [(each.attrib["cx"], each.attrib["cy"]) for each in root.iter("circle")]
    paths = [each.attrib["d"] for each in root.iter("path")]
    assert [path.startswith(f"M{x} {y}") for path, (x, y) in zip(paths, circles, strict=True)] == [True] * 3
    assert paths[0].endswith(f"L{circles[2][0]} {circles[2][1]}")
    assert paths[1].endswith(f"V{circles[2][1]}")
    assert paths[2].endswith(f"V{root.attrib['height']}")


def test_relations_name_the_sources_before_the_table_and_its_clones() -> None:
    root = parsed(relations("t", ["s1", "s2"], ["c"], "files"))
    texts = [(each.text, float(each.attrib["y"])) for each in root.iter("text")]
    assert [name for name, _ in texts] == ["s1", "s2", "t", "c"]
    assert all(before < after for (_, before), (_, after) in pairwise(texts))
    assert len(list(root.iter("path"))) == 3
