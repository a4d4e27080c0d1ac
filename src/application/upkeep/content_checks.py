"""The checks of the contents of versions: manifests and the files they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial

import attrs

from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.clones import Clones
from lancekeep.application.rows.digests import Digests
from lancekeep.application.upkeep.checked_history import History, Repair, kept
from lancekeep.application.upkeep.examination import contradiction, examine
from lancekeep.application.upkeep.file_checks import FileChecks, FileFault, Version
from lancekeep.application.upkeep.fsck import Finding, Kind
from lancekeep.domain.dataset_files import Reference
from lancekeep.domain.errors import Damaged, ObjectNotFound, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.ports.object_store import ObjectInfo

_OLDER = 10
"""The most older versions that are checked to find a complete one."""


@attrs.frozen
class ContentChecks:
    """Checks the versions of tables to which a reader has a reference.

    Attributes:
        restore: As in `TableChecks`.
        accept_loss: As in `TableChecks`.
    """

    commits: TableCommits
    clones: Clones
    restore: Callable[[ObjectId, int], object]
    accept_loss: bool

    def given_up(self, kind: Kind, history: History, what: str, act: Repair) -> tuple[Finding, Repair]:
        """Return the finding on a latest version that only a backup can restore."""
        older = max((version for version in history.finals if version < history.latest), default=None)
        if older is None:
            way = "forget the missing versions"
            then = (
                "Then write(…, mode='overwrite') makes a new first version; `lancekeep drop` removes the table instead"
            )
        else:
            way, then = f"go back to version {older}", f"That gives up the commit of version {history.latest}"
        meaning = (
            f"{what}. Put the manifest back from a backup. Without one, `lancekeep repair --deep --accept-loss` "
            f"(fsck(repair=True, accept_loss=True)) would {way}. {then}"
        )
        return Finding(kind, history.title, meaning, way if self.accept_loss else ""), act

    def of_head(self, history: History) -> Iterator[tuple[Finding, Repair | None]]:
        latest = max(history.finals)
        info = history.finals[latest]
        version = Version(history.root, latest, info.key)
        try:
            yield from self._of_witnesses(history.title, version)
        except Damaged as error:
            what = f"the latest manifest cannot be read ({info.size} bytes): {error}"
            yield self.given_up(Kind.HEAD, history, what, partial(self._remove_damaged, history.root, info, latest))
        except Unsupported as error:
            yield Finding(Kind.HEAD, history.title, f"the latest manifest cannot be checked: {error}"), None

    def _of_witnesses(self, title: str, version: Version) -> Iterator[tuple[Finding, None]]:
        """Examine a version, and yield a finding if it contradicts other files.

        Raises:
            Damaged, Unsupported: As `examine`.
        """
        with suppress(ObjectNotFound):  # the table is being dropped
            if found := contradiction(self.commits, version, examine(self.commits, version)):
                meaning = (
                    f"{version.title} does not agree with the version before it or with its transaction file, so one "
                    f"of them is damaged: {found}. Compare them with a backup"
                )
                yield Finding(Kind.DAMAGED_FILE, title, meaning), None

    def _exists(self, version: Version) -> bool:
        """Examine a version; return False if it does not exist.

        Raises:
            Damaged, Unsupported: As `examine`.
        """
        try:
            examine(self.commits, version)
        except ObjectNotFound:  # the table is being dropped
            return False
        return True

    def _of_manifests(
        self, histories: Mapping[str, History], versions: Iterable[Version]
    ) -> Iterator[tuple[Finding, Repair | None]]:
        """Yield manifests that cannot be read, other than the latest manifests."""
        heads = {history.finals[max(history.finals)].key for history in histories.values() if history.finals}
        titles = {history.root: history.title for history in histories.values()}
        for version in versions:
            if version.key in heads:
                continue
            try:
                yield from self._of_witnesses(titles[version.root], version)
            except (Damaged, Unsupported) as error:
                meaning = (
                    f"{version.title} cannot be read: {error}. Put its manifest back from a backup, or delete "
                    f"{'the manifest' if version.is_detached else 'the tag or branch that holds it'}"
                )
                yield Finding(Kind.DAMAGED_FILE, titles[version.root], meaning), None

    # -- files --------------------------------------------------------------------------------------------------

    def of_files(
        self,
        name: ObjectId,
        root: DatasetRoot,
        histories: Mapping[str, History],
        held: set[Reference],
        tell: Callable[[int], object],
    ) -> Iterator[tuple[Finding, Repair | None]]:
        """Yield findings on missing or damaged files of latest and tagged versions."""
        versions = list(kept(histories, held))
        yield from self._of_manifests(histories, versions)
        checks = FileChecks(self.clones)
        found: dict[tuple[Version, bool], list[FileFault]] = {}
        for fault in checks.faults(root, versions, tell):
            found.setdefault((fault.version, fault.missing), []).append(fault)
        titles = {history.root: history for history in histories.values()}
        for (version, missing), faults in found.items():
            history = titles[version.root]
            what = (
                f"{version.title} cannot be read completely: {faults[0].key!r} {faults[0].reason}"
                + (f", and so do {len(faults) - 1} other files" if len(faults) > 1 else "")
                + ". Put the files back from a backup"
            )
            kind = Kind.MISSING_FILE if missing else Kind.DAMAGED_FILE
            if version.number != max(history.finals, default=None):
                holder = "its manifest" if version.is_detached else "the tag or branch that holds it"
                yield Finding(kind, history.title, f"{what}, or delete {holder}"), None
                continue
            older = self._whole(checks, root, history)
            if older is None:
                yield Finding(kind, history.title, f"{what}; none of the last versions is whole"), None
            elif version.root != root:
                yield Finding(kind, history.title, f"{what}, or restore version {older} of the branch"), None
            else:
                way = f"restore version {older}"
                meaning = (
                    f"{what}. Without one, `lancekeep repair --deep --accept-loss` (fsck(repair=True, "
                    f"accept_loss=True)) would {way} as a new version. That gives up all later commits"
                )
                yield (
                    Finding(kind, history.title, meaning, way if self.accept_loss else ""),
                    partial(self._restore, name, version, older),
                )

    def _whole(self, checks: FileChecks, root: DatasetRoot, history: History) -> int | None:
        """Return the latest complete version among a few older ones; None without one."""
        for number in sorted(history.finals, reverse=True)[1 : 1 + _OLDER]:
            version = Version(history.root, number, history.finals[number].key)
            if self._is_readable(version) and next(checks.faults(root, [version]), None) is None:
                return number
        return None

    def _is_readable(self, version: Version) -> bool:
        try:
            return self._exists(version)
        except (Damaged, Unsupported):
            return False

    def _restore(self, name: ObjectId, damaged: Version, older: int) -> bool:
        """Restore an older version, unless a later one was committed since the check."""
        latest = self.commits.latest(damaged.root)
        if latest is None or latest.version != damaged.number:
            return False
        self.restore(name, older)
        return True

    def _remove_damaged(self, root: DatasetRoot, info: ObjectInfo, version: int) -> bool:
        """Remove an unreadable latest version, row first. A restored manifest stays."""
        if self._is_readable(Version(root, version, info.key)) or self.commits.objects.head(info.key) is None:
            return False
        self.commits.rows.delete(root.base_uri, [version])
        Digests(self.commits.objects, self.commits.retry).fold(root.key, [info.key.removeprefix(f"{root.key}/")])
        self.commits.objects.delete(info.key)
        self.commits.forget()
        return True
