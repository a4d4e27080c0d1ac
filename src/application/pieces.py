"""Objects in pieces, so that no large object is in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lancekeep.application.retry import Retry
from lancekeep.domain.errors import Damaged, StoreUnavailable
from lancekeep.ports.object_store import PIECE, ObjectStore, Piece, piece_size


def copy_in_pieces(source: ObjectStore, key: str, target: ObjectStore, copy: str, retry: Retry) -> int:
    """Copy an object to another object store, and return its size.

    A few pieces are in memory. An object of one piece is read and written by one request each.

    Raises:
        ObjectNotFound: The object does not exist.
        ConcurrentModification: The object was changed while it was copied. Nothing was written.
        Damaged: The copy has another size.
    """

    def attempt() -> int:
        size, pieces = in_pieces(source, key, retry)
        target.put_pieces(copy, size, pieces)
        return size

    size = retry.call(attempt)
    if size > PIECE:
        info = retry.call(partial(target.head, copy))
        if info is None or info.size != size:
            found = "does not exist" if info is None else f"has {info.size:,} bytes"
            raise Damaged(f"{target.root_uri}{copy} {found}; {size:,} bytes were copied. Copy the file again")
    return size


def in_pieces(objects: ObjectStore, key: str, retry: Retry) -> tuple[int, Iterator[bytes]]:
    """Return the size of an object, and its content in pieces of `piece_size` bytes.

    The first piece is read at once. The iterator raises ConcurrentModification if the object was changed since.

    Raises:
        ObjectNotFound: The object does not exist.
    """
    first = retry.call(partial(objects.piece, key, 0, PIECE))
    if piece_size(first.size) > PIECE:
        first = retry.call(partial(objects.piece, key, 0, piece_size(first.size), first.stamp))
    return first.size, _following(objects, key, first, retry)


def _following(objects: ObjectStore, key: str, piece: Piece, retry: Retry) -> Iterator[bytes]:
    size, stamp, start = piece.size, piece.stamp, 0
    while True:
        most = piece_size(size)
        if len(piece.content) != min(most, size - start):
            raise StoreUnavailable(
                f"{objects.root_uri}{key}: the storage returned {len(piece.content):,} bytes from {start:,} on; "
                f"expected {min(most, size - start):,} of {size:,}"
            )
        yield piece.content
        start += most
        if start >= size:
            return
        piece = retry.call(partial(objects.piece, key, start, most, stamp))
