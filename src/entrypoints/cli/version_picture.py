"""Draw the versions of a table.

The picture shows which fragments a version has, the share of their deleted rows, and where their files are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

MOST_VERSIONS, MOST_FRAGMENTS = 200, 120
"""The newest versions, and the fragments that appear first in them, are drawn; a note counts the others."""

_CELL, _GAP, _LABEL, _TOP = 14, 3, 330, 40
_COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#ca8a04", "#db2777", "#0d9488", "#64748b")
"""The first colour is that of the table's own directory, the others are those of its base paths."""

_Key = tuple[int, str]


def picture(table: str, versions: Sequence[Mapping[str, Any]], older: int) -> str:
    """Return an SVG image.

    It has one row for each version and one column for each fragment.

    Args:
        table: The name of the table.
        versions: The descriptions of versions (`Catalog.inspect`), oldest first.
        older: The number of older versions, which are not drawn.
    """
    columns = list(dict.fromkeys(_key(fragment) for version in versions for fragment in version["fragments"]))
    drawn = {key: at for at, key in enumerate(columns[:MOST_FRAGMENTS])}
    bases = {0: "the table's directory"} | {
        base.get("id", 0): base.get("path", "") for version in versions for base in version["base_paths"]
    }
    colours = {number: _COLOURS[at % len(_COLOURS)] for at, number in enumerate(bases)}
    left_out = (f"{older} older versions" if older else "", _more(len(columns)))
    notes = [f"{', '.join(filter(None, left_out))} not drawn"] if any(left_out) else []
    width = _LABEL + len(drawn) * (_CELL + _GAP) + 20
    height = _TOP + len(versions) * (_CELL + _GAP) + 20 * (len(bases) + len(notes)) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="22" font-size="14" font-weight="bold">{escape(table)}: versions and their fragments</text>',
    ]
    for row, version in enumerate(versions):
        parts += _version(version, _TOP + row * (_CELL + _GAP), drawn, colours)
    y = _TOP + len(versions) * (_CELL + _GAP) + 20
    for number, path in bases.items():
        parts.append(f'<rect x="10" y="{y - 10}" width="12" height="12" fill="{colours[number]}"/>')
        parts.append(f'<text x="28" y="{y}">{escape(path)}</text>')
        y += 20
    parts += [f'<text x="10" y="{y}" fill="#555">{escape(note)}</text>' for note in notes]
    return "\n".join([*parts, "</svg>\n"])


def _version(
    version: Mapping[str, Any], y: int, drawn: Mapping[_Key, int], colours: Mapping[int, str]
) -> Iterator[str]:
    rows = version.get("change", {}).get("rows", {})
    changed = "".join(f" {sign}{rows[kind]:,}" for kind, sign in (("added", "+"), ("removed", "-")) if rows.get(kind))
    operation = (version["transaction"] or {}).get("operation", "unknown").replace("_", " ")
    label = f"{version['version']}  {operation}{changed and f'{changed} rows'}"
    yield f'<g class="version"><text x="10" y="{y + 11}">{escape(label)}</text>'
    for fragment in version["fragments"]:
        at = drawn.get(_key(fragment))
        if at is None:
            continue
        x, physical = _LABEL + at * (_CELL + _GAP), fragment.get("physical_rows", 0)
        deleted = fragment.get("deletion_file", {}).get("num_deleted_rows", 0)
        file = fragment["files"][0] if fragment.get("files") else {}
        told = (
            f"fragment {fragment.get('id', 0)}: {physical:,} rows, {deleted:,} deleted; {file.get('path', 'no file')}"
        )
        yield (
            f'<rect class="fragment" x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" '
            f'fill="{colours.get(file.get("base_id", 0), _COLOURS[-1])}"><title>{escape(told)}</title></rect>'
        )
        if deleted and physical:
            share = round(_CELL * min(1.0, deleted / physical), 1) or 0.5
            yield f'<rect class="deleted" x="{x}" y="{y}" width="{_CELL}" height="{share}" fill="white" opacity=".7"/>'
    yield "</g>"


def _key(fragment: Mapping[str, Any]) -> _Key:
    files = fragment.get("files") or [{}]
    return fragment.get("id", 0), files[0].get("path", "")


def _more(fragments: int) -> str:
    return f"{fragments - MOST_FRAGMENTS} fragments" if fragments > MOST_FRAGMENTS else ""
