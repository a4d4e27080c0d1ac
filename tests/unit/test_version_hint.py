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

    def list(self, prefix: str, *, after: str = ""):  # type: ignore[no-untyped-def] # as in the port
        for info in super().list(prefix, after=after):
            self.listed += 1
            yield info


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


def test_hint_of_a_dropped_table_finds_no_version() -> None:
    objects = MemoryObjectStore()
    root = DatasetRoot("t.lance", objects.root_uri + "t.lance")
    objects.put(root.versions_key + "latest_version_hint.json", b'{"version":3}')
    assert ConditionalPutCommitStore(objects).latest(root.base_uri) is None
