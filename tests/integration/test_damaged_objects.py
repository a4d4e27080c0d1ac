"""One damaged object is one finding: no check ends, or leaves out other tables, because of it."""

from __future__ import annotations

from pathlib import Path

import attrs
import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.upkeep.fsck import Finding, Kind
from lancekeep.format.table_version import TableVersion

STORE = "conditional-put://"
ROWS = 10_000


@attrs.frozen
class Lake:
    """A catalog with the sound table ``z`` and a table ``a`` with a branch, a tag and a detached version."""

    catalog: lancekeep.Catalog
    directory: Path

    def files(self, pattern: str) -> list[Path]:
        return sorted((self.directory / "a.lance").glob(pattern))

    def findings(self) -> list[tuple[Kind, str]]:
        found: tuple[Finding, ...] = (
            lancekeep.connect(str(self.directory), commit_store=STORE).upkeep.fsck(deep=True).findings
        )
        return [(finding.kind, finding.object) for finding in found]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=STORE)
    for name in ("a", "z"):
        catalog.write(name, pa.table({"id": range(ROWS), "text": [str(number) for number in range(ROWS)]}))
    catalog.open("a").delete("id < 3")
    catalog.open("a").tags.create("kept", 2)
    catalog.open("a").create_branch("b")
    catalog.open("a", branch="b").delete("id < 6000")
    detached = lance.fragment.write_fragments(pa.table({"id": [1], "text": [""]}), catalog.describe_table("a").uri)
    operation = lance.LanceOperation.Append(detached)
    lance.LanceDataset.commit(catalog.describe_table("a").uri, operation, read_version=2, detached=True)
    catalog.write("a", pa.table({"id": [1], "text": [""]}), "append")
    return Lake(catalog, tmp_path / "lake")


def flipped(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def renumbered(file: Path) -> None:
    """Change the number of a version inside of its manifest."""
    version = TableVersion.parse(file.read_bytes(), file.name)
    changed = attrs.evolve(version.manifest, version=version.manifest.version ^ 1)
    file.write_bytes(attrs.evolve(version, manifest=changed).serialize())


def ambiguous(file: Path) -> None:
    """Give two fields the same id."""
    version = TableVersion.parse(file.read_bytes(), file.name)
    first, *others = version.manifest.fields
    changed = attrs.evolve(version.manifest, fields=(first, *(attrs.evolve(field, id=first.id) for field in others)))
    file.write_bytes(attrs.evolve(version, manifest=changed).serialize())


def test_healthy_tables_have_no_finding(lake: Lake) -> None:
    assert lake.findings() == []


@pytest.mark.parametrize(
    ("pattern", "finding"),
    [
        ("_versions/*613.manifest", (Kind.DAMAGED_FILE, "a")),
        ("_versions/d*.manifest", (Kind.DAMAGED_FILE, "a")),
        ("_versions/*612.manifest", (Kind.HEAD, "a")),
        ("tree/b/_versions/*612.manifest", (Kind.HEAD, "a@b")),
    ],
    ids=["tagged", "detached", "head", "head of a branch"],
)
@pytest.mark.parametrize("damage", [renumbered, ambiguous, lambda file: flipped(file, 8 * file.stat().st_size - 1)])
def test_damaged_manifest_is_one_finding(lake: Lake, pattern: str, finding: tuple[Kind, str], damage: object) -> None:
    assert callable(damage)
    [manifest] = lake.files(pattern)
    damage(manifest)
    assert lake.findings() == [finding]


@pytest.mark.parametrize("pattern", ["_deletions/*.arrow", "tree/b/_deletions/*.bin"])
def test_damaged_deletion_file_is_one_finding_of_each_version(lake: Lake, pattern: str) -> None:
    [deletions] = lake.files(pattern)
    flipped(deletions, 8 * deletions.stat().st_size // 2)
    deletions.write_bytes(deletions.read_bytes()[:-9])
    assert {kind for kind, _ in lake.findings()} == {Kind.DAMAGED_FILE}


def test_deletion_file_of_other_rows_is_a_finding(lake: Lake) -> None:
    """Positions beyond the fragment make the engine allocate as much memory as they claim."""
    import numpy as np

    from lancekeep.domain.manifest import DeletionFileType
    from lancekeep.format.deletions import write

    [deletions] = lake.files("_deletions/*.arrow")
    deletions.write_bytes(write(np.array([0, 1, 1 << 31], np.uint32), DeletionFileType.ARROW_ARRAY))
    assert {kind for kind, _ in lake.findings()} == {Kind.DAMAGED_FILE}
