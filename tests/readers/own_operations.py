"""Operations that only Lancekeep offers, and upkeep by other engines, beside the rules of the machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import lance
from engines import LANCEDB, EngineError
from hypothesis.stateful import RuleBasedStateMachine
from lance_namespace import ListTableVersionsRequest
from readers.model import CHANGES, Change, Target
from readers.operations import FEW, FLAG, has_tables, is_local, operation
from readers.requests import Request

from lancekeep.application.catalog import services_of
from lancekeep.domain.maintenance import MaintenancePolicy, MaintenanceRule
from lancekeep.domain.manifest_entry import CLUSTER_BY
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.operations import Transaction
from lancekeep.format.table_version import TableVersion
from lancekeep.testing.concurrency import race

BY_TRANSACTION = ("append", "overwrite", "delete", "update", "restore")
"""The changes that `Catalog.commit` builds without the engine."""

INDEX_KINDS = ("BTREE", "BITMAP", "ZONEMAP")


def has_engines(machine: Any) -> bool:
    return bool(machine.tables) and "engines" in machine.servers


class OwnOperations(RuleBasedStateMachine):
    """Rules of `readers.machine.Readers`, which has the model."""

    @operation(has_tables, at=FEW, branch=FEW)
    def compact(self: Any, at: int, branch: int) -> None:
        """Compact by the catalog, which commits without the engine."""
        name = self.named(at)
        if name is None:
            return
        target = self.target(name, "compact", branch)
        made: list[Any] = []
        self.commit(
            lambda: made.append(self.catalogs[at % 2].upkeep.compact(name)),
            [target],
            must=not target.table.sources,  # pylance cannot rewrite an index whose files are at the source
            what="compact by the catalog",
        )

    @operation(is_local, at=FEW, change=BY_TRANSACTION, value=FEW, weight=2)
    def commit_transaction(self: Any, at: int, change: str, value: int) -> None:
        """Let the engine make a change of a copy, and commit its transaction to the table."""
        name = self.named(at)
        if name is None:
            return
        target = self.target(name, change, value)
        if change == "restore":
            target.version = self.pick(sorted(target.history.kept), value)
            target.seen = target.history.versions[target.version]
        transaction = _replayed(target.uri, target.version, target.change, target.given)
        if transaction is not None:
            catalog = self.catalogs[value % 2]
            self.commit(lambda: catalog.commit(name, transaction), [target], must=True, what=f"{change} by transaction")

    @operation(is_local, at=FEW, value=FEW)
    def commit_detached(self: Any, at: int, value: int) -> None:
        """Commit a detached version: no history has it, and it stays readable until a clean-up."""
        name = self.named(at)
        if name is None:
            return
        target = self.target(name, "append", value)
        transaction = _replayed(target.uri, target.version, target.change, target.given)
        assert transaction is not None
        found: list[Any] = []
        act = lambda: found.append(self.catalogs[value % 2].commit(name, transaction, detached=True))  # noqa: E731
        if self.attempt(act, may_refuse=False, what="commit a detached version"):
            after = target.change.after(target.history.state, target.seen, target.given)
            target.table.detached[found[0].version] = after

    @operation(has_tables, at=FEW, into=FEW)
    def relocate(self: Any, at: int, into: int) -> None:
        """Move a table to another directory of the root."""
        name = self.named(at)
        if name is None:
            return
        table, catalog = self.tables[name], self.catalogs[at % 2]
        location = f"moved{next(self.numbers)}"
        may_refuse = self.mode == "v1" or self.kind == "none" or self.is_source(table) or bool(table.sources)
        if self.attempt(lambda: catalog.upkeep.relocate(name, location), may_refuse=may_refuse, what="relocate"):
            self.outside = [clone for clone in self.outside if table not in clone.sources]
            found = catalog.find_table(name)
            assert found.location == location
            table.path, table.uri = found.location, services_of(catalog).uri(found)
            self.settle_grace()
            for branch in (None, *table.branches):  # the fence has a number of its own
                history = table.history(branch)
                history.add(self.stored(table, branch).version, history.state)

    @operation(has_tables, at=FEW, value=FEW, weight=2)
    def upsert_together(self: Any, at: int, value: int) -> None:
        """Upsert from several threads, of which two have a common key. Those that meet share a version."""
        name = self.named(at)
        if name is None:
            return
        table = self.tables[name]
        history, seen = table.main, table.main.state
        given = [attrs.evolve(self.given(seen, value), value=value + number) for number in range(4)]
        more = [(each.chosen,) if number < 2 else () for number, each in enumerate(given)]
        rule = {"on": ["id"], "when_matched_update_all": True, "when_not_matched_insert_all": True}
        requests = [Request(self.namespace, {"id": list(name)}, history.latest, seen, each) for each in given]
        answers: list[Any] = []

        def upsert(number: int) -> Any:
            request = requests[number]
            rows = request.rows(*more[number])
            return self.namespace.merge_insert_into_table({**request.at, **rule}, rows)

        if not self.attempt(lambda: answers.extend(race(4, upsert)), may_refuse=False, what="upsert together"):
            return
        for version in sorted({answer.version for answer in answers}):
            state = history.state
            for answer, each, chosen in zip(answers, given, more, strict=True):
                if answer.version == version:
                    ids = [*each.ids, *chosen]
                    updated = len(history.state.rows.keys() & set(ids))
                    assert (answer.num_updated_rows, answer.num_inserted_rows) == (updated, len(ids) - updated)
                    state = state.put(ids, each.value)
            history.add(version, state)
        history.add(self.stored(table).version, history.state)

    @operation(has_tables, at=FEW, kind=INDEX_KINDS, column=FEW)
    def index_column(self: Any, at: int, kind: str, column: int) -> None:
        """Index a column, also one that changes assign."""
        name = self.named(at)
        if name is None:
            return
        target = self.target(name, "index", column)
        chosen = self.pick(target.seen.columns, column)
        catalog = self.catalogs[at % 2]
        act = lambda: catalog.open(name).create_scalar_index(chosen, kind, name=f"{chosen}_{kind}".lower())  # noqa: E731
        self.commit(act, [target], must=True, what="index a column")

    @operation(has_tables, at=FEW, merged=FEW)
    def optimize_natively(self: Any, at: int, merged: int) -> None:
        """Let pylance bring the indexes up to date, through the catalog's handle."""
        name = self.named(at)
        if name is None:
            return
        target = self.target(name, "compact", merged)
        dataset = self.catalogs[at % 2].open(name)
        options: dict[str, Any] = {} if merged > 2 else {"num_indices_to_merge": merged}
        act = lambda: dataset.optimize.optimize_indices(**options)  # noqa: E731
        self.commit(act, [target], must=True, what="optimize natively")

    @operation(has_tables, at=FEW)
    def compact_with_deferred_remap(self: Any, at: int) -> None:
        """Let pylance compact and leave the indexes to a system index."""
        name = self.named(at)
        if name is None:
            return
        if self.tables[name].sources:
            return  # pylance 14 loses an index whose files are at the source (docs/interoperability.md)
        target = self.target(name, "compact", at)
        dataset = self.catalogs[at % 2].open(name)
        act = lambda: dataset.optimize.compact_files(defer_index_remap=True)  # noqa: E731
        self.commit(act, [target], must=True, what="compact with deferred remap")

    @operation(has_tables, at=FEW)
    def clean_up_natively(self: Any, at: int) -> None:
        """Let pylance remove old versions without notifying the catalog; listings must not show them."""
        name = self.named(at)
        if name is None:
            return
        table = self.tables[name]
        if self.is_source(table) or table.branches or table.detached:
            return  # pylance knows neither clones nor detached versions, nor what branches read
        self.stored(table).cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
        left = {version["version"] for version in self.stored(table).versions()}
        table.main.kept &= left
        request = ListTableVersionsRequest(id=list(name), descending=True)
        listed = {version.version for version in self.namespace.list_table_versions(request).versions}
        assert listed <= left, f"{name}: the versions {listed - left} are listed, and were removed"

    @operation(has_engines, at=FEW, engine=FEW, value=FEW, weight=3)
    def append_by_another_engine(self: Any, at: int, engine: int, value: int) -> None:
        """Append by an engine of another release that has opened the table before, past the commit store.

        It rebases on every version that was committed since, or refuses.
        """
        name = self.named(at)
        if name is None:
            return
        table, engines = self.tables[name], self.servers["engines"]
        chosen = self.pick(sorted(engines), engine)
        if chosen == LANCEDB and not table.uri.endswith(".lance"):
            return  # lancedb opens directories with this suffix only
        key, state = (table, table.uri, chosen), table.main.state
        if key not in self.of_engines:
            try:
                self.of_engines[key] = engines[chosen].open(table.uri.removeprefix("file://")), state
            except EngineError:
                return  # the table has features that its release does not know
        handle, seen = self.of_engines[key]
        given = self.given(table.main.state, value)
        target = Target(table, table.uri, table.main.latest, None, table.main, CHANGES["append"], given, seen, True)

        def act() -> None:
            try:
                handle.append(given.rows(seen.columns))
            except EngineError as error:
                del self.of_engines[key]
                raise OSError(str(error)) from error

        if self.commit(act, [target], must=False, what=f"append by {chosen}"):
            self.of_engines[key] = handle, table.main.state

    @operation(at=FEW, original=FLAG)
    def adopt_identity(self: Any, at: int, original: bool) -> None:
        """Give the catalog another identity, or confirm the one that it has; it reads its files in both cases."""
        act = lambda: self.catalogs[at % 2].upkeep.adopt_identity(original=original)  # noqa: E731 - as in `register`
        self.attempt(act, may_refuse=False, what="adopt an identity")

    @operation(has_tables, at=FEW, request=FLAG)
    def describe_with_properties(self: Any, at: int, request: bool) -> None:
        """Set properties of a table; they show, and no version is made. Later compactions sort the rows."""
        name = self.named(at)
        if name is None:
            return
        value, catalog = str(next(self.numbers)), self.catalogs[at % 2]
        if self.attempt(
            lambda: catalog.alter_table(name, {"owner": value, CLUSTER_BY: "value, id"}),
            may_refuse=self.mode == "v1",
            what="alter a table",
        ):
            assert self.catalogs[(at + 1) % 2].find_table(name).properties["owner"] == value

    @operation(has_tables, at=FEW, storage=FLAG)
    def change_manager(self: Any, at: int, storage: bool) -> None:
        """Leave a table to the storage, or to the commit store; no version is made."""
        name = self.named(at)
        if name is None:
            return
        manager, catalog = "storage" if storage else "implementation", self.catalogs[at % 2]
        if self.attempt(
            lambda: catalog.alter_table(name, {"lancekeep.managed": manager}),
            may_refuse=self.mode == "v1" or self.kind == "none",
            what="change the manager of a table",
        ):
            assert self.catalogs[(at + 1) % 2].describe_table(name).managed is (not storage)

    @operation(at=FEW)
    def maintain(self: Any, at: int) -> None:
        """Run the upkeep of a worker, which removes nothing that is younger than its grace period."""
        rule = MaintenanceRule(target_rows=1 << 20, small_fragments=2, refresh_indexes=True)
        for action in self.catalogs[at % 2].upkeep.maintain(MaintenancePolicy((rule,))):
            clone = self.tables.get(tuple(action.table.split(".")))
            assert not action.failed or (clone is not None and clone.sources), action
        for table in self.tables.values():
            self.record_unchanged(table)

    @operation(has_tables, at=FEW)
    def refuse_lsm_writes(self: Any, at: int) -> None:
        """A managed table refuses the commit that sets LSM writes up."""
        name = self.named(at)
        if name is None or self.kind == "none":
            return
        dataset = self.catalogs[at % 2].open(name)
        self.require_refused(lambda: dataset.initialize_mem_wal(unsharded=True), "set up LSM writes")


def _replayed(uri: str, version: int, change: Change, given: Any) -> Transaction | None:
    """Make a change of a copy of a table by pylance alone; bring its new files, and return its transaction.

    Returns:
        None if the change made no version.
    """
    table = Path(uri.removeprefix("file://"))
    with tempfile.TemporaryDirectory(dir=table.parent.parent) as scratch:
        copy = Path(scratch, "copy")
        shutil.copytree(table, copy)
        dataset = lance.dataset(str(copy), version=version)
        latest = lance.dataset(str(copy)).version
        change.act(dataset, given)
        after = lance.dataset(str(copy)).version
        if after == latest:
            return None
        for directory, _, names in os.walk(copy):
            for name in names:
                below = Path(directory, name).relative_to(copy)
                if below.parts[0] in ("data", "_deletions") and not (table / below).exists():
                    (table / below).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(copy / below, table / below)
        for path in (copy / "_versions").iterdir():
            found = ManifestName.parse(path.name)
            if found is not None and not found.is_staged and found.version == after:
                return TableVersion.parse(path.read_bytes(), path.name).transaction
    raise AssertionError(f"no manifest of version {after}")
