"""Pictures as inline SVG, made of escaped parts.

Colours are classes of the style sheet and sizes are attributes, because the content security policy forbids inline
styles. A picture is one image for screen readers, named by its title, so it has no links: a page lists them as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs
from markupsafe import Markup

from lancekeep.entrypoints.page.formats import text

MOST = 200
"""The most bars, rows or points that a picture has."""

_ROW, _LANE, _LETTER = 26, 22, 7.5
_LONGEST = 48
_COLOURS = 4


def _lengths(given: Iterable[float]) -> tuple[float, ...]:
    return tuple(max(each, 0) for each in given)


@attrs.frozen
class Bar:
    """A bar of several parts. A part without a positive length is not drawn.

    Attributes:
        parts: The length of each part, from the base of the bar.
        label: What the bar shows, for the pointer.
    """

    parts: tuple[float, ...] = attrs.field(converter=_lengths)
    label: str = ""

    @property
    def length(self) -> float:
        """The length of the whole bar."""
        return sum(self.parts)


@attrs.frozen
class Node:
    """A node of a graph of versions.

    Attributes:
        key: The name by which other nodes refer to it.
        label: The text to the right of it.
        parent: The key of the node before it; None for the first.
        lane: The column of its line, such as 0 for the main history.
    """

    key: str
    label: str
    parent: str | None = None
    lane: int = 0


def sparkline(values: Iterable[float], title: str, *, width: int = 96, height: int = 20) -> Markup:
    """Draw values as a line; a value that is not finite is a gap.

    Of more than 200 values, evenly spaced ones are drawn.
    """
    points = _thinned(tuple(values))
    finite = [value for value in points if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = max(abs(low), abs(high)) or 1.0
    span = high / scale - low / scale or 1.0
    commands, drawing = [], False
    for at, value in enumerate(points):
        if not math.isfinite(value):
            drawing = False
            continue
        x = 1 + (width - 2) * at / max(len(points) - 1, 1)
        y = height - 1 - (height - 2) * (value / scale - low / scale) / span
        commands.append(f"{'L' if drawing else 'M'}{_number(x)} {_number(y)}{'' if drawing else 'h.01'}")
        drawing = True
    line = Markup('<path class="stroke-1" stroke-linecap="round" d="{}"/>').format("".join(commands))
    return _picture(line if commands else Markup(), title, width, height)


def bars(items: Sequence[Bar], title: str, classes: Sequence[str], *, width: int = 800, height: int = 120) -> Markup:
    """Draw at most 200 bars to scale, side by side.

    The parts of a bar are stacked from the bottom up.

    Args:
        items: The bars.
        title: What the picture shows.
        classes: The class of each part, such as ``fill-1``.
        width: The width of the picture.
        height: The height of the longest bar.
    """
    drawn = items[:MOST]
    longest = max((bar.length for bar in drawn), default=0) or 1
    step = min(width / max(len(drawn), 1), 40.0)
    return _picture(
        _joined(_bar(bar, classes, at * step, step, height, longest) for at, bar in enumerate(drawn)),
        title,
        width,
        height,
    )


def shares(items: Sequence[Bar], title: str, classes: Sequence[str], *, width: int = 360) -> Markup:
    """Draw at most 200 bars to scale, each below its label."""
    longest = max((bar.length for bar in items), default=0) or 1
    found = []
    for at, bar in enumerate(items[:MOST]):
        y, x = at * 2 * _ROW, 0.0
        found.append(Markup('<text x="0" y="{}">{}</text>').format(y + 16, text(bar.label, _LONGEST)))
        for part, colour in zip(bar.parts, classes, strict=False):
            length = width * part / longest
            found.append(_box(x, y + 22, length, 16, colour))
            x += length
    return _picture(_joined(found), title, width, max(len(items[:MOST]), 1) * 2 * _ROW)


def version_graph(nodes: Sequence[Node], title: str) -> Markup:
    """Draw at most 200 versions from top to bottom.

    A line leads from each to the version that it follows, or to the bottom of the picture if that is not drawn.
    """
    nodes = nodes[:MOST]
    rows = {node.key: at for at, node in enumerate(nodes)}
    labels = [text(node.label, 2 * _LONGEST) for node in nodes]
    bottom = max(len(nodes), 1) * _ROW
    left = (max((node.lane for node in nodes), default=0) + 1) * _LANE + 12
    lines, dots = [], []
    for at, node in enumerate(nodes):
        x, y, colour = _lane(node.lane), at * _ROW + _ROW / 2, node.lane % _COLOURS + 1
        if node.parent is not None:
            parent = rows.get(node.parent)
            end_x = x if parent is None else _lane(nodes[parent].lane)
            end_y = bottom if parent is None else parent * _ROW + _ROW / 2
            bend = f"V{_number(end_y - _ROW)}L{_number(end_x)} {_number(end_y)}" if end_x != x else f"V{_number(end_y)}"
            lines.append(
                Markup('<path class="stroke-{}" stroke-width="2" d="{}"/>').format(
                    colour, f"M{_number(x)} {_number(y)}{bend}"
                )
            )
        dots.append(Markup('<circle class="fill-{}" cx="{}" cy="{}" r="5"/>').format(colour, _number(x), _number(y)))
        dots.append(Markup('<text x="{}" y="{}">{}</text>').format(left, _number(y + 5), labels[at]))
    width = round(left + _LETTER * max(map(len, labels), default=1))
    return _picture(_joined([*lines, *dots]), title, width, bottom)


def relations(table: str, sources: Sequence[str], clones: Sequence[str], title: str) -> Markup:
    """Draw from where a table reads files, and which tables read files of it.

    Sources are above the table and clones below it, with at most 20 of each.
    """
    most = 20
    above, below = sources[:most], clones[:most]
    labels = [
        *(text(each, _LONGEST) for each in above),
        text(table, _LONGEST),
        *(text(each, _LONGEST) for each in below),
    ]
    middle, found = len(above), []
    for at, label in enumerate(labels):
        y = at * _ROW
        indent = _LANE * ((at > 0 and middle > 0 and at >= middle) + (at > middle))
        colour = "fill-1" if at == middle else "fill-2" if at < middle else "fill-3"
        found.append(_box(indent, y + 7, 12, 12, colour))
        found.append(Markup('<text x="{}" y="{}">{}</text>').format(indent + 20, y + 18, label))
    centre = _LANE * (middle > 0)
    for at in range(len(labels)):
        if at < middle:
            path = f"M6 {at * _ROW + 19}V{middle * _ROW + 13}H{centre}"
        elif at > middle:
            path = f"M{centre + 6} {middle * _ROW + 19}V{at * _ROW + 13}H{centre + _LANE}"
        else:
            continue
        found.append(Markup('<path class="stroke-muted" d="{}"/>').format(path))
    width = round(2 * _LANE + 30 + _LETTER * max(map(len, labels)))
    return _picture(_joined(found), title, width, len(labels) * _ROW)


def _bar(bar: Bar, classes: Sequence[str], x: float, step: float, height: int, longest: float) -> Markup:
    gap = 1.0 if step > 3 else 0.0
    base, found = float(height), []
    for part, colour in zip(bar.parts, classes, strict=False):
        length = height * part / longest
        base -= length
        found.append(_box(x, base, step - gap, length, colour))
    return Markup("<g><title>{}</title>{}</g>").format(text(bar.label), _joined(found))


def _box(x: float, y: float, width: float, height: float, colour: str) -> Markup:
    return Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
        colour, *map(_number, (x, y, width, height))
    )


def _picture(content: Markup, title: str, width: float, height: float) -> Markup:
    return Markup('<svg role="img" width="{0}" height="{1}" viewBox="0 0 {0} {1}"><title>{2}</title>{3}</svg>').format(
        _number(width), _number(height), text(title), content
    )


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup().join(parts)


def _thinned(values: Sequence[float]) -> Sequence[float]:
    if len(values) <= MOST:
        return values
    return [values[at * (len(values) - 1) // (MOST - 1)] for at in range(MOST)]


def _lane(lane: int) -> float:
    return lane * _LANE + _LANE / 2


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"
