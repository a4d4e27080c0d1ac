"""Copy a catalog to another place while its writers continue (ADR 203)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from urllib.parse import unquote

import attrs

from lancekeep.application.concurrency import at_once
from lancekeep.application.entries.outside import OutsideDirectory
from lancekeep.application.retry import Retry
from lancekeep.application.rows.digests import Digests
from lancekeep.application.upkeep.backup_claim import TERM, Claim
from lancekeep.application.upkeep.backup_place import BackupPlace
from lancekeep.application.upkeep.backup_report import BackupReport
from lancekeep.domain.backup import (
    SUBSCRIBERS,
    BackedUpFile,
    BackupRecord,
    Part,
    digest_of_contents,
    newest,
)
from lancekeep.domain.dataset_files import Place
from lancekeep.domain.errors import ConcurrentModification, Damaged, NotFound, ObjectNotFound, Refused
from lancekeep.domain.layout import BRANCHES, VERSIONS
from lancekeep.domain.naming import final_path
from lancekeep.domain.table import DIGESTS_DIRECTORY, MANIFEST_DIRECTORY, RESERVED_MARKER, V1_SUFFIX
from lancekeep.format.digests import digest_of
from lancekeep.format.fence import at_other_place
from lancekeep.format.file_references import FileNames
from lancekeep.format.tags import DIRECTORY as TAGS
from lancekeep.format.tags import SUFFIX, Tag
from lancekeep.ports.object_store import ObjectInfo

Progress = Callable[[int, int, str], None]

_ROUNDS = 5
"""How often a backup begins again because tables were dropped, moved or cleaned up in between."""
_LISTINGS = 10
_BATCH = 64
_BATCH_BYTES = 1 << 28
"""A batch ends early, so that progress is reported and the claim is verified between large files."""
_ATTEMPTS = 5
"""How often the copy of a file that another process changes begins again."""


@attrs.frozen
class _Listing:
    """The files of the source at one time, by their paths below the root."""

    infos: Mapping[str, ObjectInfo]
    files: Mapping[str, BackedUpFile]

    def of(self, part: Part) -> list[str]:
        return [path for path, file in self.files.items() if file.part is part]


class Backup:
    """A copy of everything below the root of a catalog.

    Args:
        source: The root of the catalog.
        target: An empty place, or an earlier backup of the same root.
        retry: Retries requests.
        duplicate: Copies a file by the keys of both places, so that its bytes do not pass through the memory of this
            process; None if the two storages cannot.
        locations: Returns the directories of the tables that the entries in a place name.
        identity: Returns the id of the catalog in a place; None without one.
        accept_loss: Copy what is left of a backup that has lost files.
        progress: Called with the number of copied files, the number to copy, and what is done.
    """

    def __init__(
        self,
        source: OutsideDirectory,
        target: OutsideDirectory,
        retry: Retry,
        *,
        duplicate: Callable[[str, str], None] | None,
        locations: Callable[[OutsideDirectory], Collection[str]],
        identity: Callable[[OutsideDirectory], str | None],
        accept_loss: bool,
        progress: Progress,
    ) -> None:
        self._source = BackupPlace(source, retry)
        self._target = BackupPlace(target, retry)
        self._retry = retry
        self._duplicate = duplicate
        self._locations = locations
        self._identity = identity
        self._accept_loss = accept_loss
        self._claim = Claim(self._target)
        self._report_progress = progress
        self._held: dict[str, int] = {}
        self._now: dict[str, ObjectInfo] = {}
        self._copied: dict[str, int] = {}
        self._changing: set[str] = set()
        self._new: set[str] = set()
        self._first: set[str] = set()
        self._bases: set[str] = set()
        self._amended: dict[str, dict[str, bytes]] = {}

    def run(self) -> BackupReport:
        """Copy the catalog; an earlier backup in the target becomes the present one.

        Raises:
            NotFound: The source holds no table.
            Refused: The target holds something else, or was written to, or another process writes to it; the source is
                an unfinished backup; or it is not the catalog of the backup any more, or has lost what the backup
                holds.
            Damaged: The source is a backup that has lost files; or a copied file does not have the size of the
                original.
            ConcurrentModification: Another process has taken the target over, or has written to the backup that is
                restored.
        """
        own, record = self._checked()
        with self._claim.held(self._report_waiting):
            self._begin(record)
            return self._copied_by(own)

    def _report_waiting(self, holder: str) -> None:
        self._report_progress(0, 0, f"waiting up to {TERM:.0f} s for another backup ({holder})")

    def _progress(self, done: int, total: int, what: str) -> None:
        self._claim.require()
        self._report_progress(done, total, what)

    def _copied_by(self, own: BackupRecord | None) -> BackupReport:
        for _ in range(_ROUNDS):
            known = self._bases - self._first
            wanted, versions, changed = self._round()
            entered = self._entered()
            changed |= entered & self._first
            if not changed and known == self._bases - self._first:
                break
        wanted |= self._amend_digests(wanted)
        unnamed = self._unnamed(entered)
        wanted = {path for path in wanted if not path.startswith(unnamed)}
        removed = self._remove(self._held.keys() - wanted)
        sizes = self._finish(wanted, own)
        return BackupReport(
            self._source.uri,
            self._target.uri,
            len(sizes),
            sum(sizes.values()),
            len(self._copied),
            sum(self._copied.values()),
            removed,
            versions,
            tuple(sorted(changed)),
            tuple(sorted(self._changing)),
        )

    # -- the target ---------------------------------------------------------------------------------------------

    def _checked(self) -> tuple[BackupRecord | None, BackupRecord | None]:
        """Return the records of the source and the target, if the one may be copied to the other."""
        source, target = self._source.uri, self._target.uri
        own = self._source.record_to_read(self._accept_loss)
        if own is not None and not own.contents:
            raise Refused(
                f"{source} is an unfinished backup of {own.source} in {own.target}. Run that backup again first"
            )
        self._held = {path: info.size for path, info in self._target.list().items()}
        record = self._target.record()
        if record is None and self._held:
            raise Refused(
                f"{target} holds {len(self._held):,} files and is no backup, such as {min(self._held)}. Nothing was "
                "changed. Choose an empty place"
            )
        if record is not None and (record.source, record.target) != (source, target):
            raise Refused(
                f"{target} holds the backup of {record.source} in {record.target}, not of {source}. Nothing was "
                "changed. Choose an empty place"
            )
        if record is not None and record.contents not in ("", digest_of_contents(self._held)):
            raise Refused(
                f"{target} was written to since it became a backup of {source}, so it may be a catalog in use. Nothing "
                "was changed. Choose an empty place"
            )
        listing = self._listed(f"listing {source}")
        sizes = {path: info.size for path, info in listing.infos.items()}
        is_backup = own is not None and self._source.is_backup(own, sizes, self._accept_loss)
        if not any(file.version is not None for file in listing.files.values()):
            raise NotFound(f"{source} holds no table with a version. Check the root.")
        self._first = {file.root for file in listing.files.values() if file.version is not None}
        if self._held:
            self._require_same_catalog()
        if record is not None and not record.contents and is_backup:
            self._require_unwritten(listing)
        return own, record

    def _begin(self, record: BackupRecord | None) -> None:
        """Record that the target is an unfinished backup.

        Raises:
            Refused: Another process has written to it since it was checked.
        """
        if self._target.record() != record:
            raise Refused(
                f"another process has written a backup to {self._target.uri} in the meantime. This one changed "
                "nothing. Run the command again, if the other one was not the same"
            )
        self._held = {path: info.size for path, info in self._target.list().items()}
        self._target.begin(self._source.uri)
        self._target.remove_unfinished()  # of a backup that was stopped

    def _require_same_catalog(self) -> None:
        """Refuse a source that was lost, so that it does not replace its backup, which may be the only copy.

        Raises:
            Refused: Another catalog is at its root, or the files of its entries, or of a table with an entry, are lost.
        """
        source, target = self._source.uri, self._target.uri
        advice = f"Nothing was changed. Restore {target}, or choose an empty place"
        held = self._identity(self._target.directory)
        if held is not None and held != (found := self._identity(self._source.directory)):
            raise Refused(
                f"the catalog at {source} has the id {found}, and {target} is the backup of the catalog {held} that "
                f"was there. {advice}"
            )
        gone = newest(map(BackedUpFile.of, self._held)).keys() - self._first
        if MANIFEST_DIRECTORY in gone:
            raise Refused(f"{source} has no entries of tables any more, and {target} has. {advice}")
        has_entries = MANIFEST_DIRECTORY in self._first
        named = gone.intersection(self._locations(self._source.directory)) if has_entries else set()
        if lost := sorted(filter(self._is_lost, named)):
            raise Refused(
                f"{source} has lost every version of {len(lost):,} tables that it still names, such as {lost[0]}, and "
                f"{target} has them. {advice}. If the tables are not needed, drop them"
            )

    def _is_lost(self, location: str) -> bool:
        """Return whether a table with an entry has no version, and is not declared again under its former name."""
        files = map(BackedUpFile.of, self._source.list(f"{location}/"))
        return not any(file.version is not None or file.path == f"{location}/{RESERVED_MARKER}" for file in files)

    def _require_unwritten(self, listing: _Listing) -> None:
        """Refuse a stopped restore into which someone has committed since.

        Raises:
            Refused: The target has versions that the backup lacks.
        """
        lacking = self._held.keys() - listing.infos.keys()
        later = sorted(path for path in lacking if BackedUpFile.of(path).version is not None)
        if later:
            raise Refused(
                f"{self._target.uri} holds {len(later):,} versions that the backup {self._source.uri} lacks, such as "
                f"{later[0]}, so it may be a catalog in use. Nothing was changed. Choose an empty place"
            )

    def _finish(self, wanted: set[str], own: BackupRecord | None) -> dict[str, int]:
        """Check the sizes of the copies, and record that the backup is complete."""
        sizes = {path: info.size for path, info in self._target.list().items()}
        for path in wanted:
            if sizes.get(path) != self._held[path]:
                raise Damaged(
                    f"{self._target.uri}/{path} has {sizes.get(path, 'no')} bytes; {self._held[path]} were copied. "
                    "Another process may write to the same place. Run the backup again"
                )
        if self._source.record_to_read(self._accept_loss) != own:
            raise ConcurrentModification(
                f"{self._source.uri} was the target of a backup while it was copied. Run the command again when that "
                "backup is complete"
            )
        self._claim.require()
        self._target.complete(self._source.uri, sizes)
        return sizes

    def _remove(self, stale: set[str]) -> int:
        """Remove what the source has no longer, manifests before the files that they name."""
        files = sorted(map(BackedUpFile.of, stale), key=lambda file: (file.part is Part.NAMED, file.path))
        for number, file in enumerate(files):
            if number % _BATCH == 0:
                self._progress(number, len(files), "removing files")
            self._target.delete(file.path)
        for directory in {file.path.partition("/")[0] for file in files}:
            self._target.directory.objects.prune(self._target.key(directory))
        return len(files)

    # -- one attempt --------------------------------------------------------------------------------------------

    def _round(self) -> tuple[set[str], int, set[str]]:
        """Copy the catalog in the order of `lancekeep.domain.backup`.

        Returns:
            The paths that belong to the backup, the number of versions, and the directories of tables that changed
            otherwise than by commits.
        """
        wanted = set[str]()
        wanted |= self._copy_all(partial(self._source.list, SUBSCRIBERS), "copying positions of subscribers")
        records = self._copy_all(lambda: self._look(Part.RECORD_OF_VERSIONS), "copying tags and records")
        before = self._listed("listing versions")
        entries = _decided(self._source.list(f"{MANIFEST_DIRECTORY}/{VERSIONS}/"), before)
        listing = self._listed("listing versions")
        wanted |= {path for path in records if path in listing.files or not BackedUpFile.of(path).is_mark}
        manifests = _decided({path: listing.infos[path] for path in listing.of(Part.MANIFEST)}, before)
        created = self._created_branches(listing, records)
        manifests = {path: info for path, info in manifests.items() if listing.files[path].root not in created}
        roots = {listing.files[path].root for path in manifests} | {MANIFEST_DIRECTORY}
        named = self._named(roots)
        self._copy(named, "copying files")
        latest = newest(map(BackedUpFile.of, [*manifests, *entries]))
        torn = self._copy_records(wanted, latest)
        kept = self._copy_manifests(manifests) | self._copy_manifests(entries)
        late = self._named(roots)
        wanted |= kept | self._copy(late, "copying files")
        wanted |= named.keys() & self._held.keys()
        wanted -= self._later_entries(wanted, kept & entries.keys())
        gone = {file.root for file in latest.values() if file.path not in kept}
        self._new = roots - {file.root for file in before.files.values()}
        moved = {file.root for file in before.files.values() if file.version is not None} - roots
        versions = sum(BackedUpFile.of(path).version is not None for path in kept & manifests.keys())
        return wanted, versions, gone | moved | torn | self._moved_tags(wanted, kept)

    def _created_branches(self, listing: _Listing, records: set[str]) -> set[str]:
        """Return the directories of branches that were created since the records were copied."""
        files = {file.root: file.branch_file for file in listing.files.values() if file.part is Part.MANIFEST}
        return {root for root, file in files.items() if file in listing.files and file not in records}

    def _copy_manifests(self, manifests: Mapping[str, ObjectInfo]) -> set[str]:
        """Copy manifests; of a staged one that has become a version since, the version."""
        kept = self._copy(manifests, "copying manifests", act=self._place_manifest)
        published = {}
        for path in manifests.keys() - kept:
            final = final_path(path)
            info = None if final == path else self._source.head(final)
            if info is not None:
                published[final] = info
        return kept | self._copy(published, "copying manifests", act=self._place_manifest)

    def _copy_records(self, wanted: set[str], latest: Mapping[str, BackedUpFile]) -> set[str]:
        """Copy the records that are made before commits, except of versions that the backup lacks.

        Returns:
            The directories of tables of which a record covers both copied versions and later ones.
        """

        def is_later(path: str) -> bool:
            file = BackedUpFile.of(path)
            return file.ingested is not None and (
                file.root not in latest or file.ingested[0] > (latest[file.root].version or 0)
            )

        torn = set[str]()

        def look() -> dict[str, ObjectInfo]:
            found = self._look(Part.BEFORE_COMMIT)
            later = [path for path in found if is_later(path)]
            merged = (file for file in map(BackedUpFile.of, later) if file.ingested is not None and file.ingested[1])
            torn.update(file.root for file in merged)
            return {path: info for path, info in found.items() if path not in later}

        wanted |= self._copy_all(look, "copying records of requests")
        return torn

    def _entered(self) -> set[str]:
        """Return the directories of tables that the entries of the source name by now, and the copied ones do not."""
        if not any(BackedUpFile.of(path).part is Part.ENTRIES for path in self._now):
            return set()  # the entries are in a database, or are the directories
        return set(self._locations(self._source.directory)).difference(self._locations(self._target.directory))

    def _unnamed(self, entered: set[str]) -> tuple[str, ...]:
        """Return the directories of tables that were created in the meantime, and that the copied entries lack.

        A table that was there when the backup began, and was registered since, stays. The name of a directory that is a
        table without an entry ends in ``.lance``.
        """
        if not any(BackedUpFile.of(path).part is Part.ENTRIES for path in self._now):
            return ()
        named = tuple(f"{location}/" for location in self._locations(self._target.directory))
        new = {root for root in self._new if not root.partition("/")[0].endswith(V1_SUFFIX)}
        since = {f"{root}/" for root in (entered | new) - self._first}
        return tuple(each for each in since if not each.startswith(named))

    def _later_entries(self, wanted: set[str], entries: set[str]) -> set[str]:
        """Return the files of the manifest table that only later versions of it need."""
        names = FileNames()
        for path in sorted(entries):
            with suppress(Damaged):  # as in the source
                names.add(self._target.get(path) or b"", path)
        prefix = f"{MANIFEST_DIRECTORY}/"
        found = {path: Place.of(path.removeprefix(prefix)) for path in wanted if path.startswith(prefix)}
        own = {path: place.own_name for path, place in found.items() if place is not None}
        return {path for path, name in own.items() if name is not None and name not in names.names}

    def _moved_tags(self, wanted: set[str], kept: set[str]) -> set[str]:
        """Return the directories of tables of which a tag was moved, and the version that it named was cleaned up."""
        versions = {(file.root, file.version) for file in map(BackedUpFile.of, kept)}
        moved = set()
        for path in wanted:
            root, directory, name = path.rpartition(f"/{TAGS}")
            if not directory or not name.endswith(SUFFIX):
                continue
            content = self._target.get(path) or b""
            with suppress(Damaged):  # as in the source
                tag = Tag.parse(content, path)
                history = root if tag.branch is None else f"{root}/{BRANCHES}/{tag.branch}"
                if (history, tag.version) not in versions and content != self._source.get(path):
                    moved.add(root)
        return moved

    def _named(self, roots: set[str]) -> dict[str, ObjectInfo]:
        """Return the files that manifests of tables may name, also those in other directories below the root.

        An attempt learns of such a directory when it copies a manifest, which is too late for a clean-up in between: so
        another attempt follows.
        """
        listing = self._listed("listing files")
        bases = tuple(f"{base}/" for base in self._bases - roots)

        def is_wanted(file: BackedUpFile) -> bool:
            if file.path.startswith(bases) and file.is_content:
                return True
            return file.is_named and file.root in roots

        return {path: listing.infos[path] for path, file in listing.files.items() if is_wanted(file)}

    # -- copying ------------------------------------------------------------------------------------------------

    def _copy_all(self, look: Callable[[], Mapping[str, ObjectInfo]], what: str) -> set[str]:
        """Copy files of which each may replace others, so that none is missing."""
        for _ in range(_LISTINGS):
            infos = look()
            copied = self._copy(infos, what)
            if copied >= infos.keys() - self._changing:
                break
        return copied

    def _copy(
        self,
        infos: Mapping[str, ObjectInfo],
        what: str,
        *,
        act: Callable[[str], int | None] | None = None,
    ) -> set[str]:
        """Copy files, several at once, and return the paths of those that still exist.

        A file that never changes is not copied if the target has it.
        """
        present = {
            path
            for path, info in infos.items()
            if (act is None and self._now.get(path) == info)
            or (self._held.get(path) == info.size and BackedUpFile.of(path).part is Part.NAMED)
        }
        remaining = [path for path in infos if path not in present and path not in self._changing]
        done, total = 0, len(remaining)
        for batch in _batches({path: infos[path].size for path in remaining}):
            self._progress(done, total, what)
            sizes = at_once(act or self._copy_one, batch)
            for path, size in zip(batch, sizes, strict=True):
                if size is not None:
                    present.add(path)
                    self._held[path] = self._copied[path] = size
                    self._now[path] = infos[path]
            done += len(batch)
        return present

    def _copy_one(self, path: str) -> int | None:
        """Copy one file, and return its size; None if it does not exist any more."""
        if self._duplicate is None:
            return self._copy_in_pieces(path)
        try:
            self._retry.call(partial(self._duplicate, self._source.key(path), self._target.key(path)))
        except ObjectNotFound:
            return None
        info = self._target.head(path)
        return 0 if info is None else info.size

    def _copy_in_pieces(self, path: str) -> int | None:
        """Copy one file between two object stores.

        A large file that a process keeps changing is left out. No version names it: it is a log or a database.

        Raises:
            ConcurrentModification: A file that versions may name keeps changing.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._source.copy_in_pieces(path, self._target)
            except ConcurrentModification:
                if attempt == _ATTEMPTS - 1 and BackedUpFile.of(path).is_named:
                    raise
        self._changing.add(path)
        return None

    def _place_manifest(self, path: str) -> int | None:
        """Copy a manifest, which names directories below the target in place of those below the source.

        Branches and shallow clones name other directories by absolute paths.
        """
        content = self._source.get(path)
        if content is None:
            return None
        placed = content
        with suppress(Damaged):  # as in the source
            placed = at_other_place(content, path, self._moved, lift=False)
        if placed != content:
            history, _, name = path.rpartition(f"/{VERSIONS}/")
            self._amended.setdefault(history, {})[f"{VERSIONS}/{name}"] = placed
        self._target.put(path, placed)
        return len(placed)

    def _moved(self, base: str) -> str:
        """Return the new spelling of a base path, and remember the directory if it is below the root."""
        source = self._source.directory
        spellings = [source.uri, f"{source.objects.root_uri}{source.key}", f"/{source.key}"]
        for spelled in spellings:
            if f"{base}/".startswith(f"{spelled}/"):
                rest = base[len(spelled) :]
                self._bases |= {rest.strip("/"), unquote(rest).strip("/")} - {""}
                return self._target.uri + rest
        return base

    def _amend_digests(self, wanted: set[str]) -> set[str]:
        """Record the digests of manifests that differ from the source, and return the paths of the records."""
        digests, added = Digests(self._target.directory.objects, self._retry), set()
        for history, contents in self._amended.items():
            if any(path.startswith(f"{history}/{DIGESTS_DIRECTORY}/") for path in wanted):
                pairs = [(name, digest_of(content)) for name, content in contents.items()]
                key = digests.add(self._target.key(history), pairs)
                path = f"{history}/{DIGESTS_DIRECTORY}/{key.rpartition('/')[2]}"
                info = self._target.head(path)
                added.add(path)
                self._held[path] = 0 if info is None else info.size
        return added

    # -- listing ------------------------------------------------------------------------------------------------

    def _look(self, part: Part) -> dict[str, ObjectInfo]:
        listing = self._listed("listing records")
        return {path: listing.infos[path] for path in listing.of(part)}

    def _listed(self, what: str) -> _Listing:
        self._progress(0, 0, what)
        infos = self._source.list()
        return _Listing(infos, {path: BackedUpFile.of(path) for path in infos})


def _decided(infos: Mapping[str, ObjectInfo], before: _Listing) -> dict[str, ObjectInfo]:
    """Leave out staged manifests of commits in progress, and of versions that are published.

    A staged manifest that was listed before may be the only copy of a version that a crashed writer has decided.
    """

    def may_be_only_copy(path: str) -> bool:
        return path in before.files and final_path(path) not in infos

    return {path: info for path, info in infos.items() if not BackedUpFile.of(path).is_staged or may_be_only_copy(path)}


def _batches(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield paths, several at a time, whose files have a limited number of bytes together."""
    batch: list[str] = []
    held = 0
    for path, size in sizes.items():
        if batch and (len(batch) == _BATCH or held + size > _BATCH_BYTES):
            yield batch
            batch, held = [], 0
        batch.append(path)
        held += size
    if batch:
        yield batch
