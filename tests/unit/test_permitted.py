"""Pages of permitted names: equal to filtering the whole listing, and reading little of it."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lancekeep.domain.authorization import EVERYONE, Grant, Policy, Principal
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.rights import ROLES, Permission, Right
from lancekeep.entrypoints.permitted import CHUNK, PermittedNames

ADA = Principal("key:ada")
LIST = (Permission(Right.LIST),)
NAME = st.text("ab!#~\ud7ff\ue000\U0010ffff", min_size=1, max_size=3)
KEY = st.lists(NAME, min_size=1, max_size=3).map(tuple).map(ObjectId)


class Listing:
    """Names in their order, which counts what is read."""

    def __init__(self, names: list[str]) -> None:
        self.names = sorted(names)
        self.reads: list[int] = []

    def read(self, after: str | None, limit: int) -> tuple[list[str], str | None]:
        start = bisect_right(self.names, after or "")
        found = self.names[start : start + limit]
        self.reads.append(len(found))
        return found, found[-1] if start + limit < len(self.names) else None


def pages(permitted: PermittedNames, listing: Listing, limit: int | None) -> list[str]:
    found: list[str] = []
    after: str | None = None
    while True:
        names, after = permitted.page(listing.read, after, limit)
        assert limit is None or len(names) <= limit
        found += names
        if after is None:
            return found
        assert names
        assert names[-1] == after


@settings(max_examples=200)
@given(st.sets(KEY), st.sets(KEY, min_size=1), st.sampled_from([None, 1, 2, 7]))
def test_pages_hold_what_a_filter_of_the_listing_shows(
    tables: set[ObjectId], granted: set[ObjectId], limit: int | None
) -> None:
    policy = Policy(tuple(Grant(ROLES["read"], each, frozenset({EVERYONE})) for each in granted))
    keys = [each.key for each in tables]
    permitted = PermittedNames.of_all(policy.subtrees(ADA, ObjectId(), LIST))
    visible = sorted(each.key for each in tables if policy.rights(ADA, each))
    assert pages(permitted, Listing(keys), limit) == visible

    names = sorted({each.names[0] for each in tables})
    permitted = PermittedNames.of_children(ObjectId(), policy.subtrees(ADA, ObjectId(), LIST))
    shown = [name for name in names if policy.sees(ADA, ObjectId((name,)))]
    assert pages(permitted, Listing(names), limit) == shown


@pytest.mark.parametrize("below", [False, True])
def test_names_of_others_are_not_read(below: bool) -> None:
    listing = Listing([f"t{number:06}" for number in range(100_000)])
    permitted = PermittedNames(("t050000", "t099000"), below=below)
    assert pages(permitted, listing, 10) == ["t050000", "t099000"]
    assert sum(listing.reads) <= 4 * CHUNK


def test_names_of_the_last_character_are_read_on_each_page() -> None:
    last = chr(0x10FFFF)
    listing = Listing([f"a${last}{number:03}" for number in range(3 * CHUNK)])
    assert len(pages(PermittedNames(("a",), below=True), listing, 7)) == 3 * CHUNK


def test_a_page_behind_all_permitted_names_is_read_once() -> None:
    listing = Listing(["a", "b", "c"])
    assert PermittedNames(("a",)).page(listing.read, "b", 5) == ([], None)
    assert listing.reads == [1]
