"""HTML of values for notebooks, with hostile names."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancekeep
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.notebook import html_table

_TIME = datetime(2026, 1, 1, tzinfo=UTC)
ALLOWED = {"table", "caption", "tr", "th", "td", "bdi", "br"}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></table><h1>",
    "&lt;b&gt;",
    "a\u202egpj.exe",
    "\u2066isolated\u2069\u200f",
    "\x00\x1b[31m\r\n",
    "\ud800",
    "x" * 10_000_000,
]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    assert len(html) < 100_000
    html.encode()
    reader = Reader()
    reader.feed(html)
    assert set(reader.tags) <= ALLOWED
    assert not re.search("[\u0000-\u001f\u200e\u200f\u202a-\u202e\u2066-\u2069]", reader.text)
    return reader


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_and_properties_are_escaped(text: str) -> None:
    for table in (
        lancekeep.Table(ObjectId((text,)), text, {text: text}),
        lancekeep.HistoryEntry(1, _TIME, text, 1, text),
        lancekeep.Namespace(ObjectId((text, text)), {text: text}),
        lancekeep.DroppedTable(ObjectId((text,)), text, text, {text: text}, _TIME, _TIME, text, is_purging=False),
    ):
        reader = read(table._repr_html_())
        assert reader.tags.count("table") == 1


@given(st.text(), st.text())
def test_any_text_is_shown_without_markup(name: str, value: str) -> None:
    reader = read(html_table(name, [(value, [value, name])]))
    assert reader.tags.count("tr") == 1
    if value.isascii() and value.isprintable() and len(value) < 200:
        assert value in reader.text


def test_many_items_are_cut() -> None:
    shown = read(lancekeep.Table(ObjectId(("t",)), "t", {f"p{n}": "v" for n in range(1000)})._repr_html_())
    assert "and 980 more" in shown.text
    assert shown.text.count(": v") == 20


def test_catalog_difference_and_report_have_tables(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "<b>lake")) as catalog:
        import pyarrow as pa

        catalog.write("t", pa.table({"a": [1]}))
        catalog.write("t", pa.table({"a": [2]}), "append")
        shown = {
            "lake": catalog._repr_html_(),
            "rows_after": catalog.diff("t", 1)._repr_html_(),
            "findings": catalog.upkeep.fsck()._repr_html_(),
            "condition": catalog.scan("t").where("a = '<b>'")._repr_html_(),
            "Append": catalog.versions.history("t")[0]._repr_html_(),
        }
    for word, html in shown.items():
        assert word in read(html).text
