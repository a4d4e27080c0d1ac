"""The part of the contract of `ObjectStore` about objects in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pytest

from lancekeep.application.pieces import copy_in_pieces, in_pieces
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import ConcurrentModification, LancekeepError, ObjectNotFound
from lancekeep.ports.object_store import PIECE, ObjectStore
from lancekeep.testing.concurrency import race


class Probe(Protocol):
    """Access to the same storage without the adapter.

    ``home`` is a prefix that belongs to one test; all keys begin with it.
    """

    home: str

    def read(self, key: str) -> bytes: ...

    def write(self, key: str, content: bytes) -> None: ...

    def remove(self, key: str) -> None: ...

    def stored(self) -> list[str]:
        """Return every key, sorted."""


class Interrupted(LancekeepError):
    """The source of an object fails."""


def broken_after(pieces: int) -> Iterator[bytes]:
    """Yield pieces, and fail then."""
    yield from (bytes([number]) * PIECE for number in range(pieces))
    raise Interrupted


class PiecesContract:
    """The contract of every object store."""

    def test_pieces_are_ranges_of_one_content(self, store: ObjectStore, probe: Probe) -> None:
        key = probe.home + "a"
        probe.write(key, b"0123456789")
        probe.write(probe.home + "empty", b"")
        first = store.piece(key, 0, 4)
        others = [store.piece(key, start, 4, first.stamp) for start in (4, 8)]
        assert [each.content for each in (first, *others)] == [b"0123", b"4567", b"89"]
        assert [each.size for each in (first, *others)] == [10] * 3
        for most in (10, 99):
            whole = store.piece(key, 0, most)
            assert (whole.content, whole.size) == (b"0123456789", 10)
        empty = store.piece(probe.home + "empty", 0, 4)
        assert (empty.content, empty.size) == (b"", 0)

    @pytest.mark.parametrize("content", [b"01234567890", b"01234", b"0"])
    def test_piece_of_changed_object_is_refused(self, store: ObjectStore, probe: Probe, content: bytes) -> None:
        key = probe.home + "a"
        probe.write(key, b"0123456789")
        first = store.piece(key, 0, 4)
        probe.write(key, content)
        with pytest.raises(ConcurrentModification, match="while it was read"):
            store.piece(key, 4, 4, first.stamp)
        again = store.piece(key, 0, 4)
        assert (again.content, again.size) == (content[:4], len(content))

    def test_piece_of_removed_object_is_not_found(self, store: ObjectStore, probe: Probe) -> None:
        key = probe.home + "d/a"
        probe.write(key, b"0123456789")
        first = store.piece(key, 0, 4)
        probe.remove(key)
        for stamp in (first.stamp, None):
            with pytest.raises(ObjectNotFound) as caught:
                store.piece(key, 0, 4, stamp)
            assert key in str(caught.value)
        with pytest.raises(ObjectNotFound):
            store.piece(probe.home + "d", 0, 4)

    @pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 2 * PIECE])
    def test_object_is_copied_in_pieces(self, store: ObjectStore, probe: Probe, size: int) -> None:
        source, target = probe.home + "source", probe.home + "new/dir/target"
        content = (b"%08d" % size * (size // 8 + 1))[:size]
        probe.write(source, content)
        for _ in range(2):
            assert copy_in_pieces(store, source, store, target, Retry()) == size
        assert probe.read(target) == content
        assert probe.stored() == [target, source]
        assert list(store.unfinished(probe.home)) == []

    def test_failing_source_leaves_no_object(self, store: ObjectStore, probe: Probe) -> None:
        for pieces in range(3):
            with pytest.raises(Interrupted):
                store.put_pieces(probe.home + "new/a", 3 * PIECE, broken_after(pieces))
        with pytest.raises(Interrupted):
            store.put_pieces(probe.home + "new/a", 2, broken_after(0))
        assert probe.stored() == []
        assert list(store.unfinished(probe.home)) == []

    def test_source_changed_between_two_pieces_leaves_no_object(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "source", bytes(PIECE + 1))
        size, pieces = in_pieces(store, probe.home + "source", Retry())
        probe.write(probe.home + "source", bytes(PIECE + 2))
        with pytest.raises(ConcurrentModification):
            store.put_pieces(probe.home + "target", size, pieces)
        assert probe.stored() == [probe.home + "source"]


class WholePiecesContract:
    """The contract of stores that never show a part of an object."""

    def test_failing_source_keeps_the_object(self, store: ObjectStore, probe: Probe) -> None:
        probe.write(probe.home + "a", b"kept")
        with pytest.raises(Interrupted):
            store.put_pieces(probe.home + "a", 3 * PIECE, broken_after(2))
        assert probe.read(probe.home + "a") == b"kept"
        assert probe.stored() == [probe.home + "a"]

    def test_object_of_racing_writers_is_whole(self, store: ObjectStore, probe: Probe) -> None:
        key, contents = probe.home + "new/a", [bytes([me]) * (PIECE + 1) for me in range(2)]

        def write(me: int) -> bool:
            store.put_pieces(key, PIECE + 1, iter([contents[me][:PIECE], contents[me][PIECE:]]))
            return store.get(key) in contents

        assert race(2, write) == [True, True]
        assert probe.read(key) in contents
        assert probe.stored() == [key]
