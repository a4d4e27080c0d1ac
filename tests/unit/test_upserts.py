"""Which upserts share a commit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lancekeep.domain.appends import MOST_TOGETHER, Waiting
from lancekeep.domain.upserts import MOST_KEYS_TOGETHER, WaitingUpsert, upserts_of_group


def upsert(*keys: int, shape: str = "t", size: int = 1) -> WaitingUpsert:
    return WaitingUpsert(Waiting(shape, size), frozenset((key,) for key in keys))


def test_upserts_of_one_shape_and_different_keys_form_a_group() -> None:
    assert upserts_of_group([]) == []
    assert upserts_of_group([upsert(1), upsert(2, 3), upsert(4, shape="other"), upsert(5)]) == [0, 1, 3]


def test_upsert_never_overtakes_an_earlier_one_of_its_key() -> None:
    assert upserts_of_group([upsert(1), upsert(1, 2), upsert(2, 3), upsert(3), upsert(4)]) == [0, 4]


def test_group_is_bounded_in_keys_and_bytes() -> None:
    many = upsert(*range(MOST_KEYS_TOGETHER))
    assert upserts_of_group([many, upsert(-1)]) == [0]
    assert upserts_of_group([upsert(-1), many]) == [0]
    assert upserts_of_group([upsert(1), upsert(2, size=MOST_TOGETHER)]) == [0]


@given(st.lists(st.tuples(st.frozensets(st.integers(0, 6), min_size=1), st.sampled_from("ab")), max_size=12))
def test_groups_take_every_upsert_once_and_in_the_order_of_each_key(given: list[tuple[frozenset[int], str]]) -> None:
    waiting = [(number, upsert(*keys, shape=shape)) for number, (keys, shape) in enumerate(given)]
    order: list[int] = []
    while waiting:
        chosen = upserts_of_group([each for _, each in waiting])
        assert chosen[0] == 0
        keys = [key for at in chosen for key in waiting[at][1].keys]
        assert len(keys) == len(set(keys))
        order += [waiting[at][0] for at in chosen]
        waiting = [each for at, each in enumerate(waiting) if at not in chosen]
    for shape in "ab":
        for key in range(7):
            numbers = [at for at in order if given[at][1] == shape and key in given[at][0]]
            assert numbers == sorted(numbers)
    assert sorted(order) == list(range(len(given)))
