"""The place of every public operation in the machine, or the reason why it has none.

A new public operation belongs here on the day it lands: with the operation of the machine that performs it, or with the
test that judges its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

READS = "reads only"
"""The reason of an operation that changes nothing."""

CATALOG: Mapping[str, str] = {
    "abandon_write": "abandon",
    "alter_namespace": "drop_namespace",
    "alter_table": "describe_with_properties",
    "begin_write": "plan_write",
    "clone": "clone_by_name",
    "close": READS,
    "commit": "commit_transaction",
    "commit_change": "change_by_name",
    "commit_fragments": "plan_write",
    "create_namespace": "begin",
    "declare_table": "declare",
    "deregister_table": "deregister",
    "drop_namespace": "drop_namespace",
    "drop_table": "drop",
    "initialize": "sets properties of a new catalog: test_undrop.py",
    "open": "open",
    "protect": "protect",
    "purge": "purge",
    "register_table": "register",
    "rename_table": "rename",
    "resolve": "stage",
    "transaction": "open_transaction",
    "undrop": "undrop",
    "unprotect": "protect",
    "write": "write",
}
"""Methods of `Catalog`."""

SERVICES: Mapping[str, Mapping[str, str]] = {
    "branches": {"create": "create_branch", "delete": "delete_branch", "fast_forward": "fast_forward"},
    "changes": {},
    "events": {"record": "writes outside of tables: test_events.py"},
    "partitions": {
        "create": "partitions are tables of other names: test_partitioned_namespaces.py",
        "drop": "partitions are tables of other names: test_partitioned_namespaces.py",
        "finish_create": "partitions are tables of other names: test_partitioned_namespaces.py",
    },
    "data": {
        "delete": "change_by_request",
        "insert": "change_by_request",
        "merge": "change_by_request",
        "update": "change_by_request",
    },
    "structure": {
        "add_columns": "change_by_request",
        "add_segments": "needs Spark: test_spark_jobs.py",
        "alter_columns": "change_by_request",
        "create_index": "change_by_request",
        "declare_columns": "declare_column",
        "drop_columns": "change_by_request",
        "drop_index": "keep_index",
        "merge_indexes": "keep_index",
        "fill_column": "fill_column",
        "set_base_paths": "set_base_paths",
        "set_field_metadata": "set_metadata",
        "set_metadata": "set_metadata",
    },
    "upkeep": {
        "adopt_identity": "adopt_identity",
        "change_commit_store": "upkeep",
        "cleanup": "upkeep",
        "commit_compaction": "compact",
        "compact": "compact",
        "export_manifest": "needs entries in a database: test_export_manifest.py",
        "fsck": "upkeep",
        "maintain": "maintain",
        "materialize": "materialize",
        "migrate": "upkeep",
        "migrate_manifest_names": "migrate_names",
        "move_fragments": "tier",
        "optimize": "upkeep",
        "direct_commits": "settle_direct_commits",
        "relocate": "relocate",
    },
    "tags": {"create": "tag", "delete": "tag", "update": "move_tag"},
    "versions": {"restore": "change_by_request"},
    "views": {
        "create": "create_view",
        "refresh": "refresh_view",
        "refresh_due": "refresh_view",
    },
}
"""Methods of the services of a catalog that change something."""

FUNCTIONS: Mapping[str, str] = {
    "backup": "writes a copy of the whole catalog: test_backups.py",
    "copy_catalog": "changes the home of the entries: test_copy_catalog.py",
    "digest": "digest",
    "drop_fragments": "gives rows up that cannot be read: test_verification.py",
}
"""Functions of `lancekeep` that change tables."""

ROUTES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "add_grant",
            "create_key",
            "expire_key",
            "remove_grant",
            "replace_policy",
            "revoke_key",
            "rotate_key",
        ),
        "changes the files of the server, and no table: test_administration.py",
    ),
    "alter_namespace": "drop_namespace",
    "alter_table": "describe_with_properties",
    "alter_table_add_columns": "change_by_request",
    "alter_table_alter_columns": "change_by_request",
    "alter_table_backfill_columns": "fill_column",
    "alter_table_drop_columns": "change_by_request",
    "alter_transaction": "stage",
    "batch_commit_tables": "open_transaction",
    "batch_create_table_versions": "open_transaction",
    "batch_delete_table_versions": "removes versions that the caller names: test_catalog.py",
    "create_empty_table": "declare",
    "create_materialized_view": "create_view",
    "create_namespace": "begin",
    "create_table": "create",
    "create_table_branch": "create_branch",
    "create_table_index": "change_by_request",
    "create_table_scalar_index": "change_by_request",
    "create_table_tag": "tag",
    "create_table_version": "change_by_handle",
    "declare_table": "declare",
    "delete_from_table": "change_by_request",
    "delete_table_branch": "delete_branch",
    "delete_table_tag": "tag",
    "deregister_table": "deregister",
    "drop_namespace": "drop_namespace",
    "drop_table": "drop",
    "drop_table_index": "keep_index",
    "insert_into_table": "change_by_request",
    "merge_insert_into_table": "change_by_request",
    "protect_object": "protect",
    "purge_table": "purge",
    "refresh_materialized_view": "refresh_view",
    "register_table": "register",
    "rename_table": "rename",
    "restore_table": "change_by_request",
    "undrop_table": "undrop",
    "unprotect_object": "protect",
    "update_field_metadata": "set_metadata",
    "update_table": "change_by_request",
    "update_table_schema_metadata": "set_metadata",
    "update_table_tag": "move_tag",
}
"""Routes of the server that change something; except for administration, each is a method of the namespace, too."""

PROCEDURES: Mapping[str, str] = {
    "add_columns": "change_by_request",
    "analyze": "needs Spark: test_spark_statistics.py",
    "cleanup": "upkeep",
    "compact": "needs Spark: test_spark_sql_tables.py",
    "create_branch": "create_branch",
    "create_index": "needs Spark: test_spark_sql_tables.py",
    "create_tag": "tag",
    "drop_branch": "delete_branch",
    "drop_index": "keep_index",
    "drop_tag": "tag",
    "fast_forward": "fast_forward",
    "fsck": "upkeep",
    "migrate": "upkeep",
    "optimize": "needs Spark: test_spark_sql_tables.py",
    "register_table": "register",
    "rollback_to_timestamp": "change_by_request",
    "rollback_to_version": "change_by_request",
    "upsert_from": "needs Spark: test_spark_sql_tables.py",
}
"""Procedures of Spark SQL, which call methods of the catalog and its services."""

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
            *("clones_of", "commit_rows", "diff", "describe_namespace", "describe_table"),
            *("find_table", "inspect", "list_all_tables", "list_dropped", "list_namespaces"),
            *("list_tables", "namespace_exists", "scan", "root_uri"),
            *("snapshot", "storage_options", "table_exists", "unresolved_commits"),
        }
    ),
    "data": frozenset({"analyze", "count", "explain", "query", "stats"}),
    "branches": frozenset({"list"}),
    "changes": frozenset({"latest", "read", "watch"}),
    "events": frozenset({"latest", "read", "watch"}),
    "partitions": frozenset({"begin_create", "open"}),
    "structure": frozenset({"expression", "index_statistics", "indexes", "require_columns_may_change"}),
    "tags": frozenset({"get", "list"}),
    "upkeep": frozenset({"identity", "quotas"}),
    "versions": frozenset({"at", "describe", "history", "manifest"}),
    "views": frozenset({"definition"}),
    "functions": frozenset({"certify", "connect", "lost_rows", "verify"}),
    "jobs": frozenset({"changes_in", "columns_of", "require_sources", "session", "ship", "verify"}),
}
"""Public names that change nothing."""
