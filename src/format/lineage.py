"""What the lineage check reads of manifests.

Table format, "Manifest" and "Transactions". The decisions over these values are in `lancekeep.domain.lineage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import attrs

from lancekeep.domain.lineage import Change, Deletions, Difference, Fragment, Operation
from lancekeep.format.manifest import message_span, parse_section, section_at
from lancekeep.format.messages import DataFragment, Field, ManifestOutline, Transaction, parse

_OPERATIONS = frozenset(Operation) - {
    Operation.UNKNOWN,
    Operation.UPDATE_MEM_WAL_STATE,
    Operation.CLONE,
    Operation.UPDATE_BASES,
}
"""The operations whose effect on fragments `Change` states."""
_AFTER_FRAGMENTS = ("index_section", "transaction_file", "base_paths", "transaction_section")


class Manifest:
    """A manifest, decoded as far as the lineage check needs it.

    The *head* of a message is its schema and its fragments, which every writer encodes first. If the head begins with
    the head of an earlier manifest, only the rest is decoded: an append costs little, whatever the number of fragments.

    Attributes:
        size: the size of the file in bytes.
        transaction: the name of its transaction file, which identifies the version.
        is_empty: whether it has no fragment.
        bases: id and path of the other directories that its files may lie in, such as the source of a shallow clone.
        has_indexes: whether it has a section of indexes.
    """

    def __init__(self, content: bytes, previous: Manifest | None = None) -> None:
        """Decode a manifest file.

        Args:
            content: the bytes of the file.
            previous: a manifest that this manifest probably continues.

        Raises:
            ValueError: the bytes are not a manifest.
        """
        self.size = len(content)
        self._content = content
        self._begin, self._end = message_span(content)
        self._head: int
        self.is_empty: bool
        shared = previous._head if previous is not None and self.continues(previous) else 0
        outline = self._outline(shared)
        self.is_empty = not outline.fragments and (not shared or (previous is not None and previous.is_empty))
        self.transaction = str(outline.transaction_file)
        self.bases = frozenset((base.id, base.path) for base in outline.base_paths)
        self._transaction_section = outline.transaction_section if outline.HasField("transaction_section") else None
        self._index_section = outline.index_section if outline.HasField("index_section") else None
        self.has_indexes = self._index_section is not None
        self._shared = shared
        # Without a shared head these are all fragments, too many to keep.
        self._added = list(outline.fragments) if shared else None
        self._head = self._head_of(outline, shared)

    def change(self) -> Change:
        """Return what its transaction did; `Operation.UNKNOWN` without a transaction.

        Raises `ValueError`.
        """
        if self._transaction_section is None:
            return Change()
        transaction = parse_section(Transaction, self._content, self._transaction_section)
        return attrs.evolve(_change(transaction), read_version=transaction.read_version)

    @property
    def content(self) -> bytes:
        """The bytes of the file."""
        return self._content

    def index_section(self) -> bytes | None:
        """Return the encoded indexes; None if the file has none."""
        return None if self._index_section is None else section_at(self._content, self._index_section)

    def columns(self) -> list[tuple[str, int, str]]:
        """Return name, id and type of each field of the schema."""
        fields = (parse(Field, content) for content in self._outline(0).fields)
        return [(field.name, field.id, field.logical_type) for field in fields]

    def continues(self, previous: Manifest) -> bool:
        """Return whether it begins with the schema and all fragments of ``previous``."""
        head = memoryview(previous._content)[previous._begin : previous._begin + previous._head]
        return bool(head) and self._content.startswith(head, self._begin)

    def fragments(self) -> Sequence[bytes]:
        """Return the encoded fragments."""
        return self._outline(0).fragments  # type: ignore[no-any-return]  # protobuf classes made at run time

    def first_file(self) -> str | None:
        """Return the data file of the first fragment.

        Returns: None if the fragment has no file in the table's own directory.
        """
        return next((_fragment(entry).own_file for entry in self.fragments()[:1]), None)

    def fragments_after(self, previous: Manifest) -> Sequence[bytes]:
        """Return the encoded fragments that ``previous`` does not have."""
        if self._added is not None and self._shared == previous._head:
            return self._added
        return self._outline(previous._head).fragments  # type: ignore[no-any-return]  # protobuf classes made at run time

    def _outline(self, after: int) -> Any:
        return parse(ManifestOutline, memoryview(self._content)[self._begin + after : self._end])

    def _head_of(self, outline: Any, after: int) -> int:
        """Return the size of the head; 0 if other fields precede or interrupt it.

        ``outline`` is the message from position ``after`` on, which is inside the head. It keeps only the head.
        """
        for name in _AFTER_FRAGMENTS:
            outline.ClearField(name)
        outline.DiscardUnknownFields()
        head = outline.SerializeToString()
        return after + len(head) if self._content.startswith(head, self._begin + after) else 0


def difference(staged: Manifest, previous: Manifest) -> Difference:
    """Return how the fragments of two manifests differ."""
    if staged.continues(previous):
        added, lost = staged.fragments_after(previous), list[bytes]()
    else:
        here, there = staged.fragments(), previous.fragments()
        known, kept = set(there), set(here)
        added, lost = [entry for entry in here if entry not in known], [entry for entry in there if entry not in kept]
    other_columns = previous.is_empty and staged.columns() != previous.columns()
    other_bases = not staged.bases <= previous.bases
    return Difference([*map(_fragment, added)], [*map(_fragment, lost)], other_columns, other_bases)


def _fragment(entry: bytes) -> Fragment:
    return _fragment_of(parse(DataFragment, entry))


def _fragment_of(message: Any) -> Fragment:
    own = (file.path for file in message.files if not file.HasField("base_id"))
    deletions = None
    if message.HasField("deletion_file"):
        file = message.deletion_file
        deletions = Deletions(file.read_version, file.id, file.num_deleted_rows)
    return Fragment(message.id, frozenset(file.path for file in message.files), next(own, None), deletions)


def _change(transaction: Any) -> Change:
    found = ((field.number, body) for field, body in transaction.ListFields() if field.number in _OPERATIONS)
    number, body = next(found, (Operation.UNKNOWN, transaction))
    operation = Operation(number)
    match operation:
        case Operation.APPEND | Operation.OVERWRITE:
            return Change(operation, _files(body.fragments))
        case Operation.UPDATE:
            return Change(operation, _files(body.new_fragments), frozenset(body.removed_fragment_ids))
        case Operation.DELETE:
            return Change(operation, removed=frozenset(body.deleted_fragment_ids))
        case Operation.REWRITE:
            groups = (*body.groups, body)
            return Change(
                operation,
                _files(chain.from_iterable(group.new_fragments for group in groups)),
                replaced=[_fragment_of(fragment) for group in groups for fragment in group.old_fragments],
            )
        case Operation.DATA_REPLACEMENT:
            return Change(operation, [group.new_file.path for group in body.replacements])
        case Operation.RESTORE:
            return Change(operation, restored=body.version)
    return Change(operation)


def _files(fragments: Iterable[Any]) -> list[str]:
    return [file.path for fragment in fragments for file in fragment.files]
