"""The check of manifest names before the first change of a history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from lancekeep.adapters.commit_stores.conditional_put import ConditionalPutCommitStore
from lancekeep.adapters.commit_stores.memory import MemoryCommitStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.commits.managed_rows import ManagedRows
from lancekeep.application.commits.naming_schemes import NamingSchemes
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import Damaged
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import DETACHED, NamingScheme, detached_name
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectInfo

ROOT = DatasetRoot("t", "memory:///t")
V1, V2 = NamingScheme.V1, NamingScheme.V2


class Listed(MemoryObjectStore):
    """Records the listings, and the objects that they show."""

    def __init__(self) -> None:
        super().__init__()
        self.listings: list[int] = []

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        self.listings.append(0)
        at = len(self.listings) - 1
        for info in super().list(prefix, after=after):
            self.listings[at] += 1
            yield info

    def fill(self, v1: Sequence[int], v2: Sequence[int]) -> None:
        for scheme, versions in ((V1, v1), (V2, v2)):
            for version in versions:
                self.put(ROOT.manifest_key(version, scheme), b"")


def schemes(objects: MemoryObjectStore, rows: ExternalCommitStore) -> NamingSchemes:
    return NamingSchemes(objects, ManagedRows(rows, None, objects.root_uri), Retry(1.0))


def derived(objects: MemoryObjectStore) -> NamingSchemes:
    return schemes(objects, ConditionalPutCommitStore(objects))


@pytest.mark.parametrize(
    ("v1", "v2"),
    [
        ([5, 6], [1, 2, 3, 4]),
        ([1, 2, 3], [4, 5]),
        ([10, 18, 184], [185]),
        ([19, 20], [18]),
        ([2], [3]),
        ([1_844_674], [1_844_675]),
        ([999_999_999], [1_000_000_000]),
        ([4], [4]),
    ],
)
def test_mixture_is_refused_wherever_its_names_sort(v1: Sequence[int], v2: Sequence[int]) -> None:
    objects = Listed()
    objects.fill(v1, v2)
    with pytest.raises(Damaged, match=rf"{len(v1)} manifests have V1 names and {len(v2)} have V2 names"):
        derived(objects).require_one(ROOT)


@pytest.mark.parametrize("scheme", [V1, V2])
def test_long_history_costs_two_short_listings_once(scheme: NamingScheme) -> None:
    objects = Listed()
    objects.fill(*((range(1, 300), ()) if scheme is V1 else ((), range(1, 300))))
    objects.put(f"{ROOT.manifest_key(300, V1)}-staged", b"")
    for number in range(50):
        objects.put(ROOT.versions_key + detached_name(DETACHED + number), b"")
    checked = derived(objects)
    for _ in range(3):
        checked.require_one(ROOT)
    assert len(objects.listings) == 2
    assert sum(objects.listings) <= 4
    checked.require_one(ROOT.branch("b"))
    assert len(objects.listings) == 3, "a branch has names of its own"


def test_mixture_is_checked_again_at_every_change() -> None:
    objects = Listed()
    objects.fill([2], [1])
    checked = derived(objects)
    for _ in range(2):
        with pytest.raises(Damaged):
            checked.require_one(ROOT)
    objects.fill([], [2])
    objects.delete(ROOT.manifest_key(2, V1))
    checked.require_one(ROOT)
    listings = len(objects.listings)
    checked.require_one(ROOT)
    assert len(objects.listings) == listings


@pytest.mark.parametrize(
    ("v1", "v2", "named", "is_accepted"),
    [
        ([1, 2], [3], V2, True),  # ManifestNamesMigration has committed version 3
        ([1, 2, 3], [3, 4], V2, True),
        ([1, 2], [3], None, True),  # the row is lost
        ([1, 2], [3], V1, False),  # pylance has renamed the manifest of version 3
        ([2, 3], [1], V1, False),
        ([3], [1, 2, 4], V1, False),
    ],
)
def test_migration_in_progress_is_no_mixture_if_rows_show_it(
    v1: Sequence[int], v2: Sequence[int], named: NamingScheme | None, is_accepted: bool
) -> None:
    objects, rows = Listed(), MemoryCommitStore("schemes")
    objects.fill(v1, v2)
    rows.delete(ROOT.base_uri)
    if named is not None:
        latest = max(*v1, *v2)
        rows.record([VersionRow(ROOT.base_uri, latest, ROOT.manifest_key(latest, named), 0)])
    checked = schemes(objects, rows)
    if is_accepted:
        checked.require_one(ROOT)
    else:
        with pytest.raises(Damaged, match="migrate_manifest_names"):
            checked.require_one(ROOT)
