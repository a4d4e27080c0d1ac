"""Describe the stored metadata of a table, without the table engine.

`Catalog.inspect` documents the arguments.
"""

from __future__ import annotations

import posixpath
import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from lancekeep.application.commits.rebase import CommittedVersions
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.mem_wal import MemWal
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.tables import Tables
from lancekeep.application.entries.tags import Tags
from lancekeep.domain.conflicts import conflict
from lancekeep.domain.dataset_files import DATA, DELETIONS, TRANSACTIONS, Place, deletion_file_name
from lancekeep.domain.errors import (
    Damaged,
    InvalidInput,
    LancekeepError,
    ObjectNotFound,
    TableNotFound,
    Unsupported,
    VersionNotFound,
)
from lancekeep.domain.features import Feature
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.layout import VERSIONS, DatasetRoot
from lancekeep.domain.lineage import Operation
from lancekeep.domain.manifest import DeletionFile, DeletionFileType
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.data_footer import TooShort
from lancekeep.format.descriptions import (
    change,
    describe_data_file,
    describe_deletion_file,
    describe_fragment,
    describe_manifest,
    describe_transaction,
)
from lancekeep.format.effects import effect_of
from lancekeep.format.table_version import TableVersion

_LARGEST = 1 << 30
"""As many bytes of a file are read at most."""
_FOOTER = 1 << 16
"""The last bytes of a data file that are read at first; most footers have fewer."""
_DELETION = re.compile(r"(\d+)-(\d+)-(\d+)\.(arrow|bin)")


class Inspection:
    """Describes manifests and the files to which they refer."""

    def __init__(self, ledger: Ledger, places: Places, tables: Tables, tags: Tags, mem_wal: MemWal) -> None:
        self._ledger = ledger
        self._places = places
        self._tables = tables
        self._tags = tags
        self._mem_wal = mem_wal

    def inspect(
        self, identifier: Identifier, version: int | str | None, file: str | None, fragment: int | None, most: int
    ) -> dict[str, Any]:
        if isinstance(identifier, str) and "/" in identifier:  # no name has a slash
            identifier, below = self._located(identifier)
            if below and file is not None:
                raise InvalidInput(f"the path names the file {below}; leave the file {file!r} out")
            file = below or file
        object_id = ObjectId.of(identifier)
        if file is not None and fragment is not None:
            raise InvalidInput("give a file or a fragment, not both")
        root = self._places.dataset_root(self._tables.find(object_id))
        place = Place.of(file) if file is not None else None
        if file is not None and place is not None and place.directory == VERSIONS:
            return self._manifest(self._content(root, file), file, most)
        if file is not None and place is not None and place.directory == TRANSACTIONS:
            return describe_transaction(self._content(root, file), file, most)
        if file is not None and place is not None and place.directory == DATA:
            return self._data_file(root, file)
        row = self._row(object_id, root, version)
        name = row.path.removeprefix(f"{root.key}/")
        if file is not None:
            return self._deletion_file(root, row, file)
        content = self._content(root, name)
        if fragment is not None:
            for found in TableVersion.parse(content, name).manifest.fragments:
                if found.id == fragment:
                    return describe_fragment(found, name)
            raise InvalidInput(f"{object_id}: version {row.version} has no fragment {fragment}; see {name}")
        described = self._manifest(content, name, most)
        described |= self._reason(root, row, content)
        described["commit_row"] = self._commit_row(row)
        if version is None:
            described["staged"] = self._staged(root)
            described["unmerged_generations"] = self._mem_wal.unmerged(root)
        return described

    def _located(self, location: str) -> tuple[ObjectId, str]:
        """Return the table at a path or URI, and the path of a file below the table, which may be empty."""
        path = posixpath.normpath(self._places.relative(location.rstrip("/")))
        for table in self._tables.usable():
            if f"{path}/".startswith(f"{table.location}/"):
                return table.id, path[len(table.location) + 1 :]
        raise TableNotFound(
            f"{location} is neither a table of the catalog at {self._places.root_uri} nor a file below a table"
        )

    def _manifest(self, content: bytes, name: str, most: int) -> dict[str, Any]:
        described = describe_manifest(content, name, most)
        if described["written"] is not None:
            try:
                described["written"] = datetime.fromtimestamp(described["written"], UTC).isoformat()
            except (ValueError, OverflowError, OSError) as error:
                raise Damaged(f"{name} has the time {described['written']}, which no calendar has") from error
        return described

    def _reason(self, root: DatasetRoot, row: VersionRow, content: bytes) -> dict[str, Any]:
        """Describe what a version changed, and how it and its neighbours would conflict if they were concurrent.

        A neighbour that is missing or damaged is left out.
        """
        versions = CommittedVersions(self._ledger.commits, root)
        version = TableVersion.parse(content, row.path)
        before, after = (self._neighbour(versions, row.version + step) for step in (-1, 1))
        found: dict[str, Any] = {}
        stable = bool(version.manifest.reader_feature_flags & Feature.STABLE_ROW_IDS)
        own = effect_of(versions.transaction(version), stable_row_ids=stable)
        if before is not None or row.version == 1:
            continues = own.operation not in (Operation.OVERWRITE, Operation.RESTORE)
            found["change"] = change(before and before[0], content, continues=continues)
        found["neighbours"] = []
        for each in (before, after):
            if each is not None:
                neighbour = each[1]
                other = effect_of(versions.transaction(neighbour), stable_row_ids=stable)
                clash = conflict(own, [other]) if each is before else conflict(other, [own])
                found["neighbours"].append(
                    {
                        "version": neighbour.manifest.version,
                        "operation": other.operation.name.lower(),
                        "if_concurrent": clash.outcome.name.lower(),
                        "rule": str(clash.rule.when) if clash.rule is not None else None,
                    }
                )
        return found

    @staticmethod
    def _neighbour(versions: CommittedVersions, number: int) -> tuple[bytes, TableVersion] | None:
        """Return the manifest file of a version, also decoded; None if it is missing or damaged."""
        with suppress(LancekeepError):
            row = versions.row(number) if number > 0 else None
            if row is not None:
                content = versions.content(row)
                return content, TableVersion.parse(content, row.path)
        return None

    def _row(self, object_id: ObjectId, root: DatasetRoot, version: int | str | None) -> VersionRow:
        if isinstance(version, str):
            tag = self._tags.get(object_id, version)
            root, version = root.branch(tag.branch), tag.version
        commits = self._ledger.commits
        row = commits.latest(root) if version is None else commits.existing(root, version)
        if row is None:
            raise VersionNotFound(f"{object_id} has no version {'' if version is None else version}".rstrip())
        return row

    def _commit_row(self, row: VersionRow) -> dict[str, Any]:
        return {"base_uri": row.base_uri, "version": row.version, "path": row.path, "size": row.size}

    def _staged(self, root: DatasetRoot) -> list[str]:
        """Return the staged manifests of a dataset."""
        listed = self._ledger.commits.retry.call(lambda: [*self._places.objects.list(root.versions_key)])
        names = (info.key.removeprefix(f"{root.key}/") for info in listed)
        parsed = ((name, ManifestName.parse(name.rpartition("/")[2])) for name in names)
        return [name for name, found in parsed if found is not None and found.is_staged]

    def _deletion_file(self, root: DatasetRoot, row: VersionRow, file: str) -> dict[str, Any]:
        found = _DELETION.fullmatch(file.removeprefix(f"{DELETIONS}/"))
        if found is None or not file.startswith(f"{DELETIONS}/"):
            raise InvalidInput(
                f"{file!r} is no file that can be described; give the path of a manifest, transaction, data file or "
                f"deletion file below the table, such as {VERSIONS}/1.manifest"
            )
        name = row.path.removeprefix(f"{root.key}/")
        kind = DeletionFileType.BITMAP if found[4] == "bin" else DeletionFileType.ARROW_ARRAY
        described, physical_rows = DeletionFile(kind, int(found[2]), int(found[3])), 0
        for fragment in TableVersion.parse(self._content(root, name), name).manifest.fragments:
            held = fragment.deletion_file
            if held is not None and fragment.id == int(found[1]) and file == _path(fragment.id, held):
                described, physical_rows = held, fragment.physical_rows
        return describe_deletion_file(self._content(root, file), described, physical_rows, file)

    def _data_file(self, root: DatasetRoot, file: str) -> dict[str, Any]:
        """Describe a data file by its footer, of which only the last bytes are read."""
        key, retry, length = self._key(root, file), self._ledger.commits.retry, _FOOTER
        while length <= _LARGEST:
            tail = retry.call(partial(self._places.objects.tail, key, length))
            if tail is None:
                raise ObjectNotFound(f"{root.base_uri} has no file {file!r}")
            found = describe_data_file(tail.content, tail.size, file)
            if not isinstance(found, TooShort):
                return found
            length = max(2 * length, found.needed)
        raise Unsupported(f"the footer of {file} has more than {_LARGEST} bytes, which are not read")

    @staticmethod
    def _key(root: DatasetRoot, file: str) -> str:
        """Return the key of a file of a dataset by its path below the root."""
        if Place.of(file) is None or any(part in ("", ".", "..") for part in file.split("/")):
            raise InvalidInput(f"{file!r} is no path of a file below the table")
        return f"{root.key}/{file}"

    def _content(self, root: DatasetRoot, file: str) -> bytes:
        """Read a file of a dataset by its path below the root."""
        key, retry = self._key(root, file), self._ledger.commits.retry
        info = retry.call(partial(self._places.objects.head, key))
        if info is None:
            raise ObjectNotFound(f"{root.base_uri} has no file {file!r}")
        if info.size > _LARGEST:
            raise Unsupported(f"{file} has {info.size} bytes; files above {_LARGEST} bytes are not read as a whole")
        return retry.call(partial(self._places.objects.get, key))


def _path(fragment: int, file: DeletionFile) -> str:
    bitmap = file.file_type is DeletionFileType.BITMAP
    return f"{DELETIONS}/{deletion_file_name(fragment, file.read_version, file.id, bitmap=bitmap)}"
