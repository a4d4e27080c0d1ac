"""Deliberate faults in single modules, each with a test of another suite that has to find it.

A fault switches one protection off where the product has it. Faults that need a sequence of operations are in
``readers/faults.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from planted.fault import Fault, nothing

from lancekeep.application.entries.clones import Clones
from lancekeep.application.rows.digests import Digests
from lancekeep.application.rows.recorded_keys import Claim, TableKeys
from lancekeep.domain.digests import FileDigest
from lancekeep.domain.recorded_keys import GROUPS, Group, object_name
from lancekeep.format.tiering import data_files


def _never(*_: Any, **__: Any) -> bool:
    return False


def _always(*_: Any, **__: Any) -> bool:
    return True


_ENDS = Clones._ends


def _last_end(self: Clones, location: str) -> list[tuple[str, bytes]]:
    return list(_ENDS(self, location))[-1:]


def _believed(name: str, content: bytes) -> list[tuple[str, FileDigest]]:
    """As ``decode_digests``, but the name of a record is not compared with its content."""
    lines = map(json.loads, content.splitlines())
    return [(line["file"], FileDigest(line["size"], line["blake2b"])) for line in lines]


def _replaced(self: Digests, history: str, before: Sequence[Any], kept: Collection[Any]) -> None:
    """As ``Digests._replace``, but also remove the new record if it has the name of an old one."""
    self.add(history, kept)
    for info, _ in before:
        self.objects.delete(info.key)


def _unwritten(self: TableKeys, group: Group) -> Claim:
    """As ``TableKeys.claim``, but record nothing."""
    return Claim(self, group, object_name(GROUPS, "unwritten"))


_TESTS = "tests/integration/test_"
_JUDGE = "lancekeep.format.judge"
_BASES = "lancekeep.application.upkeep.bases.Bases"
_CLEANUP = "lancekeep.application.upkeep.cleanup.Cleanup"
_CLONES = "lancekeep.application.entries.clones"
_COMPACTIONS = "lancekeep.application.rows.compactions"
_REBASE = "lancekeep.application.commits.rebase"
_RULES = "lancekeep.domain.partition_rules"

FAULTS: Mapping[str, Fault[str]] = {
    "a rewrite may name a fragment twice": Fault(
        f"{_TESTS}judge.py::test_compaction_that_is_committed_twice_in_one_call_is_refused",
        {f"{_JUDGE}._of_rewrite": nothing},
    ),
    "deletions of a new version are not judged": Fault(
        f"{_TESTS}judge.py::test_delete_with_a_wrong_deletion_file_is_refused[None-expected 2 deleted rows, found 1]",
        {f"{_JUDGE}.problems": nothing},
    ),
    "versions are not compared with their witnesses": Fault(
        f"{_TESTS}random_flips.py::test_harmful_damage_of_metadata_is_found",
        {"lancekeep.application.upkeep.examination.contradictions": nothing},
    ),
    "files of another catalog in a shared base are removed": Fault(
        f"{_TESTS}identity.py::test_catalogs_with_equal_roots_keep_each_others_files[v2]",
        {f"{_BASES}._refusal": lambda *_: ""},
    ),
    "the owner of a directory is not asked again before its files are removed": Fault(
        f"{_TESTS}identity.py::test_directory_that_another_catalog_takes_over_during_a_cleanup_is_kept",
        {f"{_BASES}.is_own": _always},
    ),
    "a copied catalog may move files": Fault(
        f"{_TESTS}identity.py::test_copy_of_a_catalog_leaves_the_files_to_the_original[v2]",
        {"lancekeep.domain.identity.Identity.require_at": nothing},
    ),
    "detached versions read nothing": Fault(
        f"{_TESTS}detached_readers.py::test_source_of_a_detached_version_of_a_clone_stays[conditional-put]",
        {f"{_CLONES}.is_detached_name": _never},
    ),
    "only one version of a clone reads its source": Fault(
        f"{_TESTS}clones.py::test_source_of_an_overwritten_clone_in_a_v1_directory_is_kept[conditional-put-v1]",
        {f"{_CLONES}.Clones._ends": _last_end},
    ),
    "any marker describes a deep clone": Fault(
        f"{_TESTS}unfinished_clones.py::test_forged_marker_of_a_deep_clone_is_none[forged0]",
        {"lancekeep.format.begun_clone._UUID": re.compile(".*", re.DOTALL)},
    ),
    "a record is believed though it names other bytes": Fault(
        f"{_TESTS}digests.py::test_damaged_record_is_reported",
        {"lancekeep.application.rows.digests.decode_digests": _believed},
    ),
    "a merge of records removes the merged one": Fault(
        "tests/unit/test_digests.py::test_merged_record_with_the_same_content_as_another_stays",
        {"lancekeep.application.rows.digests.Digests._replace": _replaced},
    ),
    "the names of partitions can be changed": Fault(
        f"{_TESTS}partitioned_namespaces.py::test_changes_by_name_that_break_partitions_are_refused[managed]",
        {f"{_RULES}._is_below_spec": _never},
    ),
    "the deletions of a concurrent writer are lost": Fault(
        f"{_TESTS}table_transactions.py::test_concurrent_transactions_are_merged_as_pylance_merges_them"
        "[row addresses-delete a row-delete rows of two fragments]",
        {f"{_REBASE}.Rebase._merged": lambda self, transaction: transaction},
    ),
    "a refused compaction keeps its files": Fault(
        f"{_TESTS}compaction.py::test_a_refused_compaction_leaves_no_files",
        {f"{_COMPACTIONS}.Compactions.discard": nothing},
    ),
    "a keyed append commits without its claim": Fault(
        f"{_TESTS}keyed_appends.py::test_a_repeated_request_overtakes_the_first_before_its_commit[conditional-put]",
        {"lancekeep.application.rows.recorded_keys.TableKeys.claim": _unwritten},
    ),
    "a clean-up removes a version that a tag names since it began": Fault(
        f"{_TESTS}cleanup.py::test_version_of_a_concurrently_created_tag_is_kept", {f"{_CLEANUP}._recheck": nothing}
    ),
    "a clean-up removes a staged manifest that is reserved": Fault(
        f"{_TESTS}cleanup.py::test_concurrently_reserved_staged_manifest_is_kept", {f"{_CLEANUP}._is_claimed": _never}
    ),
    "a clone of a dropped source is committed": Fault(
        f"{_TESTS}clones.py::test_clone_of_a_source_that_is_dropped_concurrently_is_refused",
        {"lancekeep.application.rows.cloning.Cloning._is_present": _always},
    ),
    "a directory of another catalog is claimed": Fault(
        f"{_TESTS}identity.py::test_only_one_of_two_originals_owns_the_files", {f"{_BASES}.claim": nothing}
    ),
    "appends follow an overwrite with the columns of before": Fault(
        f"{_TESTS}appends.py::test_appends_after_an_overwrite_by_another_process_follow_it[conditional-put]",
        {"lancekeep.application.rows.append_lines.Predecessor.has_layout_of": _always},
    ),
    "a file is moved to a base again": Fault(
        f"{_TESTS}tiering.py::test_age_chooses_the_files",
        {"lancekeep.application.upkeep.tiering._wanted": lambda content, name, old, tier: data_files(content, name)},
    ),
    "entries of replaced values stay in an index": Fault(
        f"{_TESTS}replaced_values.py::test_no_version_has_entries_of_replaced_values[BTREE-1-False-columns]",
        {
            "lancekeep.application.commits.settled_indexes.SettledIndexes.built": lambda *_: None,
            "lancekeep.application.commits.settled_indexes.SettledIndexes.staged": lambda *_: None,
        },
    ),
    "emptied index segments are not filled again": Fault(
        f"{_TESTS}replaced_values.py::test_index_is_full_again_after_a_change[BTREE]",
        {"lancekeep.application.commits.replaced_values.WatchedChange.settle": nothing},
    ),
}
