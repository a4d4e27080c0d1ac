"""What automatic maintenance finds due for a table."""

from __future__ import annotations

import random

import pytest

from lancekeep.domain.automatic_maintenance import (
    KEEP,
    MAINTENANCE,
    MOST_BYTES,
    OLDER_THAN,
    TARGET_ROWS,
    AutomaticPolicy,
    Due,
    FragmentFacts,
    IndexFacts,
    TableFacts,
    due,
    listed_after,
    pause_after,
    policy_of,
    rest_after,
)
from lancekeep.domain.errors import InvalidInput

POLICY = AutomaticPolicy(older_than=100, keep=10, target_rows=1000)


def fragments(*rows: int, size: int = 1, indexed: int = 0) -> list[FragmentFacts]:
    """Return fragments; an index covers the first ``indexed`` of them."""
    return [FragmentFacts(at, each, each * size, at < indexed) for at, each in enumerate(rows)]


@pytest.mark.parametrize(
    ("rows", "target"),
    [
        ([], None),
        ([10] * 7, None),  # few
        ([10] * 8, 1000),
        ([1000] * 20, None),  # none is small
        ([5000, *[10] * 8], 1000),
        ([900, *[10] * 8], 900),  # a merge with the first would copy it for little
        ([900, *[200] * 8], 1000),  # it at least doubles the largest
        ([900, 100, *[10] * 8], 100),
        ([900, 100, *[10] * 3], None),
        ([0] * 8, 1000),  # all rows are deleted
    ],
)
def test_small_fragments_are_merged_if_that_doubles_the_largest(rows: list[int], target: int | None) -> None:
    assert due(TableFacts(fragments(*rows)), POLICY).compact == target


def test_wide_rows_make_smaller_fragments() -> None:
    wide = due(TableFacts(fragments(*[10] * 8, size=MOST_BYTES // 100)), POLICY)
    assert wide.compact == 100
    assert due(TableFacts(fragments(*[100] * 8, size=MOST_BYTES // 100)), POLICY).compact is None


def test_appends_leave_few_fragments_and_copy_each_row_a_few_times() -> None:
    """A merge replaces adjacent fragments below the target by fragments of at least the target, and a rest."""
    chance, rows, copied = random.Random(1), list[int](), 0
    policy = AutomaticPolicy(target_rows=1 << 20)
    for _ in range(400):
        rows += [640] * chance.randint(1, 60)
        wanted = due(TableFacts(fragments(*rows)), policy)
        while wanted.compact is not None:
            merged, at = list[int](), 0
            while at < len(rows):
                together = 0
                while at < len(rows) and rows[at] < wanted.compact and together < wanted.compact:
                    together += rows[at]
                    copied += rows[at]
                    at += 1
                if together:
                    merged.append(together)
                else:
                    merged.append(rows[at])
                    at += 1
            rows = merged
            wanted = due(TableFacts(fragments(*rows)), policy)
    assert len(rows) <= 50
    assert copied <= 8 * sum(rows)


def test_indexed_fragments_wait_until_they_are_many() -> None:
    some = due(TableFacts(fragments(*[10] * 20, indexed=12)), POLICY)
    assert (some.compact, some.excluded) == (1000, tuple(range(12)))
    assert due(TableFacts(fragments(*[10] * 19, indexed=12)), POLICY).compact is None
    many = due(TableFacts(fragments(*[10] * 64, indexed=64)), POLICY)
    assert (many.compact, many.excluded) == (1000, ())


@pytest.mark.parametrize(
    ("indexed", "unindexed", "refreshed"),
    [(100, 0, False), (100, 24, False), (100, 25, True), (0, 1, True), (10**6, 999, False), (10**6, 1000, True)],
)
def test_an_index_is_refreshed_if_it_lacks_many_rows(indexed: int, unindexed: int, refreshed: bool) -> None:
    found = due(TableFacts(indexes=[IndexFacts("i", indexed, unindexed)]), POLICY)
    assert found.refresh == (("i",) if refreshed else ())


@pytest.mark.parametrize(
    ("ages", "clean_up", "again"),
    [
        ([], False, None),
        ([1000] * 10, False, None),  # no more than are kept
        ([1000] * 34, False, None),  # too few exceed what is kept
        ([1000] * 35, True, None),
        ([1000] * 205, True, None),
        ([1000] * 10 + [0] * 26, False, 100),  # worth it are 25
        ([1000] * 24 + [90] * 12, False, 10),
        ([1000] * 25 + [30] * 11, False, 70),  # the successor of the last one is young
        ([1000] * 26 + [30] * 10, True, None),
    ],
)
def test_versions_are_removed_if_many_are_old(ages: list[float], clean_up: bool, again: float | None) -> None:
    found = due(TableFacts(ages=ages), POLICY)
    assert (found.clean_up, found.again) == (clean_up, again)


@pytest.mark.parametrize(
    ("ages", "clean_up", "again"),
    [
        ([1000] * 10, False, None),  # no more than are kept
        ([100] * 11, True, None),
        ([1000] * 10 + [99], False, 1),  # its writers have not paused
        ([1000] * 10 + [0], False, 100),
        ([1000] * 34 + [0], True, None),  # many are old
        ([1000] * 24 + [30] * 10 + [20], False, 70),
    ],
)
def test_few_old_versions_are_removed_after_a_merge_once_writers_pause(
    ages: list[float], clean_up: bool, again: float | None
) -> None:
    found = due(TableFacts(ages=ages, is_merged=True), POLICY)
    assert (found.clean_up, found.again) == (clean_up, again)


@pytest.mark.parametrize(
    ("ages", "expired"),
    [
        ([], 0),
        ([1000] * 10, 0),
        ([1000] * 34, 24),
        ([100] * 3 + [99] * 20, 2),  # the successor of the third is young
        ([100, 99, *[100] * 20], 0),
        ([1000] * 26 + [30] * 10, 25),
        ([1000] * 5 + [30] * 5, 0),
    ],
)
def test_versions_have_expired_if_their_successors_are_old(ages: list[float], expired: int) -> None:
    assert due(TableFacts(ages=ages), POLICY).expired == expired


def test_versions_are_listed_before_a_fifth_of_them_is_new() -> None:
    """So a table of many versions is not listed for each few of its commits."""
    for versions in (0, 10, 100, 1000, 100_000):
        assert 25 <= listed_after(versions) <= max(25, versions // 5)
    assert listed_after(100_000) >= 1000


def test_nothing_is_due_for_a_healthy_table() -> None:
    assert due(TableFacts(fragments(1000, 500), [IndexFacts("i", 1500, 0)], [50.0, 0.0]), POLICY) == Due()


def test_a_property_of_the_table_overrides_the_property_of_the_root() -> None:
    assert policy_of({}, {}) == AutomaticPolicy()
    assert policy_of({MAINTENANCE: "off"}, {}) is None
    assert policy_of({}, {MAINTENANCE: "off"}) is None
    given = {OLDER_THAN: "2d", KEEP: "7", TARGET_ROWS: "5"}
    assert policy_of({MAINTENANCE: "off", OLDER_THAN: "1h"}, {MAINTENANCE: "auto", **given}) == AutomaticPolicy(
        older_than=2 * 86_400, keep=7, target_rows=5
    )


def test_a_spared_table_needs_a_property_of_its_own() -> None:
    assert policy_of({MAINTENANCE: "auto"}, {}, is_spared=True) is None
    assert policy_of({}, {MAINTENANCE: "auto"}, is_spared=True) == AutomaticPolicy()


@pytest.mark.parametrize(
    ("name", "value"),
    [(MAINTENANCE, "on"), (OLDER_THAN, "7"), (OLDER_THAN, "-1d"), (KEEP, "0"), (KEEP, "٣"), (TARGET_ROWS, "1e6")],
)
def test_a_property_without_meaning_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        policy_of({}, {name: value})


def test_rests_keep_the_share_and_pauses_grow_to_a_limit() -> None:
    assert rest_after(1.0, 0.25) == 3.0
    assert [pause_after(failures) for failures in (1, 2, 3, 50)] == [5.0, 10.0, 20.0, 600.0]
