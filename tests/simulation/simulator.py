"""A whole run: processes with catalogs over one world, and the verdict on their operations."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch
from uuid import UUID

import attrs
from faults import Crash
from simulation.model import ROOT, Model, Operation, Thing, Violation
from simulation.world import Objects, Process, Rows, World

from lancekeep.adapters.commit_stores.conditional_put import ConditionalPutCommitStore
from lancekeep.adapters.manifest_stores import lance_table, table_versions
from lancekeep.adapters.manifest_stores.compatible import CompatibleManifestStore, CompatibleView
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing, V1Directory
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.application.bootstrap import bootstrap
from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.commits import table_commits
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.places import Places
from lancekeep.application.retry import Retry
from lancekeep.application.rows import waiting_writers
from lancekeep.application.upkeep.fsck import Fsck, FsckReport, Kind
from lancekeep.domain.catalog import SetProperties
from lancekeep.domain.commit import Committed, Conflict, Unknown
from lancekeep.domain.dataset_files import DATA, data_file_name
from lancekeep.domain.errors import (
    AlreadyExists,
    ConcurrentModification,
    Damaged,
    InvalidInput,
    NotFound,
    ObjectNotFound,
    Refused,
    StoreUnavailable,
    TableNotFound,
)
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.manifest import DataFile, Fragment, Manifest
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE
from lancekeep.domain.naming import ManifestName, NamingScheme
from lancekeep.format.judge import Approved
from lancekeep.format.table_version import TableVersion
from lancekeep.ports.manifest_store import ManifestStore

NAMES = ("x", "y", "z", "x.p", "x.q", "y.p", "x.p.r")
LEFTOVERS = {Kind.UNREFERENCED, Kind.UNREGISTERED, Kind.DEREGISTERED, Kind.EMPTY, Kind.HIDDEN, Kind.LEFTOVER}
GRACE = timedelta(hours=5)
"""More than the clock skew and all delays of a run together."""
ATTEMPTS = 9


@attrs.frozen
class Run:
    """A run without a violation, and the outcomes of its operations."""

    seed: int
    trace_hash: str
    steps: int
    outcomes: Counter[str]


class Failure(AssertionError):
    """A run with a violation; its text replays it."""


def simulate(seed: int) -> Run:
    """Perform one run.

    Raises:
        Failure: The run violated an invariant.
    """
    world = World(seed)
    with _repeatable(seed):
        try:
            world.scheduler.run([Actor(world, number).live for number in range(world.setting.actors)])
            _judge(world)
            if world.calls_of_other_threads:
                raise Violation(f"threads outside the scheduler called ports: {world.calls_of_other_threads}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise Failure(_report(world, seed, error)) from error
    outcomes = Counter(f"{operation.kind} {operation.outcome}" for operation in world.model.operations)
    return Run(seed, world.trace_hash, world.scheduler.step, outcomes)


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    """Draw the random names of the product from the seed, and keep its work in the threads of the scheduler."""
    random = Random(f"names of {seed}")

    def uuid4() -> UUID:
        return UUID(int=random.getrandbits(128), version=4)

    with ExitStack() as patches:
        for module, name, value in (
            (table_versions, "uuid4", uuid4),
            (table_commits, "uuid4", uuid4),
            (table_versions, "random", random),
            (table_versions, "time", SimpleNamespace(time_ns=lambda: 1)),
            (lance_table, "_HINT_EVERY", 2),  # runs are short
            (waiting_writers, "in_background", _inline),
        ):
            patches.enter_context(patch.object(module, name, value))
        for looked_up in (V1Directory.version, V1Directory._stored, V1Directory.properties, CompatibleView.properties):
            if hasattr(looked_up, "lock"):  # before Python 3.12, held over calls of ports, for all objects of the class
                patches.enter_context(patch.object(looked_up, "lock", nullcontext()))
        yield


def _manifest(version: int, tag: str, fragments: Sequence[Fragment] = ()) -> bytes:
    """Return a manifest that no other commit writes."""
    return TableVersion(Manifest(version=version, tag=tag, transaction_file=tag, fragments=fragments)).serialize()


def _inline(act: Callable[[], object]) -> None:
    """Run what the product runs in the background: the scheduler knows no other threads."""
    act()


def _report(world: World, seed: int, error: BaseException) -> str:
    calls = world.trace if os.environ.get("LANCEKEEP_SEED") else world.trace[-60:]
    return "\n".join(
        [
            f"seed {seed}: {type(error).__name__}: {error}",
            f"replay: LANCEKEEP_SEED={seed} pytest tests/simulation",
            f"{world.setting}",
            "operations: the steps from and to, the state at the end, what they did to the catalog in which state:",
            *(f"  {operation}" for operation in world.model.operations),
            f"the last {len(calls)} calls of {len(world.trace)}:",
            *(f"  {call}" for call in calls),
        ]
    )


def open_catalog(process: Process) -> tuple[Catalog, LanceManifestStore]:
    """Open a catalog as `composition.connect` does, over the stores of the world."""
    world = process.world
    objects = Objects(process)
    rows: Any = ConditionalPutCommitStore(objects) if world.setting.commit_store != "memory" else Rows(process)
    retry = Retry(clock=process.clock, sleep=process.sleep, jitter=world.random.random)
    no_engine: Any = Mock(spec=["restore"])  # no operation reads or writes data
    places = Places(
        objects,
        ROOT,
        uri_of=lambda key: f"memory:///{key}",
        storage_options={},
        entropy=lambda: f"{world.random.getrandbits(32):08x}",
    )
    commits = TableCommits(objects, rows, process.name, retry)
    root = DatasetRoot(f"{ROOT}/__manifest", f"{objects.root_uri}{ROOT}/__manifest")
    table = LanceManifestStore(
        objects,
        root.key,
        publish=None if world.setting.creates else partial(commits.publish, root),
        forget=None if world.setting.creates else partial(commits.rows.delete, root.base_uri),
        clock=process.clock,
        sleep=process.sleep,
        jitter=world.random.random,
    )
    manifest: ManifestStore = table
    if world.setting.mode == "compatible":
        manifest = CompatibleManifestStore(table, DirectoryListing(objects, ROOT))
    catalog = bootstrap(
        commits,
        places,
        manifest,
        lambda versions: no_engine,
        managed=True,
        new_id=lambda: "1" * 32,
        file_digest=no_engine,
        open_rows=lambda _: rows,
    )
    manifest.view()
    directory_of(catalog).ledger.view()
    return catalog, table


def fsck(process: Process, catalog: Catalog, *, repair: bool, grace: timedelta, tables: bool = False) -> FsckReport:
    """Check as `Upkeep.fsck` does, by the clock of the process."""
    own = directory_of(catalog)
    now = lambda: datetime.fromtimestamp(process.clock(), UTC)  # noqa: E731 - reads better as one line
    parts = own.ledger, own.places, own.removal, own.tables.remove_unwritten, own.dropped.complete
    return Fsck(*parts, grace, tables, now).run(repair=repair)


class Actor:
    """A machine: its processes, one after the other as they crash, and their operations."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._random = world.random
        self._number = number
        self._generation = 0
        self._unknown: list[Operation] = []
        self._serial = 0
        self._chances: dict[Callable[[], None], int] = {
            self._create_namespace: 3,
            self._alter: 3,
            self._drop_namespace: 2,
            self._declare: 4,
            self._commit: 9,
            self._drop_table: 2,
            self._deregister: 2,
            self._register: 3,
            self._rename: 4,
            self._migrate: 1 if world.setting.mode == "compatible" else 0,
            self._clean_up: 1,
            self._fsck: 1,
            self._look: 3,
            self._list: 1,
            self._resolve: 2,
            self._append: 6 if world.setting.appends else 0,
            self._recreate: 2 if world.setting.appends else 0,
        }

    def live(self) -> None:
        self._start()
        for _ in range(self._world.setting.operations):
            self._world.pass_idly()
            [act] = self._random.choices(list(self._chances), list(self._chances.values()))
            self._world.busy += 1
            try:
                act()
            finally:
                self._world.busy -= 1
            if self._process.dead:
                self._start()

    def _start(self) -> None:
        """Start a process that tries to open the catalog until it succeeds."""
        while True:
            name = f"{'ABCD'[self._number]}{self._generation}"
            self._generation += 1
            self._process = Process(self._world, self._number, name)
            try:
                self._catalog, self._table = open_catalog(self._process)
                return
            except (Crash, StoreUnavailable):
                continue

    def _run(self, operation: Operation, act: Callable[[], Any]) -> None:
        world = self._world
        world.model.operations.append(operation)
        self._process.operation = operation
        try:
            operation.result = act()
            operation.outcome = operation.outcome or "ok"
        except (Crash, StoreUnavailable) as error:
            operation.outcome, operation.error = "unknown", error
        except Damaged as error:
            if operation.kind == "rename" and "moved from" in str(error):
                operation.outcome, operation.error = "unknown", error
            elif "neither that staged manifest" in str(error) and world.model.may_be_unreadable(operation):
                operation.outcome, operation.error = "refused", error
            else:
                raise Violation(f"{operation} raised {error!r}") from error
        except (ObjectNotFound, AssertionError) as error:
            raise Violation(f"{operation} raised {error!r}") from error
        except (AlreadyExists, NotFound, Refused, InvalidInput, ConcurrentModification) as error:
            unsure = operation.kind == "commit" and "was renamed or dropped" in str(error)
            operation.outcome, operation.error = "unknown" if unsure else "refused", error
        finally:
            self._process.operation = None
        world.note(f"{self._process.name} {operation.kind} {operation.arguments} gets {operation.outcome}")
        world.model.ended(operation)

    def _new(self, kind: str, **arguments: Any) -> Operation:
        world = self._world
        world.note(f"{self._process.name} {kind} {arguments}")
        return Operation(self._process.name, kind, arguments, world.scheduler.step, world.model.moment)

    # -- operations --------------------------------------------------------------------------------------------------

    def _create_namespace(self) -> None:
        operation = self._new(
            "create_namespace", name=self._free_name(), properties=self._properties(), overwrite=self._chance(0.2)
        )
        self._run(operation, lambda: self._catalog.create_namespace(**_named(operation)))

    def _alter(self) -> None:
        name = self._name("", *self._known())
        thing = self._world.model.now.get(name.replace(".", "$"))
        kind = thing.kind if thing is not None else NAMESPACE
        properties = {f"k{self._random.randrange(3)}": self._unique()}
        operation = self._new("alter", name=name, properties=properties, of=kind)
        alter = self._catalog.alter_table if kind == TABLE else self._catalog.alter_namespace
        self._run(operation, lambda: alter(name, operation.arguments["properties"]))

    def _drop_namespace(self) -> None:
        operation = self._new("drop_namespace", name=self._name(*self._known(NAMESPACE)), cascade=self._chance(0.3))
        self._run(operation, lambda: self._catalog.drop_namespace(**_named(operation)))

    def _declare(self, name: str = "") -> None:
        operation = self._new("declare", name=name or self._free_name(), properties=self._properties())
        self._run(operation, lambda: self._catalog.declare_table(**_named(operation)))

    def _drop_table(self, name: str = "") -> None:
        operation = self._new("drop_table", name=name or self._name(*self._known(TABLE)))
        self._run(operation, lambda: self._catalog.drop_table(operation.name))

    def _recreate(self) -> None:
        """Drop a table, often beside a commit to it, and create it again with about as many versions."""
        model = self._world.model
        beside = [each.name for each in model.operations if each.kind == "commit" and each.outcome is None]
        name = self._name(*(beside or self._known(TABLE)))
        thing = model.now.get(name.replace(".", "$"))
        prefix = f"{ROOT}/{thing.location}/_versions/" if thing is not None else "none"
        versions = sum(key.startswith(prefix) for key in model.finals)
        steps = [self._drop_table, self._declare, self._commit, *[self._append] * (versions - self._chance(0.3))]
        for step in steps:
            if not self._process.dead:
                step(name)

    def _deregister(self) -> None:
        operation = self._new("deregister", name=self._name(*self._known(TABLE)))
        self._run(operation, lambda: self._catalog.deregister_table(operation.name))

    def _register(self) -> None:
        places = {key.removeprefix(f"{ROOT}/").partition("/")[0] for key in self._world.model.finals}
        model = self._world.model
        places -= {"__manifest"}
        free = [place for place in sorted(places) if self._chance(0.1) or model.owner_of(place) is None]
        if not free:
            return
        location = self._random.choice(free)
        name = (
            location.removesuffix(".lance") if location.endswith(".lance") and self._chance(0.5) else self._free_name()
        )
        operation = self._new(
            "register",
            name=name,
            location=location,
            properties=self._properties(),
            overwrite=self._chance(0.3),
        )
        operation.location = location
        self._run(operation, lambda: self._catalog.register_table(**_named(operation)))

    def _rename(self) -> None:
        operation = self._new("rename", name=self._name(*self._known(TABLE)), target=self._free_name())
        self._run(operation, lambda: self._catalog.rename_table(operation.name, operation.arguments["target"]))

    def _migrate(self) -> None:
        operation = self._new("migrate", batch=self._random.choice([1, 2, 100]))
        self._run(operation, lambda: self._catalog.upkeep.migrate(**operation.arguments))

    def _clean_up(self) -> None:
        self._run(self._new("clean_up"), self._table.clean_up)

    def _fsck(self) -> None:
        operation = self._new("fsck", repair=self._chance(0.7))
        repair = operation.arguments["repair"]
        self._run(operation, lambda: fsck(self._process, self._catalog, repair=repair, grace=GRACE))

    def _look(self) -> None:
        operation = self._new("look", name=self._name(*self._known(TABLE)))

        def look() -> Thing | None:
            try:
                table = self._catalog.find_table(operation.name)
            except TableNotFound:
                return None
            return Thing(TABLE, table.location, tuple(sorted(table.properties.items())))

        self._run(operation, look)

    def _list(self) -> None:
        self._run(self._new("look"), self._catalog.list_namespaces)

    def _commit(self, name: str = "") -> None:
        """Commit as a native writer: read the latest version, stage a manifest, request its commit."""
        operation = self._new("commit", name=name or self._name(*self._known(TABLE)))
        catalog, process = self._catalog, self._process

        def commit() -> Any:
            table = catalog.find_table(operation.name)
            root = directory_of(catalog).places.dataset_root(table)
            operation.location = table.location
            latest = directory_of(catalog).commits.latest(root)
            version = latest.version + 1 if latest else 1
            kept = self._manifest_at(latest.path).fragments if latest and self._world.setting.appends else ()
            operation.key = root.manifest_key(version, NamingScheme.V2)
            operation.content = _manifest(version, f"{operation.key} {process.name} {self._unique()}", kept)
            operation.arguments["version"] = version
            staged = f"{operation.key}-{self._random.getrandbits(128):032x}"
            directory_of(catalog).places.objects.put(staged, operation.content)
            outcome = directory_of(catalog).versions.commit_version(
                table, None, version, staged, len(operation.content)
            )
            if isinstance(outcome, Unknown):
                operation.token = outcome.token
                self._unknown.append(operation)
            operation.outcome = _told(outcome)
            return outcome

        self._run(operation, commit)

    def _manifest_at(self, path: str) -> Manifest:
        """Return the manifest of a version, whose fragments the next version keeps."""
        try:
            content = directory_of(self._catalog).places.objects.get(path)
        except ObjectNotFound as error:
            raise ConcurrentModification(f"{path} was removed since") from error
        return TableVersion.parse(content, path).manifest

    def _append(self, name: str = "") -> None:
        """Append as the catalog does: write a data file, build the next manifest, commit it."""
        operation = self._new("commit", name=name or self._name(*self._known(TABLE)))
        catalog = self._catalog

        def append() -> Any:
            own = directory_of(catalog)
            since = own.versions.recent()
            table = catalog.find_table(operation.name)
            root = own.places.dataset_root(table)
            operation.location = table.location
            latest = own.commits.latest(root)
            if latest is None:
                raise ConcurrentModification("nothing to append to")
            kept = self._manifest_at(latest.path)
            version, name = latest.version + 1, data_file_name(self._random.randbytes(16))
            own.places.objects.put(f"{root.key}/{DATA}/{name}", b"rows")
            operation.key = root.manifest_key(version, NamingScheme.V2)
            fragment = Fragment(version, (DataFile(name),), physical_rows=1)
            operation.content = _manifest(version, f"{operation.key} {name}", (*kept.fragments, fragment))
            operation.arguments["version"] = version
            built = Approved(version, "", operation.content, kept.transaction_file)
            outcome, _ = own.versions.commit_built(table, built, since)
            if isinstance(outcome, Unknown):
                operation.token = outcome.token
                self._unknown.append(operation)
            operation.outcome = _told(outcome)
            return outcome

        self._run(operation, append)

    def _resolve(self) -> None:
        if not self._unknown:
            return
        commit = self._random.choice(self._unknown)
        operation = self._new("resolve", commit=commit.began)
        self._run(operation, lambda: self._catalog.resolve(commit.token))
        if operation.outcome == "ok":
            learn(self._world.model, commit, operation.result)
            self._world.model.check_commit(commit)

    # -- chance -------------------------------------------------------------------------------------------------------

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _name(self, *preferred: str) -> str:
        return self._random.choice(preferred if preferred and self._chance(0.85) else NAMES)

    def _free_name(self) -> str:
        """Choose a name, usually a free one in an existing namespace."""
        now = self._world.model.now
        namespaces = {name for name, thing in now.items() if thing.kind == NAMESPACE}
        keys = [name.replace(".", "$") for name in NAMES]
        free = [key for key in keys if key not in now and key.rpartition("$")[0] in namespaces]
        return self._name(*(key.replace("$", ".") for key in free))

    def _known(self, kind: str | None = None) -> list[str]:
        things = self._world.model.now.items()
        return sorted(name.replace("$", ".") for name, thing in things if name and kind in (None, thing.kind))

    def _properties(self) -> dict[str, str]:
        return {"k0": self._unique()} if self._chance(0.4) else {}

    def _unique(self) -> str:
        self._serial += 1
        return f"{'ABCD'[self._number]}{self._serial}"


def _named(operation: Operation) -> dict[str, Any]:
    arguments = dict(operation.arguments)
    return {"identifier": arguments.pop("name"), **arguments}


def _told(outcome: object) -> str:
    return "ok" if isinstance(outcome, Committed) else "refused" if isinstance(outcome, Conflict) else "unknown"


def learn(model: Model, commit: Operation, outcome: object) -> None:
    """Settle an unknown commit, and require that its outcome never changes."""
    told = _told(outcome)
    if told == "unknown" or (told == "refused" and model.is_anothers_place(commit)):
        return
    if commit.outcome not in ("unknown", told):
        raise Violation(f"its outcome was {commit.outcome}, and now is {outcome}: {commit}")
    commit.outcome = told


def _judge(world: World) -> None:
    """Require, once all operations have ended, that exactly the acknowledged changes exist."""
    world.settle()
    world.quiet = True
    model = world.model
    process = Process(world, 0, "judge")
    process.skew = 0.0
    process.operation = Operation("judge", "judge", {}, world.scheduler.step, model.moment)
    catalog, _ = open_catalog(process)
    for commit in model.operations:
        if commit.token is not None:
            with suppress(Refused):  # its table was dropped
                learn(model, commit, catalog.resolve(commit.token))
    model.check_all()
    directory_of(catalog).ledger.apply(lambda view: ([SetProperties({})], None))  # the catalog still accepts changes
    _require_same(world, catalog)
    for name, thing in model.now.items():
        if thing.location is not None and thing.location not in model.trodden:
            _require_files(world, name, thing.location)
        if thing.location is not None and thing.location not in model.trodden | model.mixed:
            _require_whole(world, catalog, name, thing.location)
    _require_tidy(world, process, catalog)


def _require_same(world: World, catalog: Catalog) -> None:
    """Require that the catalog shows the state of the model."""
    view = directory_of(catalog).ledger.view()
    for name, thing in world.model.now.items():
        entry = view.find(name) if name else None
        if name and (entry is None or (entry.object_type, entry.location) != (thing.kind, thing.location)):
            raise Violation(f"the catalog shows {entry} for {name} where {thing} is")


def _require_files(world: World, name: str, location: str) -> None:
    """Require that each version finds its data files."""
    for key in [key for key in world.model.finals if key.startswith(f"{ROOT}/{location}/_versions/")]:
        manifest = TableVersion.parse(world.raw.get(key), key).manifest
        for file in (file.path for fragment in manifest.fragments for file in fragment.files):
            if f"{ROOT}/{location}/{DATA}/{file}" not in world.raw._objects:
                raise Violation(f"{key} of {name} names {file}, which is missing")


def _require_whole(world: World, catalog: Catalog, name: str, location: str) -> None:
    """Require a history without gaps, equal in the commit store and the directory."""
    root = directory_of(catalog).places.dataset_root(catalog.find_table(name.replace("$", ".")))
    directory_of(catalog).commits.latest(root)  # rolls forward
    prefix = f"{ROOT}/{location}/_versions/"
    keys = [key for key in world.raw._objects if key.startswith(prefix)]
    names = [ManifestName.parse(key.rpartition("/")[2]) for key in keys]
    versions = sorted(found.version for found in names if found is not None and not found.is_staged)
    if versions != list(range(1, len(versions) + 1)):
        raise Violation(f"{name} has the versions {versions} in {location}")
    for attempt in range(1 if world.setting.remembers else ATTEMPTS):  # the first attempts find lost rows
        latest = directory_of(catalog).commits.latest(root)
        version = latest.version + 1 if latest else 1
        staged = f"{root.manifest_key(version, NamingScheme.V2)}-{len(versions)}{attempt}"
        directory_of(catalog).places.objects.put(staged, _manifest(version, f"the last {staged}"))
        own = directory_of(catalog)
        outcome = own.commits.commit(root, version, staged, None, branch=False, check=own.versions.check)
        if isinstance(outcome, Committed):
            break
    else:
        raise Violation(f"{name} has the versions {versions} in {location}, and no writer comes behind them")
    if version != len(versions) + 1:
        raise Violation(f"{name} has the versions {versions} in {location}, and the next one was {version}")
    versions.append(version)
    rows = directory_of(catalog).commits.page(root, None, None, False)
    known = [row.version for row in rows]
    if not world.setting.remembers:  # older rows may stay lost; readers of such a version list the directory
        known = [version for version in versions if version in known or version < versions[-1]]
    if known != versions or any(row.path not in world.raw._objects for row in rows):
        raise Violation(f"{name} has the versions {versions} in {location}, and the rows {rows}")


def _require_tidy(world: World, process: Process, catalog: Catalog) -> None:
    """Require that fsck finds only leftovers, and that their removal does not change the catalog."""
    before = world.model.now
    found = fsck(process, catalog, repair=True, grace=timedelta(0))
    unjudged = world.model.trodden | world.model.mixed
    trodden = [name.replace("$", ".") for name, thing in before.items() if thing.location in unjudged]
    strange = [found for found in found.findings if found.kind not in LEFTOVERS and found.object not in trodden]
    if strange:
        raise Violation(f"fsck found {strange}")
    again = fsck(process, catalog, repair=True, grace=timedelta(0))
    if any(finding.repair for finding in again.findings):
        raise Violation(f"fsck found something to repair again: {again}")
    if world.model.v1 and not trodden:
        shown = [name for name, thing in world.model.now.items() if thing.location == f"{name}.lance"]
        lost = set(shown) - set(world.model.v1_tables())
        if lost:
            raise Violation(f"V1 readers do not see {lost}")
        unowned = [name for name in world.model.v1_tables() if world.model.owner_of(f"{name}.lance") is None]
        strangers = [name for name in unowned if name not in world.model.now]
        if strangers:
            raise Violation(f"V1 readers see {strangers}, which the catalog does not have")
    world.model.check_all()
    fsck(process, catalog, repair=True, grace=timedelta(0), tables=True)
    last = fsck(process, catalog, repair=False, grace=timedelta(0), tables=True)
    if any(finding.object not in trodden for finding in last.findings):
        raise Violation(f"fsck leaves {last}")
    if world.model.now != before:
        raise Violation(f"fsck changed the catalog from {before} to {world.model.now}")
