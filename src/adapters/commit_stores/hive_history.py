"""A history of version rows as texts, and which of its rows lie in segments.

The *head* of a history holds its newest row, a few more, and an index of *segments*, which hold the others. Segments
never change: a change writes new ones and a head that names them. So the head alone decides what the history is.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import attrs

from lancekeep.domain.errors import Damaged
from lancekeep.domain.naming import U64_MAX, NamingScheme
from lancekeep.domain.version_row import VersionRow

HEAD_ROWS = 64
"""Rows that a head holds before they move to segments: they fit into one parameter."""
SEGMENT_ROWS = 1000


@attrs.frozen
class Segment:
    """An entry of the index: the versions that a segment holds.

    Attributes:
        first: the lowest version.
        last: the highest version.
        count: the number of rows.
        name: the name of the segment, without the name of its history.
    """

    first: int
    last: int
    count: int
    name: str


@attrs.frozen
class History:
    """A history of rows, which exist either here or in one segment.

    Attributes:
        base_uri: the history that the rows belong to.
        rows: the rows of the head by version, in order; among them the newest row.
        segments: the index, in order. The ranges of versions do not overlap.
    """

    base_uri: str
    rows: Mapping[int, VersionRow] = {}
    segments: tuple[Segment, ...] = ()

    @property
    def latest(self) -> VersionRow | None:
        return self.rows[max(self.rows)] if self.rows else None

    @property
    def count(self) -> int:
        return len(self.rows) + sum(segment.count for segment in self.segments)

    def segment_of(self, version: int) -> Segment | None:
        """Return the segment that may hold a version."""
        place = bisect_right(self.segments, version, key=lambda segment: segment.first) - 1
        return self.segments[place] if place >= 0 and version <= self.segments[place].last else None


Load = Callable[[Segment], Mapping[int, VersionRow]]
"""Returns the rows of a segment."""


class Change:
    """The next state of a history, and the segments that it needs.

    Args:
        history: The present state.
        load: Reads a segment.
        name: Returns a new name for a segment.
    """

    def __init__(self, history: History, load: Load, name: Callable[[], str]) -> None:
        self._load, self._name = load, name
        self._base_uri = history.base_uri
        self._rows = dict(history.rows)
        self._segments = list(history.segments)
        self.written: dict[str, Sequence[VersionRow]] = {}

    def made(self, put: Iterable[VersionRow] = (), remove: Collection[int] = ()) -> History:
        """Return the history with some rows entered or replaced, and others removed."""
        for segment in [each for each in self._segments if any(each.first <= v <= each.last for v in remove)]:
            self._replace(segment, [row for version, row in self._load(segment).items() if version not in remove])
        self._rows = {version: row for version, row in self._rows.items() if version not in remove}
        for row in put:
            self._put(row)
        while self._segments and max(self._rows, default=-1) < self._segments[-1].last:
            self._fetch_newest()
        if len(self._rows) > HEAD_ROWS:
            self._spill()
        return History(self._base_uri, dict(sorted(self._rows.items())), tuple(self._segments))

    def _put(self, row: VersionRow) -> None:
        held = History(self._base_uri, {}, tuple(self._segments)).segment_of(row.version)
        if held is not None:
            rows = self._content(held)
            if row.version in rows:
                self._replace(held, list({**rows, row.version: row}.values()))
                return
        self._rows[row.version] = row

    def _fetch_newest(self) -> None:
        """Move the newest row of the segments to the head, after newer rows were removed."""
        newest = self._segments[-1]
        rows = dict(self._content(newest))
        last = max(rows)
        self._rows[last] = rows.pop(last)
        self._replace(newest, list(rows.values()))

    def _spill(self) -> None:
        """Move all rows of the head but the newest to segments."""
        newest = max(self._rows)
        moved = sorted((row for version, row in self._rows.items() if version != newest), key=_version)
        self._rows = {newest: self._rows[newest]}
        starts = [segment.first for segment in self._segments]
        groups = [(place, list(rows)) for place, rows in groupby(moved, lambda row: _target(starts, row.version))]
        segments = list(self._segments)
        for place, rows in groups:
            target = segments[place] if place >= 0 else None
            apart = target is None or (rows[0].version > target.last or rows[-1].version < target.first)
            if target is None or (apart and target.count + len(rows) > SEGMENT_ROWS):
                self._add(rows)
            else:
                self._replace(target, [*self._content(target).values(), *rows])

    def _content(self, segment: Segment) -> Mapping[int, VersionRow]:
        if segment.name in self.written:
            return {row.version: row for row in self.written[segment.name]}
        return self._load(segment)

    def _replace(self, segment: Segment, rows: Iterable[VersionRow]) -> None:
        self._segments.remove(segment)
        self.written.pop(segment.name, None)
        self._add(sorted(rows, key=_version))

    def _add(self, rows: Sequence[VersionRow]) -> None:
        """Add segments of equal size with sorted rows."""
        parts = -(-len(rows) // SEGMENT_ROWS)
        for part in range(parts):
            chosen = rows[part * len(rows) // parts : (part + 1) * len(rows) // parts]
            segment = Segment(chosen[0].version, chosen[-1].version, len(chosen), self._name())
            self.written[segment.name] = chosen
            self._segments.append(segment)
        self._segments.sort(key=lambda each: each.first)


def _version(row: VersionRow) -> int:
    return row.version


def _target(starts: Sequence[int], version: int) -> int:
    """Return the place of the segment that a version joins: the last that begins below it, or the first."""
    return max(bisect_right(starts, version) - 1, 0) if starts else -1


# -- texts -----------------------------------------------------------------------------------------------------------


def encode(history: History) -> str:
    """Return a history as ASCII text, which every database keeps unchanged."""
    texts: dict[str, int] = {}
    rows = []
    for row in history.rows.values():
        place = row.path.rfind("/") + 1
        directory, committer = (texts.setdefault(text, len(texts)) for text in (row.path[:place], row.committer))
        rows.append([row.version, row.size, committer, directory, _short(row.path[place:], row.version)])
    index = [[each.first, each.last, each.count, each.name] for each in history.segments]
    stored = {"format": 1, "base_uri": history.base_uri, "texts": list(texts), "rows": rows, "segments": index}
    return json.dumps(stored, separators=(",", ":"))


def decode(text: str, place: str, base_uri: str) -> History:
    """Return the history of a text.

    Raises:
        Damaged: The text is no history, or the one of another table; the message names the place.
    """
    try:
        stored = json.loads(text)
        if not isinstance(stored, dict) or stored["format"] != 1 or stored["base_uri"] != base_uri:
            raise ValueError("another format, or another history")
        texts = [_typed(each, str) for each in stored["texts"]]
        rows = {}
        for version, size, committer, directory, name in stored["rows"]:
            path = texts[_index(directory)] + _long(_typed(name, str), _typed(version, int))
            rows[version] = VersionRow(base_uri, version, path, _typed(size, int), texts[_index(committer)])
        segments = tuple(
            Segment(_typed(first, int), _typed(last, int), _typed(count, int), _typed(name, str))
            for first, last, count, name in stored["segments"]
        )
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise Damaged(
            f"{place}: expected the version rows of {base_uri}; found other parameters ({error}). Another program "
            "changed this view: drop it, and the rows are entered again from the manifests"
        ) from error
    return History(base_uri, dict(sorted(rows.items())), segments)


def _typed(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r:.80} is no {kind.__name__}")
    return value


def _index(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.80} is no place of a text")
    return value


def _finals(version: int) -> tuple[str, ...]:
    return tuple(scheme.final_name(version) for scheme in NamingScheme) if 0 <= version <= U64_MAX else ()


def _short(name: str, version: int) -> str:
    """Return a file name without the part that follows from the version."""
    for number, final in enumerate(_finals(version), 1):
        if name.startswith(final):
            return f"{number}{name.removeprefix(final)}"
    return f"0{name}"


def _long(name: str, version: int) -> str:
    beginnings = ("", *_finals(version))
    return beginnings[int(name[:1])] + name[1:]
