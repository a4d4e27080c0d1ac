"""What changed in two homes since they were compared, from their feeds."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import attrs

from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.compared_homes import Compared
from lancekeep.domain.change_feed import CatalogVersion, ChangeCursor
from lancekeep.domain.errors import VersionNotFound
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry


@attrs.define
class Feed:
    """A feed of versions that each put one table, and change the root."""

    names: list[str] = attrs.field(factory=list)
    kept_from: int = 0

    def latest(self) -> ChangeCursor:
        return ChangeCursor(len(self.names), "")

    def versions(self, after: ChangeCursor, limit: int) -> Sequence[CatalogVersion]:
        if after.version < self.kept_from:
            raise VersionNotFound("not kept")
        new = list(enumerate(self.names, 1))[after.version : after.version + limit]
        return [CatalogVersion(number, "", 0, {}, {"": entry(""), name: entry(name)}) for number, name in new]


def entry(name: str) -> ManifestEntry:
    return ManifestEntry(name, TABLE, name, None)


def home(feed: Feed | None, *, lists_directories: bool = False) -> Any:
    return SimpleNamespace(feed=feed, guarantees=SimpleNamespace(lists_directories=lists_directories))


def test_changes_of_both_homes_after_the_last_comparison_are_found_however_many_they_are() -> None:
    source, target = Feed(["a"]), Feed(["b"])
    compared = Compared(home(source), home(target), Retry())
    compared.begin()
    assert compared.changed() == []
    source.names += [f"s{number:04}" for number in range(2500)]
    target.names += ["t", "a"]
    assert compared.changed() == sorted([*source.names[1:], "t", "a"])
    compared.begin()
    assert compared.changed() == []


def test_all_entries_are_compared_where_the_changes_are_not_known() -> None:
    source, target = Feed(["a"]), Feed(["b"])
    compared = Compared(home(source), home(target), Retry())
    assert compared.changed() is None, "nothing was compared"
    compared.begin()
    for feed in (source, target):
        feed.kept_from = 2
        assert compared.changed() is None, "a clean-up has removed changes"
        feed.kept_from = 0
    for homes in (
        (home(None), home(target)),
        (home(source), home(None)),
        (home(source, lists_directories=True), home(target)),
    ):
        without = Compared(*homes, Retry())
        without.begin()
        assert without.changed() is None
