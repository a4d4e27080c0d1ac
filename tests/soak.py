"""The tests that `make test` leaves to `make soak`.

They are variants of tests whose other variants `make test` runs, and long ones of what shorter tests cover, too. An
entry is a test function, one of its variants, ``[`` and the beginning of such variants of all tests of the file, or a
class. `KEPT` are exceptions.
"""

from __future__ import annotations

SOAK = {
    "tests/contracts/test_commit_stores.py": {
        "TestConditionalPutOnS3::test_one_of_racing_threads_wins_each_version",
        "TestConditionalPutOnS3::test_pages_add_up_to_whole_list",
        "TestDynamoDBInContainer",
    },
    "tests/contracts/test_object_stores.py": {
        "TestS3InAContainer",
    },
    "tests/integration/test_appends.py": {
        "test_another_schema_and_a_large_append_commit_alone[redis]",
        "test_another_schema_and_a_large_append_commit_alone[files]",
        "test_another_schema_and_a_large_append_commit_alone[conditional-put]",
        "[conditional-put-s3",
        *(
            f"test_another_schema_and_a_large_append_commit_alone[{variant}]"
            for variant in (
                "conditional-put-s3",
                "dynamodb",
            )
        ),
        "test_appends_follow_deletes_compaction_and_new_columns[dynamodb]",
    },
    "tests/integration/test_bucket_roots.py": {
        *(
            f"test_bucket_root_supports_every_operation[{variant}]"
            for variant in (
                "v1-sqlite",
                "v2-sqlite",
            )
        ),
    },
    "tests/integration/test_certify.py": {
        "test_honest_stores_pass_and_nothing_of_the_measuring_is_left[conditional-put-s3]",
        "test_honest_stores_pass_and_nothing_of_the_measuring_is_left[dynamodb]",
        "test_server_that_ignores_the_condition_fails_its_checks[POST-create_only_multipart]",
        "test_server_without_the_condition_is_usable_with_a_store_that_remembers[compatible]",
        "test_server_without_the_condition_is_usable_with_a_store_that_remembers[v2]",
    },
    "tests/integration/test_cleanup.py": {
        "[conditional-put on s3",
        "[sqlite on s3",
    },
    "tests/integration/test_clones.py": {
        "[sqlite on s3",
    },
    "tests/integration/test_commit_digests.py": {
        "test_other_engines_ignore_the_records[lancedb]",
        *(
            f"test_every_kind_of_commit_records_its_files[{variant}]"
            for variant in (
                "sqlite",
                "storage-managed",
            )
        ),
        "test_other_engines_ignore_the_records[pylance-4.0.2]",
    },
    "tests/integration/test_conditional_requests.py": {
        "test_304_stands_for_the_bytes_after_many_changes",
    },
    "tests/integration/test_conformance.py": {
        "test_our_server_conforms[]",
    },
    "tests/integration/test_copy_catalog_faulty_servers.py": {
        "test_fault_of_any_request_loses_and_doubles_no_entry[404-lancekeep]",
        *(
            f"test_fault_of_any_request_loses_and_doubles_no_entry[{variant}]"
            for variant in (
                "403-lancekeep",
                "403-pylance",
                "404-pylance",
                "429-lancekeep",
                "429-pylance",
                "500-lancekeep",
                "500-pylance",
                "garbage-lancekeep",
                "garbage-pylance",
                "lost-pylance",
                "slow-lancekeep",
                "slow-pylance",
            )
        ),
        "test_names_and_properties_of_every_kind[pylance]",
        "test_server_without_an_operation_leaves_the_source_the_home[/create]",
        "test_server_without_an_operation_leaves_the_source_the_home[/list]",
    },
    "tests/integration/test_copy_catalog_random.py": {
        "test_random_catalog_is_equal_in_each_home_that_can_hold_it[hive]",
    },
    "tests/integration/test_crashes.py": {
        *(
            f"test_crash_leaves_old_or_new_state_and_repair_removes_leftovers[{variant}]"
            for variant in (
                "compatible-relocate and keep",
                "compatible-relocate",
                "compatible-rename into a namespace",
                "compatible-rename native",
                "v2-relocate",
            )
        ),
    },
    "tests/integration/test_creation_races.py": {
        "test_of_four_processes_one_creates_the_table_on_s3",
    },
    "tests/integration/test_digests.py": {
        "test_digests_stay_valid[checked]",
        *(
            f"test_digests_stay_valid[{variant}]"
            for variant in (
                "cleaned_natively",
                "relocated",
            )
        ),
    },
    "tests/integration/test_foreign_rows.py": {
        "test_forged_row_is_refused_everywhere_and_changes_no_file[dynamodb]",
    },
    "tests/integration/test_events.py": {
        "test_kills_lose_and_repeat_no_event[40]",
    },
    "tests/integration/test_hive_home.py": {
        "test_change_that_is_killed_anywhere_is_made_or_not[5]",
        "test_change_with_a_lost_reply_is_made_once[5]",
        "test_change_that_is_killed_anywhere_is_made_or_not[2]",
    },
    "tests/integration/test_hive_metastore.py": {
        "test_connection_reset_during_alteration_loses_no_data_and_no_commit",
        "test_spark_pylance_and_lancedb_share_a_catalog_in_the_metastore",
    },
    "tests/integration/test_index_kinds.py": {
        "test_indexed_tables_are_healthy_and_can_be_cloned_moved_and_compacted[__lance_frag_reuse-conditional-put://-v2]",
        *(
            f"test_indexed_tables_are_healthy_and_can_be_cloned_moved_and_compacted[{variant}]"
            for variant in (
                "None-sqlite-compatible",
                "__lance_mem_wal-None-compatible",
            )
        ),
    },
    "tests/integration/test_index_verification.py": {
        "test_entries_of_replaced_values_are_found[LABEL_LIST]",
        "test_rows_that_an_index_lost_are_found[BITMAP]",
        "test_rows_that_an_index_lost_are_found[INVERTED]",
        *(
            f"test_entries_of_replaced_values_are_found[{variant}]"
            for variant in (
                "BITMAP",
                "INVERTED",
            )
        ),
        "test_right_indexes_have_no_problems[False]",
        *(
            f"test_rows_that_an_index_lost_are_found[{variant}]"
            for variant in (
                "BLOOMFILTER",
                "LABEL_LIST",
                "NGRAM",
                "ZONEMAP",
            )
        ),
    },
    "tests/integration/test_interoperability.py": {
        "test_each_call_is_answered_alike[manifest first]",
        "test_after_every_step_both_show_the_same[manifest first-in turn, lancekeep first]",
        *(
            f"test_after_every_step_both_show_the_same[{variant}]"
            for variant in (
                "compatible-in turn, native first",
                "compatible-lancekeep writes",
                "compatible-native writes",
                "manifest first-in turn, native first",
                "manifest first-lancekeep writes",
                "manifest first-native writes",
                "v2-in turn, native first",
                "v2-native writes",
            )
        ),
        "test_each_call_is_answered_alike[v2]",
    },
    "tests/integration/test_keyed_appends.py": {
        *(
            f"test_a_crash_at_each_call_leaves_an_append_that_can_be_repeated[{variant}]"
            for variant in (
                "after-sqlite",
                "after-storage",
                "before-sqlite",
            )
        ),
    },
    "tests/integration/test_keyed_upserts.py": {
        "test_a_crash_at_each_call_leaves_an_upsert_that_can_be_repeated[sqlite-before]",
        "test_a_crash_at_each_call_leaves_an_upsert_that_can_be_repeated[storage-after]",
        "[dynamodb",
        "[postgres",
        "[redis",
    },
    "tests/integration/test_killed_drivers.py": {
        "test_killed_driver_loses_and_repeats_no_work",
    },
    "tests/integration/test_killed_operations.py": {
        "test_killed_operation_is_repeated_or_repaired[relocate]",
        *(
            f"test_killed_operation_is_repeated_or_repaired[{variant}]"
            for variant in (
                "create",
                "digest",
                "materialize",
                "merge indexes",
                "move fragments",
                "purge",
                "rename",
                "shallow clone",
            )
        ),
    },
    "tests/integration/test_lance_ray.py": {
        "test_scan_reads_one_version_into_ray",
        "test_writes_appends_and_overwrites_are_seen",
        "test_columns_indexes_and_compaction",
        *(
            f"test_writes_appends_and_overwrites_are_seen[{variant}]"
            for variant in (
                "conditional-put-s3",
                "dynamodb",
            )
        ),
    },
    "tests/integration/test_lancedb.py": {
        "test_every_operation_of_a_table_succeeds[dynamodb]",
        *(
            f"test_threads_lose_no_row[{variant}]"
            for variant in (
                "conditional-put-s3",
                "dynamodb",
            )
        ),
    },
    "tests/integration/test_large_tables.py": {
        *(
            f"test_progress_is_shown_on_a_terminal_only[{variant}]"
            for variant in (
                "fsck",
                "verify",
            )
        ),
    },
    "tests/integration/test_lsm.py": {
        "test_rows_of_lsm_writes_are_counted_kept_and_merged[sqlite]",
    },
    "tests/integration/test_direct_commits.py": {
        "test_direct_commit_is_held_until_it_is_adopted_or_discarded[hive]",
        "test_stopped_decision_is_completed[after-adopt]",
        "test_stopped_decision_is_completed[before-discard]",
        "[file",
        *(
            f"{test}[hive]"
            for test in (
                "test_property_and_its_default",
                "test_table_holds_direct_commits_wherever_it_moves",
            )
        ),
    },
    "tests/integration/test_managed_tables.py": {
        "[file",
        "[hive",
        *(
            f"test_crash_during_a_change_in_a_server_loses_no_version[{variant}]"
            for variant in (
                "wanted0-hive",
                "wanted1-hive",
            )
        ),
    },
    "tests/integration/test_manifest_names.py": {
        "test_migration_renames_every_manifest_of_table_and_branch[dynamodb]",
        "test_migration_that_dies_at_any_call_is_completed_by_the_next[]",
    },
    "tests/integration/test_mixed_manifest_names.py": {
        "test_mixture_of_pylance_is_never_changed_until_it_is_migrated[conditional-put on s3-renamed11]",
        *(
            f"test_mixture_of_pylance_is_never_changed_until_it_is_migrated[{variant}]"
            for variant in (
                "sqlite on s3-renamed12",
                "storage on s3-renamed10",
                "storage on s3-renamed13",
            )
        ),
    },
    "tests/integration/test_modes.py": {
        "[s3-conditional-put",
        *(
            f"test_table_in_the_root_supports_every_operation[{variant}]"
            for variant in (
                "s3-conditional-put-v1",
                "s3-v1",
            )
        ),
    },
    "tests/integration/test_namespace_behaviours.py": {
        "test_page_of_departures_matches_the_native_namespace",
    },
    "tests/integration/test_namespace_operations.py": {
        "[s3-root-'_v",
        "[s3-root-'\\xe9\\xe9",
        "[s3-root-'emoji",
        "[s3-root-'e\\u",
        "[s3-root-'q",
        "[s3-child",
        *(f"[s3-root-'{beginning}" for beginning in (".", "C", "h", "n", "p", "t", "x")),
        "test_rename_loses_no_acknowledged_append[sqlite]",
    },
    "tests/integration/test_native_writers.py": {
        "test_killed_writer_loses_nothing_and_does_not_block[conditional-put-s3]",
        "test_killed_writer_loses_nothing_and_does_not_block[dynamodb]",
        "test_branches_have_histories_of_their_own[conditional-put-s3]",
        *(
            f"test_four_processes_of_two_threads_append_to_one_table[{variant}]"
            for variant in (
                "conditional-put-s3",
                "dynamodb",
                "files",
                "redis",
            )
        ),
    },
    "tests/integration/test_old_engines.py": {
        *(
            f"test_stale_handles_append_after_group_commits[{variant}]"
            for variant in (
                "conditional-put-pylance-4.0.2",
                "none-lancedb",
                "sqlite-lancedb",
                "sqlite-pylance-4.0.2",
            )
        ),
    },
    "tests/integration/test_page_browser.py": {
        "test_catalog_of_a_million_tables",
        "test_every_page_is_accessible_and_fits[more]",
        "test_history_of_ten_thousand_versions",
    },
    "tests/integration/test_processes.py": {
        "test_child_that_was_forked_during_an_append_is_refused[conditional-put-s3]",
        "test_threads_append_while_the_interpreter_shuts_down[conditional-put-s3]",
    },
    "tests/integration/test_postgres_failover.py": {
        *(f"test_failover_during_writes_hides_no_acknowledged_row[{seed}]" for seed in range(1, 6)),
    },
    "tests/integration/test_progress.py": {
        "test_export_shows_a_bar_unless_it_is_quiet[False]",
    },
    "tests/integration/test_relocation.py": {
        *(
            f"test_grouped_appends_beside_the_move_are_neither_lost_nor_repeated[{variant}]"
            for variant in (
                "conditional-put",
                "sqlite",
            )
        ),
        "[sqlite on s3",
        "test_branches_move_with_the_table[conditional-put on s3]",
        "test_commits_beside_the_move_arrive_or_are_refused[conditional-put on s3-v2]",
        "test_handle_from_before_the_move_commits_nothing[conditional-put on s3-False]",
        "test_killed_move_is_completed_by_the_next_call[files]",
        "test_moved_clone_reads_its_source[conditional-put on s3]",
    },
    "tests/integration/test_repair.py": {
        "[conditional-put on s3",
        "[sqlite on s3",
        *(
            f"test_missing_and_truncated_files_of_the_latest_version_are_reported[{variant}]"
            for variant in (
                "conditional-put on s3-_deletions/-empty",
                "conditional-put on s3-_deletions/-missing",
                "conditional-put on s3-_indices/-empty",
                "conditional-put on s3-_indices/-missing",
                "conditional-put on s3-data/-missing",
            )
        ),
        "test_unreadable_latest_version_is_reported_and_kept[conditional-put on s3-]",
    },
    "tests/integration/test_server_example.py": {
        "test_a_server_runs_with_what_the_chart_renders",
    },
    "tests/integration/test_server_soak.py": {
        "test_clients_of_a_server_that_restarts_lose_and_double_nothing",
    },
    "tests/integration/test_spark_columnar.py": {
        "test_executors_of_a_cluster_return_columns",
    },
    "tests/integration/test_spark_examples.py": {
        "test_killed_pipeline_is_completed_and_repeated_without_new_versions",
    },
    "tests/integration/test_spark_jar.py": {
        "test_sessions_of_connect_share_a_process_that_may_be_killed",
    },
    "tests/integration/test_spark_memory.py": {
        "test_plan_size_does_not_grow_with_fragments",
        "test_memory_does_not_grow_with_table_size[copy]",
        *(
            f"test_memory_does_not_grow_with_table_size[{variant}]"
            for variant in (
                "array",
                "parquet",
                "stream",
                "upsert",
            )
        ),
    },
    "tests/integration/test_spark_partitioned.py": {
        "test_procedures_maintain_all_partitions",
    },
    "tests/integration/test_spark_row_level.py": {
        "test_cancelled_statement_changes_nothing[insert_overwrite]",
        "test_cancelled_statement_changes_nothing[update]",
        "test_cancelled_statement_changes_nothing[delete]",
        "test_cancelled_statement_changes_nothing[create]",
        "test_concurrent_merges_insert_no_key_twice[False]",
    },
    "tests/integration/test_spark_source.py": {
        "test_failing_task_commits_nothing[overwrite]",
    },
    "tests/integration/test_spark_updates.py": {
        "test_updates_of_indexed_columns_leave_no_entries_of_old_values[plain]",
        "test_first_update_creates_the_branch[plain]",
        *(
            f"test_merges_give_rows_of_the_model[{variant}]"
            for variant in (
                "plain-2.0",
                "plain-2.1",
                "stable-2.1",
            )
        ),
        *(
            f"test_statements_give_rows_of_the_model[{variant}]"
            for variant in (
                "plain-2.0",
                "plain-2.1",
                "stable-2.1",
            )
        ),
    },
    "tests/integration/test_spark_writers.py": {
        "test_concurrent_spark_native_and_lancekeep_writers",
    },
    "tests/integration/test_stream_soak.py": {
        "test_table_of_two_streams_and_a_batch_writer_is_exact",
    },
    "tests/integration/test_tiering.py": {
        "[conditional-put on s3",
        "[s3 to s3",
        "[sqlite on s3",
    },
    "tests/integration/test_webhooks.py": {
        "test_kills_of_servers_and_of_the_subscriber_lose_no_event[2-40]",
    },
    "tests/model/test_direct_commits.py": {
        *(
            f"test_no_direct_commit_is_reflected_and_no_commit_is_lost[{variant}]"
            for variant in (
                "1 writers (1 commits), 1 direct writers, 1 misled writers, from version 1, looking",
                "2 writers (1+1 commits), 1 direct writers, from version 1, looking",
            )
        ),
    },
    "tests/model/test_model.py": {
        "test_together_the_settings_take_every_transition",
        *(
            f"test_every_invariant_holds_in_every_state[{variant}]"
            for variant in (
                "1 writers (1 commits), 1 hasty, 1 readers, 2 faults, from version 1",
                "1 writers (1 commits), 1 hasty, 2 faults, 1 rows lost, from version 1",
                "2 writers (1+1 commits), 1 cleaners, 2 faults, from version 1",
                "2 writers (1+1 commits), 1 readers, 1 cleaners, from version 1",
                "2 writers (1+1 commits), 1 readers, 2 faults, from version 0",
                "2 writers (1+1 commits), 2 faults, 1 rows lost, from version 1",
                "2 writers (2+1 commits), 1 cleaners, from version 1",
                "2 writers (2+2 commits), 1 readers, from version 1",
                "2 writers (1+1 commits), 1 faults, 1 failovers, from version 2",
                "2 writers (2+1 commits), 1 readers, 1 faults, from version 1",
            )
        ),
    },
    "tests/model/test_mutations.py": {
        *(
            f"test_without_a_fault_the_same_settings_are_sound[{variant}]"
            for variant in (
                "2 writers (1+1 commits), 1 cleaners, 1 faults, from version 1",
                "2 writers (1+1 commits), 2 faults, 1 rows lost, from version 1",
            )
        ),
    },
    "tests/model/test_transactions.py": {
        "test_all_or_none_in_every_state[opposite orders and a reader]",
    },
    "tests/readers/test_readers.py": {
        "test_every_reader_sees_acknowledged_rows_on_s3",
        *(
            f"test_every_reader_sees_acknowledged_rows[{variant}]"
            for variant in (
                "v1",
                "v2",
            )
        ),
    },
    "tests/contracts/test_hive_commit_store.py": {
        "test_killed_metastore_and_database_are_unavailable_and_keep_rows",
    },
    "tests/integration/test_served_catalogs.py": {
        "test_workers_serve_all_catalogs_and_a_reload_reads_them_again",
    },
    "tests/integration/test_served_maintenance.py": {
        "test_a_server_maintains_the_tables_of_its_callers[off]",
    },
    "tests/attacks/test_hostile_callers.py": {
        "test_uploads_that_stall_hold_no_thread[content-length: 1000000]",
    },
    "tests/integration/test_completion.py": {
        "test_without_a_cache_commands_are_completed[relative]",
    },
    "tests/unit/test_packaging.py": {
        "test_twine_accepts_both_distributions",
    },
    "tests/integration/test_upserts.py": {
        "test_each_version_has_exactly_the_effect_and_counts_of_its_upserts[conditional-put-60]",
        "test_each_version_has_exactly_the_effect_and_counts_of_its_upserts[sqlite-12]",
        "test_each_version_has_exactly_the_effect_and_counts_of_its_upserts[sqlite workers-60]",
        *(
            f"test_group_that_loses_looks_its_keys_up_again[{variant}]"
            for variant in (
                "appends-none",
                "deletes-none",
                "updates-none",
            )
        ),
        *(
            f"test_killed_writers_lose_and_double_nothing[{variant}]"
            for variant in (
                "-200",
                "-8",
                "sqlite-200",
            )
        ),
        "test_waiting_upserts_share_a_version_and_have_their_own_counts[conditional-put]",
    },
    "tests/integration/test_workers.py": {
        "test_committer_that_is_stopped_and_killed_loses_and_doubles_no_row[10]",
        "test_committer_that_is_stopped_and_killed_loses_and_doubles_no_upsert",
    },
    "tests/integration/test_backups.py": {
        "test_drill_of_the_page_beside_writers[redis-s3]",
    },
    "tests/integration/test_recreated_tables.py": {
        "test_operation_on_a_recreated_table_changes_the_new_table_or_nothing[repair-conditional-put-4]",
        "test_operation_on_a_recreated_table_changes_the_new_table_or_nothing[delete a branch-conditional-put-4]",
        "test_operation_on_a_recreated_table_changes_the_new_table_or_nothing[clean up-conditional-put-4]",
    },
    "tests/integration/test_rename_races.py": {
        *(
            f"test_write_to_a_table_that_is_renamed_or_dropped_is_committed_or_refused[{write}-{leave}-conditional-put]"
            for write in ("fragments", "append", "overwrite", "restore", "delete")
            for leave in ("renamed", "dropped")
        ),
        *(
            f"test_read_of_a_table_that_is_renamed_or_dropped_finds_no_table[{read}-{leave}-conditional-put]"
            for read in ("open", "open by version", "describe", "indexes", "branches")
            for leave in ("renamed", "dropped")
        ),
    },
}


KEPT = {
    "tests/contracts/test_object_stores.py::TestS3InAContainer::test_one_of_racing_creators_wins",
    "tests/integration/test_appends.py::test_appends_follow_deletes_compaction_and_new_columns[conditional-put-s3]",
    "tests/integration/test_cleanup.py::test_files_of_tags_branches_and_clones_are_kept[conditional-put on s3]",
    "tests/integration/test_keyed_upserts.py::test_a_repeated_request_overtakes_the_first_before_its_commit[postgres-True]",
    "tests/integration/test_keyed_upserts.py::test_a_repeated_request_overtakes_the_first_before_its_commit[redis-True]",
    "tests/integration/test_keyed_upserts.py::test_keyed_upserts_share_a_version_and_repeat_their_counts[dynamodb]",
    "tests/integration/test_keyed_upserts.py::test_keyed_upserts_share_a_version_and_repeat_their_counts[postgres]",
    "tests/integration/test_keyed_upserts.py::test_keyed_upserts_share_a_version_and_repeat_their_counts[redis]",
    "tests/integration/test_managed_tables.py::test_storage_managed_tables_move_and_return[hive-None]",
    "tests/integration/test_managed_tables.py::test_table_is_managed_by_the_manager_that_its_property_names[hive]",
    "tests/integration/test_repair.py::test_incomplete_manifest_is_removed[conditional-put on s3]",
    "tests/integration/test_tiering.py::test_commits_beside_the_move_are_kept[conditional-put on s3]",
}


def is_soak(nodeid: str) -> bool:
    """Return whether a test is left to `make soak`."""
    file, _, name = nodeid.partition("::")
    function, bracket, variant = name.partition("[")
    if KEPT & {nodeid, f"{file}::{function}"}:
        return False
    entries = SOAK.get(file, set())
    beginnings = tuple(entry for entry in entries if entry.startswith("["))
    in_class = function.partition("::")[0] in entries
    return name in entries or function in entries or in_class or f"{bracket}{variant}".startswith(beginnings)
