"""The keys of a table in memory are those of its live rows, after any changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lancekeep.application.rows import known_keys
from lancekeep.application.rows.known_keys import KnownKeys

KINDS: dict[Any, Callable[[int], Any]] = {
    pa.int64(): int,
    pa.uint8(): int,
    pa.uint64(): (2**64 - 60).__add__,
    pa.int8(): (-30).__add__,
    pa.string(): str,
}
Rows = dict[int, Any]
"""The values of rows by their addresses."""


def found(rows: Rows, wanted: list[Any]) -> dict[Any, list[int]]:
    """Return what `KnownKeys.find` has to find."""
    addresses: dict[Any, list[int]] = {}
    for address, value in rows.items():
        if value in wanted:
            addresses.setdefault(value, []).append(address)
    return addresses


def replaced(keys: KnownKeys, rows: Rows, fragment: int, values: list[Any], chance: random.Random) -> Rows:
    """Replace up to two fragments by one whose values are read in two batches; return the rows."""
    gone = set(chance.sample(sorted({each >> 32 for each in rows} | {0}), chance.randrange(2)))
    new = [fragment << 32 | offset for offset in range(len(values))]
    parts = [(0, 5), (5, len(values))] if values else []
    keys.replace(gone, [(pa.array(values[a:b], keys.kind), np.array(new[a:b], np.uint64)) for a, b in parts])
    kept = {address: value for address, value in rows.items() if address >> 32 not in gone}
    return kept | {address: value for address, value in zip(new, values, strict=True) if value is not None}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("most_moved", [3, 50_000])
def test_keys_are_found_after_any_changes(monkeypatch: pytest.MonkeyPatch, kind: Any, most_moved: int) -> None:
    monkeypatch.setattr(known_keys, "_MOST_MOVED", most_moved)
    of = KINDS[kind]
    for seed in range(40):
        chance = random.Random(seed)
        keys, rows = KnownKeys(kind), Rows()
        for fragment in range(1, 12):
            if chance.random() < 0.4:
                values = [chance.choice([None, of(chance.randrange(60))]) for _ in range(chance.randrange(20))]
                rows = replaced(keys, rows, fragment, values, chance)
            wanted = list({of(chance.randrange(60)) for _ in range(chance.randrange(12))})
            before, expected = keys.find(wanted), found(rows, wanted)
            assert {value: sorted(each) for value, each in before.items()} == {
                value: sorted(each) for value, each in expected.items()
            }
            if all(len(each) == 1 for each in before.values()):
                keys.move(wanted, fragment + 100, before)
                rows = {address: value for address, value in rows.items() if value not in wanted}
                rows |= {fragment + 100 << 32 | offset: value for offset, value in enumerate(wanted)}
