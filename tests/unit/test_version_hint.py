"""The native version hint makes the latest version cheap to find, and a wrong hint is harmless."""

from __future__ import annotations

import pytest

from lancekeep.adapters.commit_stores.conditional_put import ConditionalPutCommitStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import NamingScheme


class Counting(MemoryObjectStore):
    """Counts the objects that listings showed."""

    listed = 0
    asked = 0

    def list(self, prefix: str, *, after: str = ""):  # type: ignore[no-untyped-def] # as in the port
        for info in super().list(prefix, after=after):
            self.listed += 1
            yield info

    def head(self, key: str):  # type: ignore[no-untyped-def] # as in the port
        self.asked += 1
        return super().head(key)


@pytest.mark.parametrize(
    ("hint", "lists"),
    [
        (b'{"version":40}', False),
        (b'{"version":38}', False),
        (None, True),
        (b'{"version":41}', True),
        (b'{"version":-1}', True),
        (b'{"version":"x"}', True),
        (b"[]", True),
        (b"\xff", True),
        (b"", True),
    ],
    ids=repr,
)
def test_latest_version_is_found_with_any_hint(hint: bytes | None, lists: bool) -> None:
    objects = Counting()
    root = DatasetRoot("t.lance", objects.root_uri + "t.lance")
    for version in range(1, 41):
        objects.put(root.manifest_key(version, NamingScheme.V2), b"LANC")
    if hint is not None:
        objects.put(root.versions_key + "latest_version_hint.json", hint)
    latest = ConditionalPutCommitStore(objects).latest(root.base_uri)
    assert latest is not None
    assert latest.version == 40
    assert (objects.listed > 0) == lists


def with_versions(*versions: int, hint: int) -> tuple[Counting, DatasetRoot]:
    objects = Counting()
    root = DatasetRoot("t.lance", objects.root_uri + "t.lance")
    for version in versions:
        objects.put(root.manifest_key(version, NamingScheme.V2), b"LANC")
    objects.put(root.hint_key, b'{"version":%d}' % hint)
    return objects, root


def test_search_continues_where_the_last_one_ended() -> None:
    objects, root = with_versions(*range(1, 101), hint=1)
    store = ConditionalPutCommitStore(objects)
    assert store.latest(root.base_uri) is not None
    objects.put(root.manifest_key(101, NamingScheme.V2), b"LANC")
    before = objects.asked
    latest = store.latest(root.base_uri)
    assert latest is not None
    assert latest.version == 101
    assert objects.asked - before == 5  # the hint, 100, 101, and both names of 102


def test_search_does_not_continue_at_a_version_that_is_gone() -> None:
    objects, root = with_versions(*range(1, 8), hint=5)
    store = ConditionalPutCommitStore(objects)
    assert store.latest(root.base_uri) is not None
    for version in range(6, 8):
        objects.delete(root.manifest_key(version, NamingScheme.V2))
    latest = store.latest(root.base_uri)  # of a table that was restored from a copy
    assert latest is not None
    assert latest.version == 5


def test_version_before_a_gap_is_not_the_latest() -> None:
    objects, root = with_versions(1, 2, 3, hint=2)
    store = ConditionalPutCommitStore(objects)
    assert store.latest(root.base_uri) is not None
    for version in (1, 2):  # a clean-up kept version 3 for a tag, which was deleted
        objects.delete(root.manifest_key(version, NamingScheme.V2))
    objects.put(root.manifest_key(9, NamingScheme.V2), b"LANC")
    latest = store.latest(root.base_uri)
    assert latest is not None
    assert latest.version == 9


def test_hint_of_a_dropped_table_finds_no_version() -> None:
    objects = MemoryObjectStore()
    root = DatasetRoot("t.lance", objects.root_uri + "t.lance")
    objects.put(root.versions_key + "latest_version_hint.json", b'{"version":3}')
    assert ConditionalPutCommitStore(objects).latest(root.base_uri) is None
