"""Write docs/failure-modes.md, which maps failures to tests: ``python docs/failure_modes.py``."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).with_name("failure-modes.md")
TESTS = Path(__file__).parents[1] / "tests"
SOURCE = TESTS.with_name("src")

HEAD = """# Failures of other systems, and the tests that cover them here

`docs/failure_modes.py` generates this page. A test compares the two and checks that each named test exists. Every
failure happened in a real system: `lance` is lance-format/lance, `lancedb` lancedb/lancedb, `ns`
lance-format/lance-namespace, `ray` lance-format/lance-ray; other projects have their usual names. Contract tests cover
every adapter of their port.
"""

FAILURES: dict[str, list[tuple[str, str, list[str]]]] = {
    "Ambiguity: did it commit?": [
        (
            'the write was applied, the reply was lost, and a retry gets "exists"',
            "lance#7722, lance#8123, iceberg#7151",
            [
                "unit/test_table_commits.py::test_lost_replies_commit_exactly_once",
                "contracts/test_commit_stores.py::test_reserve_with_lost_reply_is_recognized",
                "contracts/test_object_stores.py::test_lost_reply_raises_fault_instead_of_conflict",
                "integration/test_manifest_table.py::test_change_with_lost_reply_is_applied_once",
                "model/test_model.py::test_every_invariant_holds_in_every_state",
            ],
        ),
        (
            "the read that should settle it fails, or comes too early",
            "iceberg#3717, polaris#5458",
            [
                "unit/test_table_commits.py::test_unreachable_store_gives_the_correct_outcome_and_deletes_nothing",
                "integration/test_faults.py::test_unknown_commit_is_raised_with_its_token_and_resolved_later",
            ],
        ),
        (
            "clean-up after Unknown",
            "iceberg#13443, duckdb-iceberg#1120",
            [
                "unit/test_commit_machine.py::test_failed_effect_never_leads_to_a_deletion",
                "unit/test_table_commits.py::test_unreachable_store_gives_the_correct_outcome_and_deletes_nothing",
                "model/test_mutations.py::test_deliberate_fault_is_found",
            ],
        ),
        (
            "a writer does not recognize its own commit, or claims another's",
            "lance#8137",
            [
                "unit/test_table_commits.py::test_writer_recognizes_its_commit_that_a_reader_finalized",
                "unit/test_table_commits.py::test_resolve_reports_a_conflict_if_another_writer_has_the_version",
                "model/test_model.py::test_every_invariant_holds_in_every_state",
            ],
        ),
        (
            "a false conflict, so an append runs twice",
            "lance#7722, ray#5282",
            [
                "integration/test_faults.py::test_native_append_with_lost_replies_commits_once",
                "integration/test_native_writers.py::test_four_processes_of_two_threads_append_to_one_table",
                "model/test_model.py::test_every_invariant_holds_in_every_state",
            ],
        ),
        (
            "REST 503 after the request succeeded",
            "iceberg#13867, iceberg#14773",
            [
                "integration/test_faults.py::test_native_append_with_503_after_success_commits_once",
                "integration/test_faults.py::test_native_append_is_unknown_if_server_answers_only_503_after_success",
                "integration/test_faults.py::test_native_append_through_repeating_proxy_commits_once",
                "integration/test_faults.py::test_operation_with_503_after_success_has_one_effect",
            ],
        ),
        (
            'S3 409 ConditionalRequestConflict taken for "exists"',
            "arrow-rs-object-store#852",
            [
                "contracts/test_object_stores.py::test_409_is_retried",
                "contracts/test_object_stores.py::test_409_with_existing_object_means_taken_key",
            ],
        ),
    ],
    "Staging and finalizing": [
        (
            "two finalizers publish ETags in the wrong order",
            "lance#8499",
            ["model/test_model.py::test_every_invariant_holds_in_every_state"],
        ),
        (
            "the copy changes the ETag",
            "lance#7964, minio#20915",
            [
                "unit/test_table_commits.py::test_missing_truncated_or_invalid_staged_manifest_is_refused",
                "simulation/test_simulation.py::test_fixed_seeds_pass",
            ],
        ),
        (
            "staging vanishes under a reader while another finalizes",
            "lance#5515, delta-rs#2452",
            [
                "model/test_model.py::test_every_invariant_holds_in_every_state",
                "unit/test_table_commits.py::test_crash_of_a_helper_is_recovered_by_the_next_participant",
            ],
        ),
        (
            "the copy fails after the reservation; the row update fails after the copy",
            "lance#8454, lance#8499",
            ["unit/test_table_commits.py::test_crash_at_any_port_call_is_recovered_by_the_next_participant"],
        ),
        (
            'a "final" row whose object is missing',
            "lance#7578",
            [
                "unit/test_table_commits.py::test_row_without_a_manifest_raises_damaged",
                "integration/test_repair.py::test_rows_left_by_native_cleanup_are_deleted",
            ],
        ),
        (
            "the row is lost or expired, so an object is overwritten",
            "delta#1410",
            [
                "unit/test_table_commits.py::test_acknowledged_version_survives_a_lost_row",
                "model/test_model.py::test_every_invariant_holds_in_every_state",
            ],
        ),
        (
            "a failover of the KV store loses acknowledged rows",
            "Jepsen on Redis",
            [
                "integration/test_redis_durability.py::*",
                "integration/test_certify.py::test_connect_refuses_unsafe_combination_of_stores",
            ],
        ),
        (
            "a listing reports staged files as versions",
            "delta#7594",
            ["unit/test_names.py::test_other_file_names_are_not_versions"],
        ),
        (
            "rows purged before the file is published",
            "unitycatalog#1912",
            [
                "unit/test_table_commits.py::test_history_without_rows_is_adopted_newest_first",
                "integration/test_repair.py::test_lost_rows_are_recorded_again",
            ],
        ),
        (
            "a stale, missing or corrupt version hint wedges writers",
            "ClickHouse#114246, iceberg#864",
            [
                "unit/test_version_hint.py::test_latest_version_is_found_with_any_hint",
                "integration/test_manifest_table.py::test_hint_written_late_misleads_no_reader",
            ],
        ),
        (
            "a reader without write permission meets a staged manifest",
            "inferred",
            ["unit/test_table_commits.py::test_read_only_reader_raises_instead_of_returning_an_older_version"],
        ),
        (
            "an orphan file at version N+1 blocks all writers",
            "ClickHouse#112102",
            ["unit/test_table_commits.py::test_acknowledged_version_survives_a_lost_row"],
        ),
    ],
    "Catalog": [
        (
            "two creators of one name both succeed",
            "lance#6143",
            [
                "integration/test_creation_races.py::test_of_four_processes_one_creates_the_table",
                "integration/test_creation_races.py::test_of_two_native_and_two_own_processes_one_creates_the_table",
                "testing/manifest_store.py::test_one_of_racing_creators_of_a_name_wins",
            ],
        ),
        (
            "a crash inside create, drop, rename, declare, register",
            "lance#6290, lancedb#3288, lancedb#3127",
            [
                "integration/test_crashes.py::*",
                "contracts/test_manifest_stores.py::test_crash_leaves_old_or_new_state_and_retry_completes",
            ],
        ),
        (
            "opening a catalog writes; a read handle stays frozen",
            "lance#7684, lance#8233",
            [
                "integration/test_modes.py::test_opening_listing_and_describing_write_nothing",
                "integration/test_catalog.py::test_change_of_another_process_is_visible_to_the_next_operation",
                "integration/test_manifest_table.py::test_requests_of_whole_operations_on_s3_are_exact",
            ],
        ),
        (
            "paging loses an entry at each boundary",
            "lancedb#3892",
            [
                "integration/test_manifest_table.py::test_index_equals_plain_dictionary",
                "integration/test_namespace_operations.py::test_pages_without_declared_tables_are_full",
                "testing/commit_store.py::test_pages_add_up_to_whole_list",
            ],
        ),
        (
            "a handle of a dropped and recreated table commits, and the new table names files that are gone",
            "an outside audit",
            [
                "integration/test_stale_handles.py::test_handle_of_a_recreated_table_is_refused",
                "readers/test_readers.py::test_every_reader_sees_acknowledged_rows",
                "readers/test_faults.py::test_deliberate_fault_is_found",
                "integration/test_stale_handles.py::test_every_operation_of_the_engine_is_committed",
            ],
        ),
        (
            "a dropped and recreated table served from an old cache",
            "lance#3592, lancedb#3626",
            [
                "integration/test_native_writers.py::test_dropped_table_refuses_commits_and_can_be_recreated",
                "testing/commit_store.py::test_deleted_and_restarted_history_is_seen",
            ],
        ),
        (
            "unknown columns dropped, unknown feature bits ignored",
            "lance#7191",
            [
                "integration/test_manifest_table.py::test_extension_columns_and_unknown_types_survive_every_write",
                "integration/test_manifest_table.py::test_unknown_content_is_refused_and_nothing_is_written",
                "integration/test_foreign_manifest_tables.py::*",
            ],
        ),
        (
            "a location that leaves the root, or that another table owns",
            "seaweedfs#10901",
            [
                "unit/test_names.py::test_location_outside_the_root_is_refused",
                "integration/test_namespace_operations.py::test_operations_do_not_follow_symbolic_links",
                "integration/test_namespace_operations.py::test_location_in_the_directory_of_another_table_is_refused",
                "fuzz/test_text.py::test_locations_never_leave_the_root",
            ],
        ),
        (
            "a namespace is dropped while a child is created",
            "ns#296",
            ["integration/test_catalog_races.py::test_concurrent_namespace_drop_and_child_creation"],
        ),
        (
            "HMS turns EXTERNAL into MANAGED",
            "impls#146",
            ["integration/test_hive_metastore.py::test_metastore_that_manages_and_drops_table_removes_no_data"],
        ),
        (
            "HMS: a connection reset during an alter",
            "iceberg#11814",
            ["integration/test_hive_metastore.py::test_connection_reset_during_alteration_loses_no_data_and_no_commit"],
        ),
    ],
    "Storage, time, clean-up": [
        (
            "the store accepts a condition and ignores it",
            "lance#6595, seaweedfs#8801, paimon#9715",
            [
                "integration/test_certify.py::test_server_that_ignores_the_condition_fails_its_checks",
                "integration/test_certify.py::test_first_change_refuses_server_that_ignores_the_condition",
            ],
        ),
        (
            "an unknown scheme falls back to unsafe commits",
            "lance#5332, lance#8774",
            ["integration/test_certify.py::test_connect_refuses_unsafe_combination_of_stores"],
        ),
        (
            "no hard link or rename on the file system",
            "lancedb#1231, lance#4353",
            ["contracts/test_object_stores.py::test_file_system_without_hard_links_is_refused"],
        ),
        (
            "power loss leaves a zero-byte head",
            "pond#110",
            [
                "integration/test_power_loss.py::test_acknowledged_commit_survives_power_loss_at_any_call",
                "integration/test_power_loss.py::test_row_acknowledged_by_sqlite_survives_power_loss_at_any_call",
            ],
        ),
        (
            "clean-up races with an active writer, breaks clones, leaves orphans",
            "lance#7514, lance#8708",
            [
                "integration/test_cleanup.py::*",
                "integration/test_manifest_table.py::test_process_suspended_during_clean_up_reads_the_latest_state_and_overwrites_nothing",
                "integration/test_killed_drivers.py::test_killed_driver_loses_and_repeats_no_work",
            ],
        ),
        (
            "clocks are wrong by an hour",
            "hudi#12927, icechunk#1635",
            [
                "integration/test_manifest_table.py::test_acknowledged_change_is_kept_however_the_local_clock_runs",
                "integration/test_manifest_table.py::test_reader_sees_the_latest_version_however_the_local_clock_runs",
                "simulation/test_simulation.py::test_fixed_seeds_pass",
            ],
        ),
        (
            "a retried writer consumes its reader twice",
            "ray#5290",
            [
                "integration/test_spark_ingest.py::test_retried_task_is_committed_once",
                "integration/test_killed_drivers.py::test_killed_driver_loses_and_repeats_no_work",
            ],
        ),
        (
            "files of the latest version are missing or truncated unnoticed; a lost manifest blocks the table",
            "an audit of this project",
            [
                "integration/test_repair.py::test_missing_and_truncated_files_of_the_latest_version_are_reported",
                "integration/test_repair.py::test_lost_latest_version_is_replaced_by_its_predecessor",
                "integration/test_repair.py::test_table_without_manifests_can_be_overwritten_or_dropped",
            ],
        ),
        (
            "an outage surfaces as bad input or damage, or a definite refusal as an unknown outcome",
            "an audit of this project",
            [
                "integration/test_store_outages.py::*",
                "contracts/test_redis_errors.py::*",
                "contracts/test_commit_stores.py::test_dynamodb_error_codes_are_mapped",
            ],
        ),
        (
            "two buckets share one DynamoDB table, and one deletes the rows of the other",
            "an audit of this project",
            ["contracts/test_commit_stores.py::test_shared_table_is_refused_to_a_second_bucket"],
        ),
        (
            "an S3 server keeps the condition of a create only for sequential requests",
            "an audit of this project",
            ["integration/test_certify.py::test_server_that_checks_first_and_writes_then_is_refused"],
        ),
        (
            "drop, rename, repair and clean-up remove files that shallow clones read",
            "an audit of this project",
            ["integration/test_clones.py::*", "readers/test_readers.py::test_every_reader_sees_acknowledged_rows"],
        ),
        (
            "repair removes a user's folder whose name looks like a table's",
            "an audit of this project",
            [
                "unit/test_maintenance.py::test_directory_with_a_foreign_file_is_reported_and_kept",
                "unit/test_maintenance.py::test_drop_keeps_foreign_files_and_the_marker_that_hides_them",
                "integration/test_fsck.py::test_repair_keeps_folders_of_users_in_every_mode",
            ],
        ),
        (
            "a stream continues on a recreated source or sink, and skips the rows of its first versions",
            "an audit of this project",
            [
                "integration/test_spark_stream.py::test_stream_refuses_source_that_was_dropped_and_recreated",
                "integration/test_spark_stream.py::test_sink_that_was_dropped_and_recreated_is_refused",
            ],
        ),
        (
            "a planted checkpoint runs code",
            "an audit of this project",
            [
                "integration/test_spark_jobs.py::test_pickle_planted_in_any_stored_file_of_a_job_is_not_executed",
                "unit/test_pickles.py::test_no_module_loads_pickles_of_stored_bytes",
            ],
        ),
        (
            "inference rounds integers beyond 64 bits",
            "an audit of this project",
            [
                "integration/test_spark_ingest_files.py::test_integers_beyond_64_bits_are_read_without_loss",
                "integration/test_spark_ingest_files.py::test_integer_that_a_double_rounds_is_bad_record",
            ],
        ),
        (
            "a forged row or token moves or deletes files outside the table",
            "an audit of this project",
            [
                "integration/test_foreign_rows.py::test_forged_row_is_refused_everywhere_and_changes_no_file",
                "integration/test_foreign_rows.py::test_forged_token_is_refused_and_changes_no_file",
                "fuzz/test_version_rows.py::*",
            ],
        ),
        (
            "a commit store restored from a snapshot, or a writer that bypasses it, hides the newest versions",
            "an audit of this project",
            [
                "integration/test_versions_without_rows.py::*",
                "model/test_mutations.py::test_deliberate_fault_is_found",
            ],
        ),
        (
            "a row that is published late reappears after its table was dropped",
            "an audit of this project",
            [
                "testing/commit_store.py::test_finalize_after_delete_creates_no_row",
                "contracts/test_commit_stores.py::test_write_racing_with_delete_restores_no_row",
            ],
        ),
        (
            "a manifest named by the other scheme makes readers refuse the table",
            "an audit of this project",
            [
                "unit/test_table_commits.py::test_manifest_with_a_v2_name_is_refused_in_a_table_of_v1_names",
                "unit/test_table_commits.py::test_manifest_with_a_v1_name_gets_a_v2_name_in_a_table_of_v2_names",
                "integration/test_versions_without_rows.py::test_manifest_with_a_v1_name_gets_a_v2_name_in_a_table_of_v2_names",
            ],
        ),
    ],
}


def page() -> str:
    lines = [HEAD]
    for chapter, failures in FAILURES.items():
        lines += [f"## {chapter}", "", "| failure | happened to | covered by |", "| --- | --- | --- |"]
        for failure, systems, tests in failures:
            covered = "<br>".join(f"`{test}`" for test in tests)
            lines.append(f"| {failure} | {systems} | {covered} |")
        lines.append("")
    return "\n".join(lines)


def missing() -> list[str]:
    """Return the failures without a test, and the named tests that do not exist."""
    rows = [row for failures in FAILURES.values() for row in failures]
    named = {test for _, _, tests in rows for test in tests}
    uncovered = [failure for failure, _, tests in rows if not tests]
    return uncovered + sorted(test for test in named if not _exists(*test.split("::")))


def _exists(file: str, name: str) -> bool:
    path = (SOURCE if file.startswith("testing/") else TESTS) / file  # the port contracts are shipped
    return path.exists() and (name == "*" or re.search(rf"def {name}\b", path.read_text()) is not None)


if __name__ == "__main__":
    PAGE.write_text(page())
