"""Which bytes of a table are there for what, and what frees them.

A file is needed by the versions whose manifests hold its random name: the rule by which the clean-up decides. Memory
holds a record of each file of one table, and one manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import attrs

from lancekeep.application.entries.places import Places
from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.fsck import Progress
from lancekeep.domain.dataset_files import Place, Reference
from lancekeep.domain.errors import ObjectNotFound
from lancekeep.domain.layout import VERSIONS
from lancekeep.domain.naming import ManifestName
from lancekeep.format.file_references import names_in
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

LATEST, TAG, BRANCH, CLONE = "latest version", "tag", "branch", "clone"
PUBLISHED, PROTECTION = "published version", "protection"
OLD, UNFINISHED, SEVERAL = "old versions", "unfinished commits", "several of these"
DETACHED, ORPHANS, OTHER = "detached versions", "orphans", "other files"


@attrs.frozen
class Holder:
    """What needs files.

    Attributes:
        kind: One of the constants of this module.
        name: The tag, the branch or the clone; the number of the latest version; the table or namespace that is
            protected.
    """

    kind: str
    name: str = ""


@attrs.define
class Share:
    """Files and their bytes."""

    bytes: int = 0
    files: int = 0

    def add(self, size: int, files: int = 1) -> None:
        self.bytes += size
        self.files += files


@attrs.frozen
class VersionCost:
    """The bytes of one version of the main history or a branch.

    Attributes:
        branch: The branch; empty for the main history.
        version: The version.
        needed: What the version needs, with its manifest.
        own: What no other version of the table needs.
        holders: Why the version stays; empty if the clean-up may remove it.
    """

    branch: str
    version: int
    needed: Share
    own: Share
    holders: tuple[Holder, ...]


@attrs.frozen
class TableCosts:
    """The bytes of one table.

    Attributes:
        shares: What each holder alone keeps. Together they are all bytes in the directory of the table.
        versions: The versions, oldest first, if they were asked for.
    """

    shares: Mapping[Holder, Share]
    versions: Sequence[VersionCost] = ()

    @property
    def bytes(self) -> int:
        return sum(share.bytes for share in self.shares.values())


@attrs.define(slots=True)
class _File:
    """The files of one random name: one file, or the directory of an index."""

    share: Share = attrs.field(factory=Share)
    holders: int = 0
    versions: int = 0
    version: int = 0


@attrs.frozen
class Costs:
    """Reads the costs of tables."""

    objects: ObjectStore
    places: Places
    retry: Retry
    progress: Progress

    def of(
        self,
        location: str,
        references: Mapping[Holder, Reference],
        clones: Iterable[tuple[str, str]] = (),
        *,
        protection: Holder | None = None,
        versions: bool = False,
    ) -> TableCosts:
        """Return the costs of a table.

        Args:
            location: Its directory, relative to the root.
            references: The versions that tags, branches and the catalog name, by holder.
            clones: The tables that read its files, each with its directory.
            protection: What protects the table. Then the clean-up keeps all versions before the last reference.
            versions: Also return the costs of each version, which reads each manifest twice.

        Raises:
            Damaged: A manifest cannot be read.
        """
        counting = _Counting(self, f"{self.places.prefix}{location}/", references, protection)
        return counting.run(clones, versions=versions)

    def size(self, location: str) -> Share:
        """Return the files below a directory, relative to the root."""
        share = Share()
        for info in self.listed(f"{self.places.prefix}{location}/"):
            share.add(info.size)
        return share

    def listed(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self.retry.call(lambda: list(self.objects.list(prefix))))

    def names(self, key: str) -> set[bytes]:
        """Return the names of the files that a manifest needs.

        It needs none if it was removed since it was listed.
        """
        with suppress(ObjectNotFound):
            return names_in(self.retry.call(partial(self.objects.get, key)), key)
        return set()


@attrs.define
class _Counting:
    costs: Costs
    prefix: str
    references: Mapping[Holder, Reference]
    protection: Holder | None
    _files: dict[bytes, _File] = attrs.field(factory=dict)
    _bits: dict[Holder, int] = attrs.field(factory=dict)
    _manifests: dict[Reference, list[ObjectInfo]] = attrs.field(factory=dict)
    _unfinished: list[ObjectInfo] = attrs.field(factory=list)
    _detached: list[ObjectInfo] = attrs.field(factory=list)
    _other: Share = attrs.field(factory=Share)

    def run(self, clones: Iterable[tuple[str, str]], *, versions: bool) -> TableCosts:
        for info in self.costs.listed(self.prefix):
            self._sort(info)
        held = self._held()
        references = sorted(self._manifests, key=lambda each: (each.branch, each.version))
        for at, reference in enumerate(references):
            self.costs.progress(at, len(references), f"version {reference.version}")
            bits = sum(map(self._bit, held.get(reference, [Holder(OLD)])))
            for info in self._manifests[reference]:
                self._need({info.key.encode(), *self.costs.names(info.key)}, bits, at + 1)
        for kind, infos in ((UNFINISHED, self._unfinished), (DETACHED, self._detached)):
            for info in infos:
                self._need({info.key.encode(), *self.costs.names(info.key)}, self._bit(Holder(kind)))
        for name, location in clones:
            self._need_of_clone(Holder(CLONE, name), location)
        detailed = references if versions else ()
        return TableCosts(self._shares(), [self._version(at + 1, each, held) for at, each in enumerate(detailed)])

    def _sort(self, info: ObjectInfo) -> None:
        """Assign an object of the table to its kind."""
        place = Place.of(info.key[len(self.prefix) :])
        if place is None:
            self._other.add(info.size)
            return
        name = place.own_name
        if place.directory == VERSIONS and not place.is_unfinished and ".manifest" in place.rest:
            parsed, name = ManifestName.parse(place.rest), info.key.encode()
            if parsed is None or (parsed.is_staged and not parsed.is_generated):  # the clean-up keeps them
                self._detached.append(info)
            elif parsed.is_staged:
                self._unfinished.append(info)
            else:
                self._manifests.setdefault(Reference(place.branch, parsed.version), []).append(info)
        if name is None:
            self._other.add(info.size)
        else:
            self._files.setdefault(name, _File()).share.add(info.size)

    def _held(self) -> dict[Reference, list[Holder]]:
        """Return why versions stay."""
        held: dict[Reference, list[Holder]] = {}
        latest: dict[str, int] = {}
        for reference in self._manifests:
            latest[reference.branch] = max(reference.version, latest.get(reference.branch, 0))
        for branch, version in latest.items():
            holder = Holder(BRANCH, branch) if branch else Holder(LATEST, str(version))
            held.setdefault(Reference(branch, version), []).append(holder)
        for holder, reference in self.references.items():
            held.setdefault(reference, []).append(holder)
        return held if self.protection is None else self._protected(self.protection) | held

    def _protected(self, protection: Holder) -> dict[Reference, list[Holder]]:
        """Return the versions before the last reference to each history."""
        last: dict[str, int] = {}
        for reference in self.references.values():
            last[reference.branch] = max(reference.version, last.get(reference.branch, 0))
        return {each: [protection] for each in self._manifests if each.version < last.get(each.branch, 0)}

    def _need_of_clone(self, holder: Holder, location: str) -> None:
        prefix = f"{self.costs.places.prefix}{location}/"
        for info in self.costs.listed(prefix):
            place = Place.of(info.key[len(prefix) :])
            if place is not None and place.directory == VERSIONS and ".manifest" in place.rest:
                self.costs.progress(0, 1, f"clone {holder.name}")
                self._need(self.costs.names(info.key), self._bit(holder))

    def _need(self, names: set[bytes], bits: int, version: int = 0) -> None:
        for name in names:
            file = self._files.get(name)
            if file is not None:
                file.holders |= bits
                if version and file.version != version:
                    file.versions, file.version = file.versions + 1, version

    def _bit(self, holder: Holder) -> int:
        return 1 << self._bits.setdefault(holder, len(self._bits))

    def _shares(self) -> dict[Holder, Share]:
        """Give each file to the one holder that keeps it."""
        shares: dict[Holder, Share] = {}
        keepers: dict[int, Holder] = {}
        for file in self._files.values():
            if file.holders not in keepers:
                keepers[file.holders] = self._keeper(file.holders)
            shares.setdefault(keepers[file.holders], Share()).add(file.share.bytes, file.share.files)
        if self._other.files:
            shares[Holder(OTHER)] = self._other
        return shares

    def _keeper(self, bits: int) -> Holder:
        holders = [holder for holder, at in self._bits.items() if bits >> at & 1]
        if latest := [holder for holder in holders if holder.kind == LATEST]:
            return latest[0]
        keeping = [holder for holder in holders if holder.kind not in (OLD, UNFINISHED)]
        if len(keeping) > 1:
            return Holder(SEVERAL)
        return (keeping or holders or [Holder(ORPHANS)])[0]

    def _version(self, at: int, reference: Reference, held: Mapping[Reference, Sequence[Holder]]) -> VersionCost:
        """Read the manifest of a version again, rather than keep the names of all versions."""
        needed, own = Share(), Share()
        for info in self._manifests[reference]:
            for name in {info.key.encode(), *self.costs.names(info.key)} & self._files.keys():
                file = self._files[name]
                needed.add(file.share.bytes, file.share.files)
                if file.versions == 1 and file.version == at:
                    own.add(file.share.bytes, file.share.files)
        return VersionCost(reference.branch, reference.version, needed, own, tuple(held.get(reference, ())))
