"""Compare the entries of one fragment in two manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lancekeep.format.messages import DataFragment, parse


def keep_rows(before: Mapping[int, bytes], after: Mapping[int, bytes]) -> bool:
    """Return whether a version keeps the rows of the preceding version.

    Args:
        before: The entries of the preceding version, by the id of the fragment.
        after: The entries of the version.

    Returns:
        False if a fragment was added or removed, lost rows, or has other values in a column that both versions have.
    """
    return before.keys() == after.keys() and all(_keeps(entry, after[key]) for key, entry in before.items())


def replaces_silently(before: bytes, after: bytes) -> bool:
    """Return whether values were replaced, and no row is recorded as updated."""
    old, new = parse(DataFragment, before), parse(DataFragment, after)
    return not _has_values_of(old, new) and _updates(old) == _updates(new)


def _keeps(before: bytes, after: bytes) -> bool:
    if before == after:
        return True
    old, new = parse(DataFragment, before), parse(DataFragment, after)
    return (old.physical_rows, old.deletion_file) == (new.physical_rows, new.deletion_file) and _has_values_of(old, new)


def _has_values_of(old: Any, new: Any) -> bool:
    """Return whether all columns that two entries share have the same values.

    A new file may also name a struct, to which it adds a field.
    """
    was, now = _files(old), _files(new)
    return list(old.overlays) == list(new.overlays) and all(was[key] <= now[key] for key in was.keys() & now.keys())


def _files(fragment: Any) -> dict[int, set[str]]:
    """Return the data files of each field."""
    found: dict[int, set[str]] = {}
    for file in fragment.files:
        for field in file.fields:
            if field >= 0:
                found.setdefault(field, set()).add(file.path)
    return found


def _updates(fragment: Any) -> tuple[Any, ...]:
    return fragment.inline_last_updated_at_versions, fragment.external_last_updated_at_versions
