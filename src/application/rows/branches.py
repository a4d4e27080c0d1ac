"""Create, list, publish and delete the branches of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lancekeep.application.rows.changes import change_table
from lancekeep.application.rows.row_rules import check_stream
from lancekeep.application.rows.services import WriteService
from lancekeep.domain.bounds import require_short
from lancekeep.domain.commit import Changed
from lancekeep.domain.errors import BranchNotFound, Refused, Unsupported
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.row_rules import Rules, columns_of
from lancekeep.ports.table_engine import TableEngine
from lancekeep.ports.table_structure import Branch


class Branches:
    """The branches of tables: ``catalog.branches``.

    Identifiers are as in `Catalog`. Changes raise the errors of `Catalog.write`. Every method raises `TableNotFound`
    if the table does not exist.
    """

    def __init__(self, writes: WriteService, engine: TableEngine) -> None:
        self._writes = writes
        self._engine = engine

    def list(self, identifier: Identifier) -> Mapping[str, Branch]:
        """Return the branches of a table, by name."""
        object_id = ObjectId.of(identifier)
        return self._writes.examine(object_id, self._engine.structure.branches, None, None)

    def create(self, identifier: Identifier, name: str, source: str | None = None, version: int | None = None) -> None:
        """Create a branch, by default from the latest version of the main history.

        Args:
            identifier: The table.
            name: The name of the branch.
            source: The branch from which it begins.
            version: The version of the source at which it begins.

        Raises:
            BranchAlreadyExists: The table has the branch.
            BranchNotFound, VersionNotFound: The source does not exist.
            InvalidInput: The name is not valid.
        """
        require_short("the name of the branch", name)
        object_id = ObjectId.of(identifier)
        self._writes.with_version(object_id, version, None, source)
        created = self._writes.commit_change(
            object_id, lambda dataset: self._engine.structure.create_branch(dataset, name, source, version), noted=False
        )
        self._writes.note(object_id, name, created)

    def delete(self, identifier: Identifier, name: str) -> None:
        """Delete a branch with its versions and files.

        Raises:
            BranchNotFound: The table has no such branch.
            Refused: A tag or another branch refers to the branch.
        """
        object_id = ObjectId.of(identifier)
        if name not in self.list(object_id):
            raise BranchNotFound(f"the table {object_id} has no branch {name!r}")
        self._writes.commit_change(
            object_id, lambda dataset: self._engine.structure.delete_branch(dataset, name), noted=False
        )

    def fast_forward(self, identifier: Identifier, name: str) -> Changed:
        """Publish the rows of a branch as one version of the main history.

        Raises:
            BranchNotFound: The table has no such branch.
            Refused: The main history has versions that the branch lacks, or the branch has no version to publish.
            Unsupported: The branch begins at another branch, or has other columns.
        """
        object_id = ObjectId.of(identifier)
        branch = self.list(object_id).get(name)
        if branch is None:
            raise BranchNotFound(f"the table {object_id} has no branch {name!r}")
        if branch.parent is not None:
            raise Unsupported(
                f"the branch {name!r} of {object_id} begins at the branch {branch.parent!r}. Only a branch that begins "
                "at the main history can be published."
            )
        tip = self._writes.open(object_id, None, None, name)
        if tip.version == branch.version:
            raise Refused(f"the branch {name!r} of {object_id} has no version of its own to publish")

        def act(dataset: Any) -> Any:
            if dataset.version != branch.version:
                raise Refused(
                    f"the main history of {object_id} is at version {dataset.version}, and the branch {name!r} begins "
                    f"at version {branch.version}. Create a branch from the latest version, write the rows again, and "
                    "publish that branch."
                )
            return self._engine.structure.fast_forward(dataset, tip)

        def check(_: Any, rules: Rules) -> None:
            check_stream(self._engine.rows.updated(tip, {}, None, columns_of(rules)), rules)

        return change_table(self._writes, self._engine, object_id, act, None, exactly=True, checks=check)
