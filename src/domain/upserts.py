"""Which upserts share a group commit.

An upsert replaces the rows of its keys, and inserts the rows whose keys the table lacks. Upserts of different keys have
the same effect together as one after the other, in any order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import attrs

from lancekeep.domain.appends import Waiting, group_of

MOST_BYTES = 1 << 20
"""The bytes of one upsert; a larger one commits alone."""
MOST_ROWS = 1024
"""The rows of one upsert; a larger one commits alone."""
MOST_KEYS_TOGETHER = 8192
"""The keys of a group, which are looked up together."""

Key = tuple[Hashable, ...]
"""The values of the key columns in one row."""


@attrs.frozen
class WaitingUpsert:
    """An upsert that waits.

    Attributes:
        append: its shape and size, as of an append. The shape is what the upserts of a group have in common: their
            schema, their key columns, and whether they use an index.
        keys: the keys of its rows, each once.
    """

    append: Waiting
    keys: frozenset[Key]


def upserts_of_group(waiting: Sequence[WaitingUpsert]) -> list[int]:
    """Return the positions of the upserts that commit next, together.

    The first upsert is always one of them. An upsert that has a key of a chosen upsert waits for a later group, so
    upserts of one key take effect in the order of their arrival.
    """
    chosen: list[int] = []
    passed = set[Key]()
    count = 0
    for at in group_of([each.append for each in waiting]):
        keys = waiting[at].keys
        if not passed.isdisjoint(keys):
            passed |= keys  # an upsert that arrived later must not overtake this one
            continue
        if chosen and count + len(keys) > MOST_KEYS_TOGETHER:
            break
        chosen.append(at)
        passed |= keys
        count += len(keys)
    return chosen
