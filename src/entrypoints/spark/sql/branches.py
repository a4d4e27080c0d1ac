"""Read and write branches of tables in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs
import lance
import pyarrow as pa

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import BranchAlreadyExists
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES
from lancekeep.domain.row_rules import rules_of
from lancekeep.entrypoints.spark.jobs.tasks import repetitions
from lancekeep.ports.table_engine import WriteMode, WritePlan

PREFIX, TAG_PREFIX = "branch_", "tag_"
"""The last name of ``lake.t.branch_dev`` and ``lake.t.tag_v1`` without the name of the branch or the tag."""

WAP_BRANCH = "spark.lancekeep.wap.branch"
"""The setting of a session that names the branch for all its reads and writes (write, audit, publish)."""


@attrs.frozen
class Branch:
    """A branch that a statement writes to.

    Attributes:
        catalog: The catalog.
        table: The table.
        name: The name of the branch.
        exists: Whether it existed when the table was loaded. Otherwise the first write creates it.
    """

    catalog: Catalog
    table: ObjectId
    name: str
    exists: bool = True

    def begin(self, version: int, schema: pa.Schema, mode: WriteMode) -> WritePlan:
        """Prepare a write; create a missing branch from a version of the main history."""
        self.create(version)
        table = self.catalog.describe_table(self.table)
        uri = f"{table.uri}/{BRANCHES}/{self.name}"
        options, rules = self.catalog.storage_options, rules_of(table.properties)
        return WritePlan(self.table, uri, options, schema, mode, version, declared=False, rules=rules)

    def create(self, version: int) -> None:
        if not self.exists:
            with suppress(BranchAlreadyExists):  # created concurrently
                self.catalog.branches.create(self.table, self.name, None, version)

    def commit(self, plan: WritePlan, fragments: Sequence[str], *, exactly: bool = False) -> None:
        """Commit the fragments of a write as one version of the branch.

        With ``exactly``, commit only as the version after the version that the plan read.
        """
        metadata = [lance.FragmentMetadata.from_json(fragment) for fragment in fragments]
        operations = lance.LanceOperation
        appends = plan.mode is WriteMode.APPEND
        operation = operations.Append(metadata) if appends else operations.Overwrite(plan.schema, metadata)

        def act(dataset: Any) -> Any:
            return lance.LanceDataset.commit(
                dataset, operation, read_version=dataset.version, max_retries=repetitions(exactly=exactly)
            )

        after = plan.read_version if exactly else None
        self.catalog.commit_change(self.table, act, after=after, branch=self.name)
