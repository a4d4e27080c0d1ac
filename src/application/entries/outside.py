"""Directories outside of a catalog that hold files of its tables."""

from __future__ import annotations

from functools import partial

import attrs

from lancekeep.application.pieces import copy_in_pieces
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import Unsupported
from lancekeep.ports.object_store import ObjectStore


@attrs.frozen
class OutsideDirectory:
    """A directory outside of a catalog, in its object store or in another store.

    Attributes:
        objects: The object store.
        key: The key of the directory.
        uri: The URI by which the table engine opens the directory.
    """

    objects: ObjectStore
    key: str
    uri: str


def nowhere(uri: str) -> OutsideDirectory:
    """Refuse every directory outside of the root."""
    raise Unsupported(f"{uri}: this catalog opens no directory outside of its root")


def copy_object(source: ObjectStore, key: str, target: ObjectStore, copy: str, retry: Retry) -> None:
    """Copy an object, also to another object store.

    Between two object stores, its bytes pass through this process in pieces.

    Raises:
        ObjectNotFound: The object does not exist.
        ConcurrentModification: The object was changed while it was copied.
        Damaged: The copy has another size.
    """
    if source.root_uri == target.root_uri:
        retry.call(partial(target.copy, key, copy))
    else:
        copy_in_pieces(source, key, target, copy, retry)
