"""The recorded keys of appends: what is stored is what is read, and damage is named."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancekeep.domain.errors import Damaged
from lancekeep.domain.recorded_keys import Effect, Group, Recorded, Segment, SharedKey, decisive, level_of, object_name

digests = st.binary(min_size=16, max_size=16)
keys = st.builds(SharedKey, digests, digests)
numbers = st.integers(1, 2**63 - 1)
transactions = st.builds(lambda read, uuid: f"{read}-{UUID(bytes=uuid)}.txn", numbers, digests)
records = st.one_of(
    st.builds(Recorded, keys, st.just(Effect.COMMITTED), numbers, transactions),
    st.builds(Recorded, keys, st.sampled_from([Effect.IN_LOG, Effect.UNKNOWN])),
)


@given(st.lists(records, max_size=40), st.lists(records, max_size=40))
def test_a_segment_finds_its_records_after_merging_and_decoding(some: list[Recorded], more: list[Recorded]) -> None:
    segment = Segment.merged([Segment.of(some), Segment.of(more)])
    read = Segment.decode(segment.encode(), "segment")
    assert len(read) == len({each.encode() for each in [*some, *more]})
    for each in [*some, *more]:
        assert each in read.find(each.key.name)
    assert read.find(b"0123456789abcdef") == [] or any(each.key.name == b"0123456789abcdef" for each in [*some, *more])


@given(st.lists(keys, max_size=5).map(tuple), numbers, transactions)
def test_a_group_is_read_as_it_was_written(some: tuple[SharedKey, ...], version: int, transaction: str) -> None:
    group = Group(some, version, transaction)
    assert Group.decode(group.encode(), "group") == group
    assert Group.decode(Group(some).encode(), "group") == Group(some)


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_a_changed_byte_of_a_segment_is_damage(some: list[Recorded], data: st.DataObject) -> None:
    content = bytearray(Segment.of(some).encode())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged, match="the segment does not hold"):
        Segment.decode(bytes(content), "the segment")


@pytest.mark.parametrize(
    ("version", "latest", "transaction", "effect"),
    [
        (0, 5, None, Effect.IN_LOG),
        (6, 5, None, Effect.PENDING),
        (5, 5, "1-mine.txn", Effect.COMMITTED),
        (5, 5, "1-other.txn", None),
        (4, 5, None, Effect.UNKNOWN),
    ],
)
def test_the_version_of_a_group_decides_its_effect(
    version: int, latest: int, transaction: str | None, effect: Effect | None
) -> None:
    assert Group((), version, "1-mine.txn").effect(latest, transaction) is effect


def test_a_commit_decides_over_other_records() -> None:
    key = SharedKey(b"a" * 16, b"b" * 16)
    found = [Recorded(key, effect) for effect in (Effect.PENDING, Effect.UNKNOWN, Effect.IN_LOG)]
    assert decisive(found) == found[2]
    committed = Recorded(key, Effect.COMMITTED, 1, "0-x.txn")
    assert decisive([*found, committed]) is committed
    assert decisive([]) is None


def test_names_of_higher_levels_sort_later() -> None:
    names = [object_name(level, str(UUID(int=9 - level))) for level in range(5)]
    assert sorted(names) == names
    assert [level_of(name) for name in names] == list(range(5))
    assert [level_of(name) for name in ("5-x", "x", "-1-x", "0-")] == [None] * 4
