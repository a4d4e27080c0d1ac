"""Record the digests of the files of tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from time import monotonic

import attrs

from lancekeep.adapters.lance.hashing import file_digest
from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.places import Places
from lancekeep.application.rows.digests import Digests
from lancekeep.application.upkeep.examination import Kept, Unreadable, examine, kept_versions
from lancekeep.application.upkeep.file_checks import FileChecks
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.application.upkeep.named_files import NamedFile, named_files
from lancekeep.domain.digests import FileDigest
from lancekeep.domain.errors import Damaged
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.entrypoints.isolation import Crashed, Isolation
from lancekeep.ports.object_store import ObjectInfo


@attrs.frozen
class HashedFile:
    """A file to read whole, without a catalog; can be pickled.

    Attributes:
        name: Its name for messages: the path below the table, or a URI.
        directory: The URI of the directory from which it is opened.
        path: Its path below ``directory``.
        size: Its size in bytes.
        expected: The digests that it may have.
        storage_options: The options that open it.
    """

    name: str
    directory: str
    path: str
    size: int
    expected: tuple[FileDigest, ...]
    storage_options: tuple[tuple[str, str], ...] = attrs.field(repr=False)


@attrs.frozen
class Recording:
    """The result of `digest`.

    Attributes:
        tables: The number of tables.
        files: The files of their versions.
        recorded: The files whose digests were added.
        bytes: The size of these.
        seconds: The duration.
    """

    tables: int
    files: int
    recorded: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        size = f"{self.bytes / 1e6:,.1f} MB in {self.seconds:.1f} s"
        return f"{self.tables:,} tables, {self.files:,} files: {self.recorded:,} digests added, {size}"


def _quiet(done: int, total: int, name: str) -> None:
    """Ignore progress."""


def digest(
    catalog: Catalog,
    tables: Iterable[Identifier] | None = None,
    *,
    threads: int | None = None,
    progress: Progress = _quiet,
) -> Recording:
    """Record the size and the BLAKE2b digest of every file that a reader needs.

    These are the data, deletion, index, manifest and transaction files of the versions that `verify` checks. The
    records lie in ``.lancekeep-digests`` in the directory of each table and branch. Files with a recorded digest are
    not read again. Verify the tables before: the digests describe the files as they are now.

    Args:
        catalog: The catalog.
        tables: The tables; by default all of the catalog.
        threads: The number of files to read at a time; by default one for each CPU.
        progress: Called with the number of files that were read.

    Raises:
        TableNotFound: One of ``tables`` does not exist.
        Damaged: A manifest, a record of digests or a file cannot be read.
    """
    began = monotonic()
    own = directory_of(catalog, "digest")
    commits = own.commits
    chosen = list(map(ObjectId.of, tables)) if tables is not None else list(catalog.list_all_tables())
    records, files, recorded, size = Digests(commits.objects, commits.retry), 0, 0, 0
    own.recorder.flush()
    with Isolation(content_digest, threads or os.cpu_count() or 1) as child:
        for table in chosen:
            root = own.places.dataset_root(catalog.find_table(table))
            kept = list(_readable(commits, table, root))
            before = {each.version.root.key: records.keys(each.version.root.key) for each in kept}
            listed = commits.retry.call(partial(_listed, commits, root))
            every = list(named_files(FileChecks(own.removal.clones), root, kept, listed))
            known = {history: records.recorded(history) for history in {file.history for file in every}}
            fresh = [file for file in every if file.name not in known[file.history]]
            found: dict[str, list[tuple[str, FileDigest]]] = {}
            tasks = [hashed_file(own.places, root, file, ()) for file in fresh]
            for at, (file, value) in enumerate(zip(fresh, child.run(tasks), strict=True)):
                progress(at, len(fresh), f"digest: {table}")
                if isinstance(value, Crashed):
                    raise Damaged(f"{table}: {file.key} cannot be read: {value.reason}")
                found.setdefault(file.history, []).append((file.name, FileDigest(file.size, value)))
            for history, keys in before.items():
                if history in found or len(keys) > 1:
                    present = {info.key.removeprefix(f"{history}/") for info in listed}
                    records.merge(history, found.get(history, ()), present, keys)
            files, recorded, size = files + len(every), recorded + len(fresh), size + sum(file.size for file in fresh)
    return Recording(len(chosen), files, recorded, size, monotonic() - began)


def _readable(commits: TableCommits, table: ObjectId, root: DatasetRoot) -> Iterator[Kept]:
    for kept in kept_versions(commits, root):
        if isinstance(kept, Unreadable):
            raise Damaged(f"{table}: {kept.object}: {kept.reason}. Repair the table before you record digests")
        examine(commits, kept.version)
        yield kept


def _listed(commits: TableCommits, root: DatasetRoot) -> list[ObjectInfo]:
    return list(commits.objects.list(f"{root.key}/"))


def hashed_file(places: Places, root: DatasetRoot, file: NamedFile, expected: tuple[FileDigest, ...]) -> HashedFile:
    """Return a file as a task that has no catalog reads it."""
    options = tuple(places.storage_options.items())
    if "://" in file.key:
        directory, _, path = file.key.rpartition("/")
        return HashedFile(file.key, directory, path, file.size, expected, options)
    path = file.key.removeprefix(f"{root.key}/")
    return HashedFile(path, places.uri_at(root), path, file.size, expected, options)


# -- in the tasks ---------------------------------------------------------------------------------------------------


def content_digest(file: HashedFile) -> str:
    """Return the digest of a file, in hexadecimal digits."""
    return file_digest(file.directory, file.path, file.size, dict(file.storage_options))


def difference(file: HashedFile) -> str:
    """Return how a file differs from its recorded digest; empty if it does not."""
    try:
        same = any(_is_same(file, expected) for expected in file.expected)
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())
    return "" if same else "its content differs from the recorded digest"


def _is_same(file: HashedFile, expected: FileDigest) -> bool:
    found = file_digest(file.directory, file.path, file.size, dict(file.storage_options), start=expected.start)
    return found == expected.blake2b
