"""What a copy of a catalog to another home did or would do."""

from __future__ import annotations

import attrs

from lancekeep.domain.notebook import Shown


@attrs.frozen
class Obstacle:
    """An entry that the target cannot hold, or whose table cannot be found.

    Attributes:
        name: The identifier of the entry, or ``the root`` for a property of the root namespace.
        reason: Why it cannot be copied.
    """

    name: str
    reason: str


@attrs.frozen
class CatalogCopy(Shown):
    """What a copy of a catalog did or, with ``dry_run``, would do.

    Attributes:
        source: The home that the catalog leaves, without secrets.
        target: The home that it gets, without secrets.
        namespaces: The number of namespaces.
        tables: The number of tables.
        dropped: The number of dropped tables that can be brought back.
        others: The number of entries of other types.
        properties: The number of properties of the root namespace.
        obstacles: What the target cannot hold. Nothing is copied unless there are none.
        commit_store: The commit store to which the versions move; None if they stay where they are.
        rows: The number of version rows that were moved.
        done: Whether the target is the home of the catalog.
        dry_run: Whether nothing was changed.
    """

    source: str
    target: str
    namespaces: int
    tables: int
    dropped: int
    others: int
    properties: int
    obstacles: tuple[Obstacle, ...]
    commit_store: str | None
    rows: int
    done: bool
    dry_run: bool

    def __str__(self) -> str:
        held = (
            f"{self.namespaces} namespaces, {self.tables} tables, {self.dropped} dropped tables, "
            f"{self.others} other entries, {self.properties} properties"
        )
        if self.obstacles:
            lines = [f"{self.source} cannot be copied to {self.target}: {held}"]
            return "\n".join((*lines, *(f"  {each.name}: {each.reason}" for each in self.obstacles)))
        state = "is the home of the catalog" if self.done else "would become the home of the catalog"
        lines = [f"{self.target} {state}, from {self.source}: {held}"]
        if self.commit_store is not None:
            moved = f"{self.rows} rows moved" if not self.dry_run else "rows would move"
            lines.append(f"  versions: {moved} to the commit store {self.commit_store}")
        if self.done and self.source.startswith(("http://", "https://")):
            lines.append(f"  {self.source} has no fence and still shows the tables: stop it, or deregister them there")
        return "\n".join(lines)
