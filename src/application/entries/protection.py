"""The protection of tables and namespaces; see `Catalog.protect`."""

from __future__ import annotations

from functools import partial

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.dataset_files import TRANSACTIONS
from lancekeep.domain.dropped import owner_id
from lancekeep.domain.errors import CommitRefused, ObjectNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.operations import Overwrite, Restore, Transaction
from lancekeep.domain.protection import change_protection, protector
from lancekeep.format.table_version import TableVersion, parse_transaction


class Protection:
    """Protects tables and namespaces, and the rows of protected tables."""

    def __init__(self, ledger: Ledger, places: Places) -> None:
        self._ledger = ledger
        self._places = places

    def change(self, object_id: ObjectId, *, protected: bool) -> None:
        self._ledger.apply(lambda view: (change_protection(view, object_id, protected=protected), None))

    def require_kept(self, root: DatasetRoot, content: bytes) -> None:
        """Refuse a version that overwrites or restores a protected table.

        The entries as of the last read decide, so a commit that does not concern a protected table costs no request.

        Args:
            root: The dataset or branch.
            content: The staged manifest.

        Raises:
            CommitRefused: The table is protected.
        """
        view = self._ledger.recent()
        location = self._places.location(root).partition(f"/{BRANCHES}/")[0]
        entry = None if not view.guarantees.properties else view.owner_of(location)
        if entry is None or (by := protector(view, table := owner_id(entry))) is None:
            return
        version = TableVersion.parse(content, root.base_uri)
        transaction = version.transaction or self._transaction(root, version.manifest.transaction_file)
        operation = None if transaction is None else transaction.operation
        if version.manifest.version > 1 and (operation is None or isinstance(operation, Overwrite | Restore)):
            what = "cannot be read" if operation is None else type(operation).__name__.lower()
            own = "it is protected" if by == table else f"the namespace {by} protects it"
            raise CommitRefused(
                f"cannot replace the rows of {table} (operation: {what}): {own}. Nothing was committed. Append, update "
                f"or delete rows, or end the protection with unprotect({'' if by.is_root else str(by)!r}) first"
            )

    def _transaction(self, root: DatasetRoot, name: str) -> Transaction | None:
        """Return the transaction that older engines write to a file alone; None if there is no such file."""
        key = f"{root.key}/{TRANSACTIONS}/{name}"
        try:
            return parse_transaction(self._ledger.commits.retry.call(partial(self._places.objects.get, key)), key)
        except ObjectNotFound:
            return None
