"""The contract of `ListsUnfinished`."""

from __future__ import annotations

from lancekeep.domain.version_row import Reserved
from lancekeep.ports.commit_store import ListsUnfinished
from lancekeep.testing.commit_site import Site, Writer
from lancekeep.testing.commit_store import CommitStoreContract


class UnfinishedContract(CommitStoreContract):
    """The contract of stores that find the rows of all histories that are not final."""

    def test_rows_that_are_not_final_are_listed_in_pages(self, writer: Writer, site: Site) -> None:
        store = writer.store
        assert isinstance(store, ListsUnfinished)
        below = f"{site.new_base_uri('x').rpartition('/')[0]}/"
        assert store.unfinished(below, after=None, limit=10) == []
        staged = []
        for name in ("a", "b", "c%", "ü"):
            writer.history(f"{below}{name}", 2)
            staged.append(writer.stage(f"{below}{name}", 3))
            assert store.reserve(staged[-1], first=False) == Reserved()
        writer.history(f"{below}final", 1)
        beside = f"{below[:-1]}0/a"
        assert store.reserve(writer.stage(beside, 1), first=True) == Reserved()
        assert store.unfinished(below, after=None, limit=10) == staged
        assert store.unfinished(below, after=None, limit=2) == staged[:2]
        assert store.unfinished(below, after=(staged[1].base_uri, 3), limit=10) == staged[2:]
        assert store.unfinished(below, after=(staged[0].base_uri, 2), limit=1) == staged[:1]
        assert [row.base_uri for row in store.unfinished(f"{below[:-1]}0/", after=None, limit=9)] == [beside]
        store.finalize(writer.publish(staged[0]))
        writer.remove(staged[1].base_uri, [1, 2, 3])
        assert store.unfinished(below, after=None, limit=10) == staged[2:]
