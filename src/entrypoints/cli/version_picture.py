"""Draw the versions of a table.

The picture shows which fragments a version has, their data files, the share of their deleted rows, and where the files
are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

MOST_VERSIONS, MOST_FRAGMENTS = 200, 120
"""The newest versions, and the fragments that appear first in them, are drawn; a note counts the others."""

_CELL, _GAP, _TOP, _LETTER = 14, 3, 56, 6.5
_COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#ca8a04", "#db2777", "#0d9488", "#64748b")
"""The first colour is for the table's own directory, the other colours are for its base paths."""

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
    deletions = any(fragment.get("deletion_file") for version in versions for fragment in version["fragments"])
    labels = [_label(version) for version in versions]
    left = round(20 + _LETTER * max([len("fragment"), *map(len, labels)]))
    texts = [f"{table}: versions and their fragments", *bases.values(), *notes]
    width = max(left + len(drawn) * (_CELL + _GAP) + 20, round(40 + 1.3 * _LETTER * max(map(len, texts))))
    height = _TOP + len(versions) * (_CELL + _GAP) + 20 * (len(bases) + deletions + len(notes)) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="22" font-size="14" font-weight="bold">{escape(table)}: versions and their fragments</text>',
    ]
    parts.append(f'<text x="10" y="{_TOP - 5}" fill="#555">fragment</text>')
    for key, at in drawn.items():
        middle = left + at * (_CELL + _GAP) + _CELL / 2
        parts.append(
            f'<text x="{middle}" y="{_TOP - 5}" font-size="7" fill="#555" text-anchor="middle">{key[0]}</text>'
        )
    for row, version in enumerate(versions):
        y = _TOP + row * (_CELL + _GAP)
        parts.append(f'<g class="version"><text x="10" y="{y + 11}">{escape(labels[row])}</text>')
        for fragment in version["fragments"]:
            if _key(fragment) in drawn:
                parts += _fragment(fragment, left + drawn[_key(fragment)] * (_CELL + _GAP), y, colours)
        parts.append("</g>")
    y = _TOP + len(versions) * (_CELL + _GAP) + 20
    for number, path in bases.items():
        parts.append(f'<rect x="10" y="{y - 10}" width="12" height="12" fill="{colours[number]}"/>')
        parts.append(f'<text x="28" y="{y}">{escape(path)}</text>')
        y += 20
    if deletions:
        parts += _cell(10, y - 10, 12, [colours[0]], 0.4, "")
        parts.append(f'<text x="28" y="{y}">the light part is the share of deleted rows</text>')
        y += 20
    parts += [f'<text x="10" y="{y}" fill="#555">{escape(note)}</text>' for note in notes]
    return "\n".join([*parts, "</svg>\n"])


def _label(version: Mapping[str, Any]) -> str:
    rows = version.get("change", {}).get("rows", {})
    changed = "".join(f" {sign}{rows[kind]:,}" for kind, sign in (("added", "+"), ("removed", "-")) if rows.get(kind))
    operation = (version["transaction"] or {}).get("operation", "unknown").replace("_", " ")
    return f"{version['version']}  {operation}{changed and f'{changed} rows'}"


def _fragment(fragment: Mapping[str, Any], x: int, y: int, colours: Mapping[int, str]) -> Iterator[str]:
    physical = fragment.get("physical_rows", 0)
    deleted = fragment.get("deletion_file", {}).get("num_deleted_rows", 0)
    files = fragment.get("files") or [{}]
    paths = ", ".join(file.get("path", "no file") for file in files)
    told = f"fragment {fragment.get('id', 0)}: {physical:,} rows, {deleted:,} deleted; {paths}"
    shown = [colours.get(file.get("base_id", 0), _COLOURS[-1]) for file in files[: _CELL // 3]]
    yield from _cell(x, y, _CELL, shown, deleted / physical if physical else 0.0, told)


def _cell(x: int, y: int, size: int, colours: Sequence[str], deleted: float, told: str) -> Iterator[str]:
    """Draw a fragment as one stripe for each file, whose upper part is light by the share of deleted rows."""
    yield f'<g class="fragment"><title>{escape(told)}</title>'
    stripe = size / len(colours)
    for at, colour in enumerate(colours):
        space = 1 if at else 0
        left, wide = round(x + at * stripe + space, 1), round(stripe - space, 1)
        yield f'<rect x="{left}" y="{y}" width="{wide}" height="{size}" fill="{colour}"/>'
    if deleted:
        share = max(round(size * min(1.0, deleted), 1), 1.0)
        yield f'<rect class="deleted" x="{x}" y="{y}" width="{size}" height="{share}" fill="white" opacity=".7"/>'
    yield "</g>"


def _key(fragment: Mapping[str, Any]) -> _Key:
    files = fragment.get("files") or [{}]
    return fragment.get("id", 0), files[0].get("path", "")


def _more(fragments: int) -> str:
    return f"{fragments - MOST_FRAGMENTS} fragments" if fragments > MOST_FRAGMENTS else ""
