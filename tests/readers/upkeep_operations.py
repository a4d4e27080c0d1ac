"""Upkeep that moves or describes files: tiers, base paths, names of manifests, digests, and damage that it reveals."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import lance
from hypothesis.stateful import RuleBasedStateMachine
from readers.checks import digest, problems_in
from readers.model import State, Table
from readers.operations import FEW, FLAG, has_tables, is_local, operation
from readers.stores import REMEMBERING

from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.direct_commits import Decision
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.managed import DIRECT_COMMITS, HOLD
from lancekeep.domain.naming import ManifestName, NamingScheme


class UpkeepOperations(RuleBasedStateMachine):
    """Rules of `readers.machine.Readers`, which has the model."""

    # -- the places of files ----------------------------------------------------------------------------------------

    @operation(has_tables, at=FEW, until=FEW, weight=2)
    def tier(self: Any, at: int, until: int) -> None:
        """Move the data files that old versions name to a base, which other catalogs share."""
        name = self.named(at)
        if name is None:
            return
        table, catalog = self.tables[name], self.catalogs[at % 2]
        older_than = table.main.latest + 1 if until < 3 else self.pick(sorted(table.main.kept), until)
        act = lambda: catalog.upkeep.move_fragments(name, older_than, self.lake.cold)  # noqa: E731 - as in `register`
        if self.attempt(act, may_refuse=self.has_v1_names(table), what="tier"):
            table.is_tiered = True
            self.record_unchanged(table)

    @operation(is_local, at=FEW, below=FLAG)
    def set_base_paths(self: Any, at: int, below: bool) -> None:
        """Copy the directories of base paths, and let the table read the copies; below the base, or outside of it."""
        name = self.named(at)
        if name is None:
            return
        table, copies = self.tables[name], {}
        for number, base in self.stored(table).base_paths().items():
            before = Path(unquote(base.path.removeprefix("file://")))
            if before.is_dir():
                copies[number] = f"{self.lake.cold if below else self.lake.outside}/copy{next(self.numbers)}"
                shutil.copytree(before, copies[number])
        if not copies:
            return
        structure = self.catalogs[at % 2].structure
        act = lambda: structure.set_base_paths(ObjectId.of(name), copies)  # noqa: E731 - as in `register`
        if self.attempt(act, may_refuse=self.has_v1_names(table), what="set base paths"):
            self.record_unchanged(table)

    @operation(is_local, at=FEW, adopt=FLAG)
    def settle_direct_commits(self: Any, at: int, adopt: bool) -> None:
        """Commit without the catalog to a table that holds such commits, then adopt or discard the commit."""
        name = self.named(at)
        if name is None or self.mode == "v1" or self.kind != "sqlite":  # the other stores may lose rows
            return
        table, catalog = self.tables[name], self.catalogs[at % 2]
        catalog.alter_table(name, {DIRECT_COMMITS: HOLD})
        lance.dataset(table.uri).update_config({"committed": "directly"})
        assert next(iter(catalog.versions.history(name))).version == table.main.latest
        report = catalog.upkeep.direct_commits(name, Decision.ADOPT if adopt else Decision.DISCARD)
        assert [each.version for each in report.commits] == [table.main.latest + 1]
        catalog.alter_table(name, remove=[DIRECT_COMMITS])
        self.record_unchanged(table)

    def record_unchanged(self: Any, table: Table) -> None:
        """Record the versions that upkeep has made, each with the rows of the one before it."""
        for branch in (None, *table.branches):
            history = table.history(branch)
            assert history is not None
            for version in range(history.latest, self.stored(table, branch).version + 1):
                history.add(version, history.state)

    # -- the names of manifests -------------------------------------------------------------------------------------

    def has_v1_names(self: Any, table: Table) -> bool:
        """Return whether the main history of a table has a manifest with a V1 name."""
        names = [ManifestName.parse(key.rpartition("/")[2]) for key in self.lake.list(f"{table.path}/_versions")]
        return any(name is not None and name.scheme is NamingScheme.V1 for name in names)

    @operation(at=FEW, value=FEW)
    def create_with_v1_names(self: Any, at: int, value: int) -> None:
        """Make a table by pylance whose manifests have V1 names, as older releases do, and enter it."""
        name = self.free(at)
        if name is None or self.is_occupied(name):
            return
        place = self.place_of(name, f"old{next(self.numbers)}")
        if place is None:
            return
        state = State().put([next(self.numbers) for _ in range(2)], value)
        lance.write_dataset(
            state.arrow,
            f"{self.lake.root}/{place}",
            enable_v2_manifest_paths=False,
            storage_options=self.lake.native_options,
        )
        if self.mode != "v1":
            self.catalogs[at % 2].register_table(name, place)
        self.enter(name, state)

    @operation(has_tables, at=FEW, native=FLAG)
    def migrate_names(self: Any, at: int, native: bool) -> None:
        """Rename manifests from V1 to V2; the catalog refuses it where no commit store decides versions."""
        name = self.named(at)
        if name is None:
            return
        table, catalog = self.tables[name], self.catalogs[at % 2]
        if native:
            self.stored(table).migrate_manifest_paths_v2()
        if native and self.kind not in REMEMBERING:
            self.open_catalogs()  # all writers have to stop before, and to begin again after it
            return
        act = lambda: catalog.upkeep.migrate_manifest_names(name, interrupt_plain_readers=True, reader_pause=0)  # noqa: E731
        may_refuse = self.kind not in REMEMBERING
        if self.attempt(act, may_refuse=may_refuse, what="migrate the names of manifests"):
            assert not self.has_v1_names(table), f"{name}: a manifest has kept its V1 name"
            self.record_unchanged(table)

    # -- digests and damage -----------------------------------------------------------------------------------------

    @operation(has_tables, at=FEW, every=FLAG)
    def digest(self: Any, at: int, every: bool) -> None:
        """Record the digests of the files of one table, or of all tables."""
        name = self.named(at)
        if name is not None:
            digest(self.catalogs[at % 2], None if every else [name])

    @operation(is_local, at=FEW, file=FEW, bit=FEW, lost=FLAG)
    def reveal_damage(self: Any, at: int, file: int, bit: int, lost: bool) -> None:
        """Flip a bit of a file that has a digest, or remove the file; the checks report it, and raise nothing."""
        name = self.named(at)
        if name is None:
            return
        table = self.tables[name]
        digest(self.catalogs[at % 2], [name])
        dataset, directory = self.stored(table), Path(table.uri.removeprefix("file://"))
        chosen = self.pick(_files(dataset, directory) or _manifests(dataset, directory), file)
        lost = lost and chosen.suffix != ".manifest"  # the version before it would be the latest one
        with _damaged(chosen, Path(self.lake.directory), None if lost else bit), self.lake.connect() as catalog:
            found = problems_in(catalog, [name])
            assert found, f"{chosen} is damaged, and verify finds nothing"
            if lost:
                kinds = {finding.kind for finding in catalog.upkeep.fsck(deep=True, tables=[name]).findings}
                assert Kind.MISSING_FILE in kinds, f"{chosen} is missing, and fsck finds {kinds}"


def _files(dataset: Any, directory: Path) -> list[Path]:
    """Return the data and deletion files of a version that lie in the directory of its table."""
    found = []
    for fragment in dataset.get_fragments():
        found += [directory / "data" / file.path for file in fragment.data_files() if file.base_id is None]
        deletion = fragment.deletion_file()
        found += [directory / deletion] if deletion is not None else []
    return sorted(path for path in found if path.is_file())


def _manifests(dataset: Any, directory: Path) -> list[Path]:
    names = {path: ManifestName.parse(path.name) for path in (directory / "_versions").iterdir()}
    return [path for path, name in names.items() if name is not None and name.version == dataset.version]


@contextmanager
def _damaged(path: Path, scratch: Path, bit: int | None) -> Iterator[None]:
    """Flip a bit of a file, or remove the file; put it back in the end."""
    aside = scratch / path.name
    path.rename(aside)
    try:
        if bit is not None:
            content = bytearray(aside.read_bytes())
            content[len(content) * bit // len(FEW)] ^= 1 << bit
            path.write_bytes(content)
        yield
    finally:
        aside.replace(path)
