"""Maintenance by a policy: rules, actions, dry runs, and the lease of one worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Semaphore

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.lease import Lease
from lancekeep.application.upkeep.maintenance import MaintenanceAction
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.maintenance import MaintenancePolicy, MaintenanceRule
from lancekeep.domain.view import ViewDefinition
from lancekeep.entrypoints.cli import lancekeep as commands
from lancekeep.entrypoints.maintenance import MaintenanceWorker, Plan, maintaining, read_plan
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace

POLICY = """
every = "2h"

[[rules]]
on = ""
older_than = "30d"

[[rules]]
on = "ml"
target_rows = 1000
small_fragments = 4
refresh_indexes = true
"""
RULE = MaintenanceRule(older_than=0, grace=0, keep=1, target_rows=1000, small_fragments=4, refresh_indexes=True)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite:///{tmp_path}/commits.db") as catalog:
        catalog.create_namespace("ml")
        for number in range(5):
            catalog.write("ml.t", pa.table({"id": [number]}), "append" if number else "create")
        catalog.declare_table("ml.declared")
        catalog.write("other", pa.table({"id": [1]}))
        yield catalog


def policy(rule: MaintenanceRule = RULE) -> MaintenancePolicy:
    return MaintenancePolicy((rule,))


def actions(catalog: lancekeep.Catalog, *, dry_run: bool = False) -> list[tuple[str, str, bool]]:
    return [(each.table, each.action, each.failed) for each in catalog.upkeep.maintain(policy(), dry_run=dry_run)]


def test_the_most_specific_rule_applies() -> None:
    rules = [MaintenanceRule(subtree=ObjectId.of(name), keep=at) for at, name in enumerate(("", "ml", "ml.t"), 1)]
    chosen = MaintenancePolicy(tuple(rules))
    found = [chosen.rule_for(ObjectId.of(name)) for name in ("x", "ml.x", "ml.t", "mlx.t")]
    assert [rule and rule.keep for rule in found] == [1, 2, 3, 1]
    assert MaintenancePolicy((rules[1],)).rule_for(ObjectId.of("x")) is None
    with pytest.raises(InvalidInput, match="two rules"):
        MaintenancePolicy((rules[0], rules[0]))


def test_a_policy_file_is_validated(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    plan = read_plan(path)
    assert plan.policy.every == 7200
    assert plan.policy.rules[0] == MaintenanceRule(older_than=30 * 86_400)
    for wrong in ('every = "often"', "evry = 1", "[[rules]]\nkeep = 1", '[[rules]]\non = ""\nkeep = 0', "rules = 1"):
        path.write_text(wrong)
        with pytest.raises(InvalidInput):
            read_plan(path)


def test_tables_are_compacted_and_cleaned_and_keep_their_rows(catalog: lancekeep.Catalog) -> None:
    assert actions(catalog) == [("ml.t", "compact", False), ("ml.t", "clean up", False)]
    dataset = catalog.open("ml.t")
    assert sorted(dataset.to_table()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    assert len(dataset.get_fragments()) == 1
    assert len(list(catalog.versions.history("ml.t"))) == 1
    assert actions(catalog) == []
    assert catalog.upkeep.fsck(deep=True).findings == ()


def test_stale_indexes_are_refreshed(catalog: lancekeep.Catalog) -> None:
    catalog.commit_change("ml.t", lambda dataset: _indexed(dataset))
    catalog.write("ml.t", pa.table({"id": [9]}), "append")
    assert ("ml.t", "index", False) in actions(catalog)
    assert catalog.open("ml.t").stats.index_stats("id_idx")["num_unindexed_rows"] == 0


def _indexed(dataset: object) -> object:
    dataset.create_scalar_index("id", "BTREE")  # type: ignore[attr-defined] # a lance.LanceDataset
    return dataset


def test_a_dry_run_changes_nothing(catalog: lancekeep.Catalog) -> None:
    before = [entry.version for entry in catalog.versions.history("ml.t")]
    assert ("ml.t", "compact", False) in actions(catalog, dry_run=True)
    assert [entry.version for entry in catalog.versions.history("ml.t")] == before


def test_one_worker_at_a_time_has_the_lease(catalog: lancekeep.Catalog) -> None:
    objects, prefix = directory_of(catalog).places.objects, directory_of(catalog).places.prefix
    one, other = (Lease(objects, prefix, name, 60) for name in ("one", "other"))
    assert one.acquire(0)
    assert catalog.upkeep.fsck(deep=True).findings == ()
    assert not other.acquire(0)
    assert one.renew()
    assert not other.acquire(61)  # it has been renewed since
    assert not other.acquire(120)
    assert other.acquire(121)
    assert other.token == 3
    assert not one.renew()  # the fencing token has moved on
    other.release()
    assert one.acquire(122)
    one.release()
    assert catalog.upkeep.fsck(deep=True).findings == ()


def test_a_worker_without_the_lease_does_nothing(catalog: lancekeep.Catalog) -> None:
    holder = Lease(directory_of(catalog).places.objects, directory_of(catalog).places.prefix, "other", 60)
    assert holder.acquire(0)
    worker = MaintenanceWorker(catalog, Plan(policy()))
    assert worker.run_once() is None
    holder.release()
    found = worker.run_once()
    assert found is not None
    assert [each.action for each in found] == ["compact", "clean up"]


def test_a_worker_that_loses_its_lease_stops(catalog: lancekeep.Catalog) -> None:
    times = iter([0.0])
    worker = MaintenanceWorker(catalog, Plan(policy()), clock=lambda: next(times))
    found = worker.run_once()
    assert found is not None
    thief = Lease(directory_of(catalog).places.objects, directory_of(catalog).places.prefix, "thief", 60)
    assert not thief.acquire(0)
    assert thief.acquire(60)
    assert list(found) == []
    assert len(catalog.open("ml.t").get_fragments()) == 5


def test_each_action_keeps_the_rows_of_plain_pylance(catalog: lancekeep.Catalog) -> None:
    """Each action runs alone, in a dry run first, which writes no object."""
    catalog.commit_change("ml.t", lambda dataset: _indexed(dataset))
    catalog.write("ml.t", pa.table({"id": [9]}), "append")
    uri = catalog.describe_table("ml.t").uri
    alone = {
        "index": MaintenanceRule(refresh_indexes=True),
        "compact": MaintenanceRule(target_rows=1000, small_fragments=4),
        "clean up": MaintenanceRule(older_than=0, grace=0, keep=1),
    }
    for action, rule in alone.items():
        before = files(catalog)
        planned = [each.action for each in catalog.upkeep.maintain(policy(rule), dry_run=True)]
        assert files(catalog) <= before  # the commit before may still be removing what it staged
        done = [each.action for each in catalog.upkeep.maintain(policy(rule))]
        assert (planned, done) == ([action], [action])
        dataset = lance.dataset(uri)
        assert sorted(dataset.to_table()["id"].to_pylist()) == [0, 1, 2, 3, 4, 9]
        assert dataset.to_table(filter="id = 9")["id"].to_pylist() == [9]
        assert list(catalog.upkeep.maintain(policy(rule))) == []
    assert len(lance.dataset(uri).versions()) == 1


def files(catalog: lancekeep.Catalog) -> set[str]:
    return {info.key for info in directory_of(catalog).places.objects.list(directory_of(catalog).places.prefix)}


def test_views_that_are_due_are_refreshed(catalog: lancekeep.Catalog) -> None:
    schema = pa.schema([("id", pa.int64())])
    for name, auto_refresh in (("due", True), ("manual", False), ("broken", True)):
        source = ["other"] if name == "broken" else ["ml", "t"]
        query = json.dumps({"table": source, "columns": {"id": "id"}, "filter": "id > 1"})
        definition = ViewDefinition.parse(query, auto_refresh=auto_refresh)
        catalog.views.create(ObjectId.of(name), definition, schema)
    catalog.drop_table("other")
    worker = MaintenanceWorker(catalog, Plan(MaintenancePolicy(()), refresh_views=True))

    def run() -> list[tuple[str, str, bool]]:
        found = worker.run_once()
        assert found is not None
        return sorted((each.table, each.action, each.failed) for each in found)

    def rows(name: str) -> list[int]:
        found: list[int] = lance.dataset(catalog.describe_table(name).uri).to_table()["id"].to_pylist()
        return sorted(found)

    broken = ("broken", "refresh", True)
    assert run() == [broken, ("due", "refresh", False)]
    assert (rows("due"), rows("manual")) == ([2, 3, 4], [])
    assert run() == [broken]  # the view is up to date
    catalog.write("ml.t", pa.table({"id": [7]}), "append")
    assert run() == [broken, ("due", "refresh", False)]
    assert rows("due") == [2, 3, 4, 7]


def test_the_lease_is_renewed_during_a_long_action(catalog: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The action lasts until the lease has been renewed three times, so no other worker takes it."""
    renewed = Semaphore(0)
    renew = Lease.renew

    def noted(lease: Lease) -> bool:
        kept = renew(lease)
        renewed.release()
        return kept

    def long_action(*_: object, **__: object) -> Iterator[MaintenanceAction]:
        for _renewal in range(3):
            assert renewed.acquire(timeout=120)
        yield MaintenanceAction("t", "compact", "")

    monkeypatch.setattr(Lease, "renew", noted)
    monkeypatch.setattr(catalog.upkeep, "maintain", long_action)
    worker = MaintenanceWorker(catalog, Plan(policy()), term=0.03)
    found = worker.run_once()
    assert found is not None
    assert [each.action for each in found] == ["compact"]
    assert worker.run_once() is not None  # the lease was released


def test_a_server_maintains_in_a_thread(catalog: lancekeep.Catalog) -> None:
    done = Event()

    class Worker(MaintenanceWorker):
        def run_once(self) -> Iterator[MaintenanceAction] | None:
            found = list(super().run_once() or ())
            done.set()
            return iter(found)

    worker = Worker(catalog, Plan(policy()))
    worker.start()
    assert done.wait(120)
    worker.stop()
    assert len(catalog.open("ml.t").get_fragments()) == 1


def test_a_server_ends_although_an_action_takes_long(
    catalog: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = Event(), Event()

    def long_action(*_: object, **__: object) -> Iterator[MaintenanceAction]:
        begun.set()
        assert released.wait(120)
        yield MaintenanceAction("t", "compact", "")

    monkeypatch.setattr(catalog.upkeep, "maintain", long_action)
    with maintaining(CatalogNamespace(catalog), Plan(policy())) as end:
        assert begun.wait(120)
        assert not end(0)
        released.set()
        assert end(120)


def test_the_command_maintains_once(catalog: lancekeep.Catalog, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    arguments = ["maintain", str(tmp_path / "lake"), "--commit-store", f"sqlite:///{tmp_path}/commits.db"]
    arguments += ["--policy", str(path), "--json"]

    def run(*more: str) -> list[dict[str, str]]:
        result = CliRunner().invoke(commands, [*arguments, *more], obj=lancekeep)
        assert result.exit_code == 0, result.output
        found: list[dict[str, str]] = json.loads(result.stdout)
        return found

    assert [each["action"] for each in run("--dry-run")] == ["compact"]
    assert [each["action"] for each in run()] == ["compact"]
    assert run() == []
