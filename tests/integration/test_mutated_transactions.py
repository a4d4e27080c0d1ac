"""Transactions of the engine, changed field by field, are refused, or they are committed as the engine commits them.

What `catalog.commit` accepts, the engine accepts on a copy of the table; the rows and row ids of both are equal, and
the engine validates the version. `LANCEKEEP_MUTATIONS` sets the number of changed transactions; their seed is then
random.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments

import lancekeep
from lancekeep.domain.manifest import DataFile, Fragment
from lancekeep.domain.operations import Append, Rewrite, Transaction
from lancekeep.format.table_version import TableVersion

MUTATIONS = int(os.environ.get("LANCEKEEP_MUTATIONS", "270"))
SEED = Random().getrandbits(32) if "LANCEKEEP_MUTATIONS" in os.environ else 1
SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64()),
        pa.field("b", pa.string()),
        pa.field("s", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        pa.field("n", pa.int64(), nullable=False),
    ]
)
TABLES: list[tuple[bool, Any]] = [(False, "2.0"), (False, "2.1"), (True, "2.1")]


def rows(*values: int) -> pa.Table:
    inner = [{"x": value, "y": str(value)} for value in values]
    return pa.table({"a": values, "b": list(map(str, values)), "s": inner, "n": values}, schema=SCHEMA)


def path_of(uri: Path, version: int) -> Path:
    return uri / "_versions" / f"{2**64 - 1 - version}.manifest"


def read(uri: Path, version: int) -> TableVersion:
    path = path_of(uri, version)
    return TableVersion.parse(path.read_bytes(), str(path))


def update(**entries: str | None) -> Any:
    return LanceOperation.UpdateMap(entries, False)


def fragments(table: Any, *values: int) -> Any:
    return write_fragments(rows(*values), table.uri, schema=table.schema, mode="append")


def commit(build: Callable[[Any], Any], table: Any) -> None:
    lance.LanceDataset.commit(table, build(table), read_version=table.version)


OPERATIONS: Mapping[str, Callable[[Any], object]] = {
    "append": partial(commit, lambda table: LanceOperation.Append(fragments(table, 100, 101) + fragments(table, 102))),
    "delete rows": lambda table: table.delete("a = 11 or a = 21"),
    "delete a fragment": lambda table: table.delete("a > 19 or a = 0"),
    "overwrite": partial(commit, lambda table: LanceOperation.Overwrite(table.schema, fragments(table, 7, 8))),
    "overwrite with another schema": lambda table: lance.write_dataset(
        pa.table({"c": [1, 2]}), table, mode="overwrite"
    ),
    "restore": partial(commit, lambda table: LanceOperation.Restore(2)),
    "configure": partial(
        commit,
        lambda table: LanceOperation.UpdateConfig(
            config_updates=update(k="v", gone=None),
            table_metadata_updates=update(k="v"),
            schema_metadata_updates=update(k="v"),
            field_metadata_updates={1: update(unit="m")},
        ),
    ),
    "update": lambda table: table.update({"b": "'new'"}, where="a in (11, 14, 22)"),
    "merge": lambda table: (
        table.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(rows(11, 77))
    ),
    "compact": lambda table: table.optimize.compact_files(target_rows_per_fragment=20),
    "compact with an index": lambda table: table.optimize.compact_files(target_rows_per_fragment=20),
}


class Case(NamedTuple):
    """A transaction of the engine.

    Attributes:
        uri: A table that has the version which the transaction follows, and its files.
        version: That version.
        transaction: The transaction.
    """

    uri: Path
    version: int
    transaction: Transaction


def case(directory: Path, name: str, *, stable: bool, storage: Any) -> Case:
    uri = directory / "t.lance"
    for first in (0, 10, 20):
        mode: Any = "append" if first else "create"
        table = lance.write_dataset(
            rows(*range(first, first + 10)),
            uri,
            mode=mode,
            enable_stable_row_ids=stable,
            data_storage_version=storage,
        )
    table.delete("a in (3, 13)")
    commit(lambda _: LanceOperation.UpdateConfig(config_updates=update(gone="x")), table)
    if "index" in name or name == "append":
        lance.dataset(uri).create_scalar_index("b", "BTREE")
    before, version = directory / "before.lance", lance.dataset(uri).version
    shutil.copytree(uri, before)
    OPERATIONS[name](lance.dataset(uri))
    latest = lance.dataset(uri).version
    for reserved in range(version + 1, latest):
        shutil.copy(path_of(uri, reserved), path_of(before, reserved))
    for part in ("data", "_deletions", "_indices"):
        if (uri / part).exists():
            shutil.copytree(uri / part, before / part, dirs_exist_ok=True)
    transaction = read(uri, latest).transaction
    assert transaction is not None
    return Case(before, latest - 1, transaction)


# -- mutations --------------------------------------------------------------------------------------------------------

Place = tuple[str | int, ...]
NAMES = ("nothing.lance", "../data/x.lance", "/etc/passwd", "", "s3://b/x.lance")
NUMBERS = (0, 1, 2, 3, 2**31 - 1, 2**32 - 1, 2**40)
LISTS = {"removed_fragment_ids", "deleted_fragment_ids", "fields_modified"}
ALLOCATED = {"physical_rows", "num_fragments"}
"""The engine allocates memory for so many rows before it looks at their file, and ends the process."""


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yield the places of all parts of a value."""
    if at:
        yield at
    if attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            if field.name not in ("others", "predicate"):
                yield from places(getattr(value, field.name), (*at, field.name))
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from places(part, (*at, number))
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from places(part, (*at, f"[{key}]"))


def part_at(value: Any, at: Place) -> Any:
    for step in at:
        value = _child(value, step)
    return value


def _child(value: Any, step: str | int) -> Any:
    if isinstance(value, Mapping):
        return next(part for key, part in value.items() if f"[{key}]" == step)
    return value[step] if isinstance(step, int) else getattr(value, step)


def with_part(value: Any, at: Place, part: Any) -> Any:
    if not at:
        return part
    step, *rest = at
    changed = with_part(_child(value, step), tuple(rest), part)
    if isinstance(value, Mapping):
        return {key: changed if f"[{key}]" == step else old for key, old in value.items()}
    if isinstance(step, int):
        return (*value[:step], changed, *value[step + 1 :])
    return attrs.evolve(value, **{step: changed})


def changed(value: Any, field: str, random: Random, others: Sequence[Any]) -> Any:
    """Return another value for a field; the same one if there is none.

    Args:
        value: The value.
        field: The name of its field.
        random: Chooses.
        others: Other parts of the transaction.
    """
    alike = [other for other in others if type(other) is type(value)]
    match value:
        case bool():
            return not value
        case Enum():
            return random.choice([each for each in type(value) if each is not value])
        case int() if field in ALLOCATED:
            return random.choice((0, 1, value + 1, value - 1, 1000))
        case int():
            return random.choice((value + 1, max(0, value - 1), value + 7, *NUMBERS))
        case str():
            return random.choice(("", value + "x", *NAMES, *alike))
        case bytes():
            flipped = bytes([value[0] ^ 1]) + value[1:] if value else b"x"
            return random.choice((b"", value[:-1], value + b"\0", flipped, *alike))
        case tuple() if not value:
            return random.choice(((0,), (1,), (99,))) if field in LISTS else value
        case tuple():
            return random.choice((value[:-1], value[1:], (*value, value[0]), (*value, value[-1]), value[::-1], ()))
        case DataFile():
            at = random.randrange(max(1, len(value.fields)))
            fields, columns = ((*row[:at], *row[at + 1 :]) for row in (value.fields, value.column_indices))
            return random.choice((attrs.evolve(value, fields=fields, column_indices=columns), *alike))
        case Mapping():
            return {}
        case None if field == "base_id":
            return random.choice((0, 1, 9))
        case None if field.startswith("inline"):
            return random.choice([b"", *(other for other in others if isinstance(other, bytes))])
        case None if field == "deletion_file":
            return next((other for other in others if type(other).__name__ == "DeletionFile"), None)
    return random.choice([value, *alike]) if isinstance(value, Fragment) else value


def mutated(transaction: Transaction, random: Random) -> tuple[Transaction, str]:
    """Return a transaction with one or two changed parts, and what changed."""
    operation, told = transaction.operation, []
    for _ in range(random.choice((1, 1, 1, 2))):
        every = list(places(operation))
        others = [part_at(operation, at) for at in every]
        for at in random.sample(every, len(every)):
            old = part_at(operation, at)
            new = changed(old, next(str(step) for step in reversed(at) if isinstance(step, str)), random, others)
            if new != old:
                operation = with_part(operation, at, new)
                told.append(f"{'.'.join(map(str, at))}: {str(old)[:60]} -> {str(new)[:60]}")
                break
    return attrs.evolve(transaction, operation=operation), "; ".join(told)


# -- the two judges ---------------------------------------------------------------------------------------------------


def engine_transaction(scratch: Path, case: Case, transaction: Transaction) -> Any:
    """Return a transaction as the engine reads it."""
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "_versions").mkdir(parents=True)
    version = read(case.uri, case.version)
    manifest = attrs.evolve(version.manifest, version=1)
    content = attrs.evolve(version, manifest=manifest, transaction=transaction).serialize()
    path_of(scratch, 1).write_bytes(content)
    try:
        return lance.dataset(scratch).read_transaction(1)
    except TypeError:  # pylance 14 cannot return rewritten indexes
        return engine_rewrite(scratch, case, transaction)


def engine_rewrite(scratch: Path, case: Case, transaction: Transaction) -> Any:
    rewrite = transaction.operation
    assert isinstance(rewrite, Rewrite)

    def converted(parts: tuple[Fragment, ...]) -> Any:
        carrier = Transaction(1, str(uuid4()), operation=Append(parts))
        return engine_transaction(scratch, case, carrier).operation.fragments

    groups = [
        LanceOperation.RewriteGroup(converted(group.old_fragments), converted(group.new_fragments))
        for group in rewrite.groups
    ]
    indexes = []
    for index in rewrite.rewritten_indices:
        details = index.new_index_details
        described = (details.type_url, details.value) if details else ("", b"")
        ids: Any = (index.old_id, index.new_id, *described, index.new_index_version)
        indexes.append(LanceOperation.RewrittenIndex(*ids))
    return lance.Transaction(transaction.read_version, LanceOperation.Rewrite(groups, indexes), transaction.uuid)


def attempt(act: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Call ``act``; a panic of the engine is no `Exception`."""
    try:
        return act(), None
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | pytest.fail.Exception):
            raise
        return None, error


def judged(lake: Path, catalog: lancekeep.Catalog, case: Case, transaction: Transaction) -> str:
    """Commit a transaction in both ways.

    Returns:
        What happened.
    """
    ours, theirs = lake / "t.lance", lake.parent / "theirs.lance"
    for uri in (ours, theirs):
        shutil.rmtree(uri, ignore_errors=True)
        shutil.copytree(case.uri, uri, copy_function=os.link)
    _, refused = attempt(lambda: catalog.commit("t", transaction))
    if refused is not None:
        assert isinstance(refused, lancekeep.LancekeepError), repr(refused)
        assert lance.dataset(ours).version == case.version, "something was committed"
        return "refused"
    scratch = lake.parent / "scratch.lance"
    native, error = attempt(
        lambda: lance.LanceDataset.commit(
            theirs, engine_transaction(scratch, case, transaction), read_version=case.version
        )
    )
    assert error is None, f"the engine refuses it: {error}"
    expected, error = attempt(lambda: native.to_table(with_row_id=True))
    assert error is None, f"the engine cannot read it: {error}"
    table = lance.dataset(ours)
    assert table.to_table(with_row_id=True) == expected
    table.validate()
    return "accepted"


@pytest.mark.parametrize(("stable", "storage"), TABLES, ids=lambda value: str(value))
def test_changed_transactions_are_refused_or_committed_as_by_the_engine(
    stable: bool, storage: Any, tmp_path: Path
) -> None:
    cases = {}
    for name in OPERATIONS:
        (directory := tmp_path / name).mkdir()
        cases[name] = case(directory, name, stable=stable, storage=storage)
    (lake := tmp_path / "lake").mkdir()
    catalog = lancekeep.connect(str(lake), storage_options={"fsync": "false"})
    assert {name: judged(lake, catalog, found, found.transaction) for name, found in cases.items()} == dict.fromkeys(
        cases, "accepted"
    )
    found: Counter[str] = Counter()
    for number in range(MUTATIONS // len(TABLES)):
        name = list(cases)[number % len(cases)]
        random = Random(f"{SEED}-{stable}-{storage}-{number}")
        transaction, told = mutated(cases[name].transaction, random)
        try:
            found[judged(lake, catalog, cases[name], transaction)] += 1
        except Exception as error:
            raise AssertionError(f"seed {SEED}, mutation {number}, {name}: {told}: {error}") from error
    print(f"seed {SEED}: {dict(found)}")
    assert min(found["accepted"], found["refused"]) > MUTATIONS // len(TABLES) // 10
