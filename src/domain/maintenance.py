"""The maintenance of tables: which rule applies to which table."""

from __future__ import annotations

import attrs

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId


@attrs.frozen(kw_only=True)
class MaintenanceRule:
    """What to do with the tables of a subtree.

    Attributes:
        subtree: The namespace or table; the root for all tables.
        older_than: Remove versions whose successor is older, in seconds; None removes none.
        keep: The latest versions that stay.
        grace: Keep younger files, in seconds.
        target_rows: Merge fragments with fewer rows than this; None merges none.
        small_fragments: Merge small fragments once there are this many.
        refresh_indexes: Add new rows to the indexes.
    """

    subtree: ObjectId = attrs.field(factory=ObjectId)
    older_than: float | None = None
    keep: int = 1
    grace: float = 7 * 86_400.0
    target_rows: int | None = None
    small_fragments: int = 4
    refresh_indexes: bool = False


@attrs.frozen
class MaintenancePolicy:
    """The rules of a catalog; the most specific one applies to a table.

    Attributes:
        rules: The rules.
        every: The seconds between two runs of a server.
    """

    rules: tuple[MaintenanceRule, ...]
    every: float = 3600.0

    def __attrs_post_init__(self) -> None:
        subtrees = [rule.subtree for rule in self.rules]
        twice = next((each for each in subtrees if subtrees.count(each) > 1), None)
        if twice is not None:
            raise InvalidInput(f"there are two rules for {twice}; write one")

    def rule_for(self, table: ObjectId) -> MaintenanceRule | None:
        """Return the rule of a table; None if no rule covers the table."""
        covering = (rule for rule in self.rules if table.names[: len(rule.subtree.names)] == rule.subtree.names)
        return max(covering, key=lambda rule: len(rule.subtree.names), default=None)
