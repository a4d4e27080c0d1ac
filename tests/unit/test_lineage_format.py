"""The lineage check decodes a manifest alike, whether or not it has others in memory."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lancekeep.domain.lineage import Difference
from lancekeep.format.lineage import Manifest, difference
from lancekeep.format.manifest import ManifestFile
from lancekeep.format.messages import DataFragment, Transaction
from lancekeep.format.messages import Manifest as ManifestMessage

FOOTER = (0).to_bytes(8, "little") + b"\0\0\2\0LANC"
FRAGMENTS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc")), max_size=6)


def message(fragments: list[tuple[int, str]], version: int = 1) -> ManifestMessage:
    entries = [DataFragment(id=number, files=[{"path": path}], physical_rows=1) for number, path in fragments]
    return ManifestMessage(
        fields=[{"name": "x", "id": 0}], fragments=entries, version=version, transaction_file="1-u.txn"
    )


def file(fragments: list[tuple[int, str]], version: int = 1) -> bytes:
    return ManifestFile(message(fragments, version), None).serialize(Transaction())


def interrupted(fragments: list[tuple[int, str]]) -> bytes:
    """Return a manifest file with its version between two fragments."""
    parts = [message(fragments[:1]), ManifestMessage(fragments=message(fragments[1:]).fragments)]
    content = b"".join(part.SerializeToString() for part in parts)
    return len(content).to_bytes(4, "little") + content + FOOTER


def expected(staged: list[tuple[int, str]], previous: list[tuple[int, str]]) -> tuple[set[tuple[int, str]], ...]:
    return set(staged) - set(previous), set(previous) - set(staged)


def summary(found: Difference) -> tuple[set[tuple[int, str]], ...]:
    return tuple({(each.id, min(each.files)) for each in side} for side in (found.added, found.lost))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(FRAGMENTS, FRAGMENTS, st.booleans())
def test_difference_is_the_same_with_and_without_a_known_predecessor(
    before: list[tuple[int, str]], new: list[tuple[int, str]], appends: bool
) -> None:
    before, new = list(dict.fromkeys(before)), list(dict.fromkeys(new))
    after = list(dict.fromkeys(before + new)) if appends else new
    previous = Manifest(file(before))
    for known in (None, previous, Manifest(file(before[:1]))):
        staged = Manifest(file(after, 2), known)
        assert summary(difference(staged, previous)) == expected(after, before)
        assert staged.transaction == "1-u.txn"
        assert staged.is_empty == (not after)


@pytest.mark.parametrize("after", [[(0, "a"), (1, "b"), (2, "c")], [(0, "a")], [(1, "b"), (0, "a")]])
def test_manifest_with_fields_between_its_fragments_is_compared_completely(after: list[tuple[int, str]]) -> None:
    before = [(0, "a"), (1, "b")]
    previous = Manifest(interrupted(before))
    for content in (file(after), interrupted(after)):
        for known in (None, previous):
            assert summary(difference(Manifest(content, known), previous)) == expected(after, before)
