"""Which files a backup copies, in which part, and which version they belong to."""

from __future__ import annotations

import pytest

from lancekeep.domain.backup import BackedUpFile, BackupRecord, Part, digest_of_contents, newest
from lancekeep.domain.errors import Damaged

UUID = "0f3c5e9a-1b2d-4c3d-8e4f-5a6b7c8d9e0f"
DATA = "010101010101010101010101" + "0f3c5e9a1b2d4c3d8e4f5a6b7c" + ".lance"
FINAL = "18446744073709551610.manifest"

PARTS = {
    f"t.lance/_versions/{FINAL}": Part.MANIFEST,
    "t.lance/_versions/5.manifest": Part.MANIFEST,
    f"t.lance/_versions/{FINAL}-{UUID}": Part.MANIFEST,
    f"t.lance/_versions/d9223372036854775809.manifest-{UUID}": Part.MANIFEST,
    f"t.lance/tree/b/_versions/{FINAL}": Part.MANIFEST,
    f"__manifest/_versions/{FINAL}": Part.ENTRIES,
    "t.lance/_versions/latest_version_hint.json": Part.NONE,
    "t.lance/data/.tmpAbCdEf": Part.NONE,
    f"t.lance/data/{DATA}": Part.NAMED,
    f"t.lance/tree/b/data/{DATA}": Part.NAMED,
    f"t.lance/_transactions/4-{UUID}.txn": Part.NAMED,
    f"t.lance/_indices/{UUID}/index.idx": Part.NAMED,
    "t.lance/_deletions/0-4-9876543210.arrow": Part.NAMED,
    "__manifest/data/0123456789abcdef0123456789abcdef.lance": Part.NAMED,
    "t.lance/data/notes.txt": Part.RECORD_OF_VERSIONS,
    "t.lance/_refs/tags/data.json": Part.RECORD_OF_VERSIONS,
    "t.lance/.lance-reserved": Part.RECORD_OF_VERSIONS,
    ".lancekeep.json": Part.RECORD_OF_VERSIONS,
    f"t.lance/_mem_wal/{UUID}/manifest/x.binpb": Part.RECORD_OF_VERSIONS,
    f"t.lance/_ingested/{5:020}.{'a' * 32}.a-pending.arrow": Part.BEFORE_COMMIT,
    "__manifest/_requests/keys-0/1": Part.BEFORE_COMMIT,
    ".lancekeep-backup.json": Part.NONE,
    ".lancekeep-events/log/00000000000000000001": Part.NONE,
    ".lancekeep-maintenance/lease": Part.NONE,
    ".lancekeep-waiting/x": Part.NONE,
}


@pytest.mark.parametrize("path", PARTS)
def test_files_belong_to_the_part_that_their_references_demand(path: str) -> None:
    file = BackedUpFile.of(path)
    assert file.part is PARTS[path]
    if file.part in (Part.MANIFEST, Part.ENTRIES, Part.NAMED):
        assert path.startswith(f"{file.root}/")
    assert file.is_staged == (file.part in (Part.MANIFEST, Part.ENTRIES) and path.endswith(UUID))


def test_manifests_may_name_a_file_whatever_its_name() -> None:
    for path in ("t.lance/data/own.lance", "t.lance/_deletions/own.bin"):
        file = BackedUpFile.of(path)
        assert (file.part, file.is_named, file.root) == (Part.RECORD_OF_VERSIONS, True, "t.lance")
    assert not BackedUpFile.of("t.lance/_refs/tags/data.json").is_named


def test_versions_branches_and_records_of_ingested_files_are_parsed() -> None:
    branch = BackedUpFile.of(f"a/t.lance/tree/x/y/_versions/{FINAL}")
    assert (branch.version, branch.root) == (5, "a/t.lance/tree/x/y")
    assert branch.branch_file == "a/t.lance/_refs/branches/x%2Fy.json"
    assert BackedUpFile.of(f"t.lance/_versions/{FINAL}").branch_file is None
    assert BackedUpFile.of(f"t.lance/_versions/{FINAL}-{UUID}").version is None
    record = f"t.lance/_ingested/{5:020}.{'a' * 32}"
    assert BackedUpFile.of(f"{record}.b-settled.arrow").ingested == (5, False)
    assert BackedUpFile.of(f"{record}-and-before.b-settled.arrow").ingested == (5, True)
    files = [BackedUpFile.of(f"t.lance/_versions/{number}.manifest") for number in (9, 10, 3)]
    assert newest(files) == {"t.lance": files[1]}


def test_record_of_a_backup_is_read_as_it_was_written() -> None:
    record = BackupRecord("s3://bucket/lake", "s3://backups/lake", digest_of_contents({"a": 1}))
    assert BackupRecord.decode(record.encode(), "r") == record
    for content in (b"", b"{", b"[]", b'{"format": 2}', record.encode().replace(b'"format": 1', b'"format": 9')):
        with pytest.raises(Damaged, match="not the record of a backup"):
            BackupRecord.decode(content, "r")


def test_digest_differs_with_names_and_sizes_and_not_with_their_order() -> None:
    assert digest_of_contents({"a": 1, "b": 2}) == digest_of_contents({"b": 2, "a": 1})
    assert len({digest_of_contents(each) for each in ({"a": 1}, {"a": 2}, {"b": 1}, {}, {"a": 1, "b": 1})}) == 5
