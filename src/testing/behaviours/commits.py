"""Behaviours of commits: versions, batches and transactions."""

from __future__ import annotations

from typing import Any

import lance
from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import OTHERS, Bench, Departure, claim
from lancekeep.testing.behaviours.registry import OPERATION_404, SCHEMA, TRANSACTIONS, VERSIONS, Behaviours
from lancekeep.testing.behaviours.schema import PAIRS

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add

STAGED: dict[str, Any] = {"version": 2, "manifest_path": "_versions/2.manifest-staged"}

NO_TRANSACTION = "7c1b7c5e-2d5f-4a4c-9d0e-4f8f0a6f3f11"


@behaviour("versions/commit", "CreateTableVersion: Create a new version entry for table `id`. This operation supports "
           "`put_if_not_exists` semantics.", VERSIONS, below_too=False)  # fmt: skip
def _commit(bench: Bench) -> None:
    bench.create("t")
    for door in (bench.one, bench.other):
        try:
            lance.write_dataset(OTHERS, namespace_client=door.namespace, table_id=bench.at("t"), mode="append")
        except Exception as error:
            raise Departure(f"a native append fails: {type(error).__name__}") from error
    claim(bench.rows("t") == [1, 2, 3, 4, 4], "other rows in the table")
    listed = bench.other.ask("list_table_versions", id=bench.at("t"), descending=True).versions
    claim([version.version for version in listed] == [3, 2, 1], "not every version is listed")


@behaviour("versions/create-missing", OPERATION_404, VERSIONS, below_too=False)
def _create_missing(bench: Bench) -> None:
    bench.create("t")
    fields = {"id": bench.at("missing"), **STAGED}
    bench.one.refused("create_table_version", errors.TableNotFoundError, **fields)


@behaviour("versions/delete", "BatchDeleteTableVersions: Delete version metadata records for table `id`. Each range "
           "is start inclusive, end exclusive.", VERSIONS, below_too=False)  # fmt: skip
def _delete_versions(bench: Bench) -> None:
    bench.create("t")
    for _ in range(2):
        bench.create("t", OTHERS, mode="Overwrite")
    ranges = [{"start_version": 1, "end_version": 2}]
    deleted = bench.one.ask("batch_delete_table_versions", id=bench.at("t"), ranges=ranges)
    claim(deleted.deleted_count == 1, f"`deleted_count` is {deleted.deleted_count}")
    listed = bench.other.ask("list_table_versions", id=bench.at("t"), descending=True).versions
    claim([version.version for version in listed] == [3, 2], "other versions are listed")
    claim(bench.rows("t") == [4], "the table has other rows")
    absent, missing = errors.TableVersionNotFoundError, errors.TableNotFoundError
    bench.other.refused("describe_table_version", absent, id=bench.at("t"), version=1)
    bench.one.refused("batch_delete_table_versions", missing, id=bench.at("missing"), ranges=ranges)


# -- batches -----------------------------------------------------------------------------------------------------


@behaviour("batches/versions-missing", "BatchCreateTableVersions: All versions are committed atomically; 404 if a "
           "table does not exist.", VERSIONS, TRANSACTIONS, below_too=False)  # fmt: skip
def _batch_of_missing(bench: Bench) -> None:
    bench.create("t")
    entries = [{"id": bench.at(name), **STAGED} for name in ("t", "missing")]
    bench.one.refused("batch_create_table_versions", errors.TableNotFoundError, entries=entries)
    claim(bench.rows("t") == [1, 2, 3], "the table has other rows")


def declarations(bench: Bench, *names: str) -> list[dict[str, Any]]:
    return [{"declare_table": {"id": bench.at(name)}} for name in names]


@behaviour("batches/declare", "BatchCommitTables: Atomically commit a batch of table operations.", TRANSACTIONS)
def _batch_of_declarations(bench: Bench) -> None:
    bench.create("old")
    gone = {"deregister_table": {"id": bench.at("old")}}
    done = bench.one.ask("batch_commit_tables", operations=[*declarations(bench, "x", "y"), gone])
    claim([each.declare_table is not None for each in done.results] == [True, True, False], "not a result for each")
    claim(bench.tables() == ["x", "y"], "other tables are listed")


@behaviour("batches/all-or-none", "BatchCommitTables: Either all operations succeed, or none is applied.", TRANSACTIONS,
           below_too=False)  # fmt: skip
def _batch_with_taken_name(bench: Bench) -> None:
    bench.create("t")
    refused = {"operations": declarations(bench, "x", "t")}
    bench.one.refused("batch_commit_tables", errors.TableAlreadyExistsError, **refused)
    claim(bench.tables() == ["t"], "a part of the batch is done all the same")


# -- transactions ------------------------------------------------------------------------------------------------


@behaviour("transactions/describe", "DescribeTransaction: Return detailed information about a specific transaction.",
           TRANSACTIONS, SCHEMA, below_too=False)  # fmt: skip
def _describe_transaction(bench: Bench) -> None:
    bench.create("t", PAIRS)
    dropped = bench.one.ask("alter_table_drop_columns", id=bench.at("t"), columns=["b"])
    claim(dropped.transaction_id, "the change has no `transaction_id`")
    found = bench.other.ask("describe_transaction", id=bench.at("t", dropped.transaction_id))
    claim(found.status.upper() == "SUCCEEDED", f"the status of a committed transaction is {found.status}")
    absent = errors.TransactionNotFoundError
    bench.one.refused("describe_transaction", absent, id=bench.at("t", NO_TRANSACTION))


@behaviour("transactions/alter", "AlterTransaction: Alter a transaction with a list of actions such as setting status.",
           TRANSACTIONS, SCHEMA, below_too=False)  # fmt: skip
def _alter_transaction(bench: Bench) -> None:
    bench.create("t", PAIRS)
    dropped = bench.one.ask("alter_table_drop_columns", id=bench.at("t"), columns=["b"])
    actions = [{"set_status_action": {"status": "Succeeded"}}]
    altered = bench.other.ask("alter_transaction", id=bench.at("t", dropped.transaction_id), actions=actions)
    claim(altered.status.upper() == "SUCCEEDED", f"the status of a committed transaction becomes {altered.status}")
    absent = errors.TransactionNotFoundError
    bench.one.refused("alter_transaction", absent, id=bench.at("t", NO_TRANSACTION), actions=actions)
