"""The place of every public operation in the machine, or the reason why it has none.

A new public operation belongs here on the day it lands: with the operation of the machine that performs it, or with the
test that judges its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

READS = "reads only"
"""The reason of an operation that changes nothing."""

CATALOG: Mapping[str, str] = {
    "abandon_write": "only frees what `begin_write` reserved: test_catalog.py",
    "adopt_identity": "adopt_identity",
    "alter_namespace": "changes no table: test_catalog.py",
    "alter_table": "describe_with_properties",
    "begin_write": "plan_write",
    "change_commit_store": "upkeep",
    "cleanup": "upkeep",
    "clone": "clone_by_name",
    "close": READS,
    "commit": "commit_transaction",
    "commit_change": "change_by_name",
    "commit_compaction": "compact",
    "commit_fragments": "plan_write",
    "compact": "compact",
    "create_namespace": "begin",
    "create_partitioned": "partitions are tables of other names: test_partitioned_namespaces.py",
    "declare_table": "a declared table has no rows: test_catalog_machine.py",
    "deregister_table": "deregister",
    "drop_namespace": "the machine has one namespace: test_catalog_machine.py",
    "drop_table": "drop",
    "fsck": "upkeep",
    "maintain": "maintain",
    "materialize": "materialize",
    "migrate": "upkeep",
    "migrate_manifest_names": "the machine's tables have one scheme: test_manifest_names.py",
    "move_fragments": "needs a second store: test_base_paths.py, test_tiering.py",
    "open": "open",
    "optimize": "upkeep",
    "register_table": "register",
    "relocate": "relocate",
    "rename_table": "rename",
    "resolve": "stage",
    "transaction": "open_transaction",
    "write": "write",
}
"""Methods of `Catalog`."""

SERVICES: Mapping[str, Mapping[str, str]] = {
    "data": {
        "delete": "change_by_request",
        "insert": "change_by_request",
        "merge": "change_by_request",
        "restore": "change_by_request",
        "update": "change_by_request",
    },
    "structure": {
        "add_columns": "change_by_request",
        "alter_columns": "names and types of columns are not in the model: test_namespace_operations.py",
        "create_branch": "create_branch",
        "create_index": "change_by_request",
        "declare_columns": "adds columns of nulls: test_namespace_operations.py",
        "delete_branch": "delete_branch",
        "drop_columns": "change_by_request",
        "drop_index": "changes no rows: test_namespace_operations.py",
        "fast_forward": "moves what a branch names: test_namespace_operations.py",
        "merge_indexes": "upkeep of a maintenance policy: test_replaced_values.py",
        "fill_column": "needs a function of the caller: test_spark_jobs.py",
        "set_base_paths": "changes no rows: test_set_base_paths.py",
        "set_field_metadata": "changes no rows: test_namespace_operations.py",
        "set_metadata": "changes no rows: test_namespace_operations.py",
    },
    "tags": {"create": "tag", "delete": "tag", "update": "moves a tag: test_namespace_operations.py"},
    "views": {
        "create": "its rows are those of a query: test_materialized_views.py",
        "refresh": "its rows are those of a query: test_materialized_views.py",
        "refresh_due": "its rows are those of a query: test_materialized_views.py",
    },
}
"""Methods of the services of a catalog that change something."""

JOBS: Mapping[str, str] = {
    "backfill": "needs Spark: test_spark_jobs.py, test_spark_updates.py",
    "compact": "needs Spark: test_spark_jobs.py",
    "index": "needs Spark: test_spark_jobs.py",
    "ingest": "needs Spark: test_spark_ingest.py",
    "upsert": "needs Spark: test_spark_jobs.py",
}
"""Functions of `lancekeep.jobs` that change something."""

READING: Mapping[str, frozenset[str]] = {
    "catalog": frozenset(
        {
            *("clones_of", "commits", "dataset_root", "describe_namespace", "describe_table", "describe_version"),
            *("find_table", "history", "identity", "inspect", "is_bare", "list_all_tables", "list_namespaces"),
            *("list_tables", "managed", "namespace_exists", "page_of", "page_of_tables", "partitioned", "root_uri"),
            *("snapshot", "storage_options", "table_exists", "uri", "vends", "view"),
        }
    ),
    "data": frozenset({"analyze", "count", "explain", "query", "stats"}),
    "structure": frozenset({"branches", "expression", "index_statistics", "indexes", "require_columns_may_change"}),
    "tags": frozenset({"get", "list"}),
    "views": frozenset({"definition"}),
    "jobs": frozenset({"changes_in", "columns_of", "require_sources", "session", "ship", "verify"}),
}
"""Public names that change nothing."""
