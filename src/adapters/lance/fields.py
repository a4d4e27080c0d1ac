"""Fragments that callers have written, and their fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from lancekeep.application.concurrency import in_a_thread
from lancekeep.domain.errors import InvalidInput
from lancekeep.native import lance
from lancekeep.ports.table_engine import WriteMode, WritePlan


def keeping_fields(
    plan: WritePlan, fragments: Iterable[Any], open_version: Callable[[int], Any]
) -> Callable[[int], bool] | None:
    """Return what decides whether the fragments of a plan may follow a version.

    Lance rebases an append over changes of columns, and reads NULL for values whose field the table no longer has.

    Returns:
        None if the fragments replace the table.
    """
    if plan.mode is not WriteMode.APPEND:
        return None
    written = {field for fragment in fragments for file in fragment.files for field in file.fields if field >= 0}

    def fits(version: int) -> bool:
        return version == plan.read_version or in_a_thread(lambda: written <= _known(open_version(version)))

    return fits


def _known(dataset: Any) -> set[int]:
    found, left = set[int](), list(dataset.lance_schema.fields())
    while left:
        field = left.pop()
        found.add(field.id())
        left += field.children()
    return found


def fragment_of(fragment: Any) -> Any:
    """Return a fragment as ``lance.FragmentMetadata``."""
    if isinstance(fragment, lance.FragmentMetadata):
        return fragment
    try:
        return lance.FragmentMetadata.from_json(fragment if isinstance(fragment, str) else json.dumps(fragment))
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidInput(f"not the metadata of a fragment, nor its JSON: {fragment!r:.200}") from error
