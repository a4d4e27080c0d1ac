"""The facts of a table by which automatic maintenance decides what is due."""

from __future__ import annotations

from collections.abc import Sequence

from lancekeep.domain.automatic_maintenance import FragmentFacts, IndexFacts, TableFacts
from lancekeep.format.index_coverage import covered_fragments
from lancekeep.format.table_version import TableVersion


def facts_of(version: TableVersion, ages: Sequence[float], name: str) -> TableFacts:
    """Return what is known of a table.

    Args:
        version: Its latest version.
        ages: The ages of its versions.
        name: Its name, for messages.
    """
    covered: dict[str, set[int]] = {}
    for index in version.indices:
        if index.fragment_bitmap and not index.name.startswith("__"):  # the engine keeps such indexes for itself
            covered.setdefault(index.name, set()).update(covered_fragments(index, name))
    every: set[int] = set().union(*covered.values())
    fragments = [
        FragmentFacts(each.id, each.live_rows, sum(file.file_size_bytes for file in each.files), each.id in every)
        for each in version.manifest.fragments
    ]
    indexes = [
        IndexFacts(
            index,
            sum(each.rows for each in fragments if each.id in ids),
            sum(each.rows for each in fragments if each.id not in ids),
        )
        for index, ids in covered.items()
    ]
    return TableFacts(fragments, indexes, ages)
