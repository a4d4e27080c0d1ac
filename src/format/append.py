"""The manifest of an append.

Table format, "Manifest", "Transactions" and "Stable Row IDs".

The next manifest of a table is the previous manifest with one more fragment. Its schema and its fragments stay encoded,
and fields that this release does not know are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import attrs

from lancekeep.domain.appends import REBASED
from lancekeep.domain.digests import DIGEST_BYTES, FileDigest
from lancekeep.domain.errors import Unsupported
from lancekeep.domain.indexes import is_system_index
from lancekeep.domain.manifest import DataStorageFormat, Fragment, SchemaField
from lancekeep.domain.manifest import Manifest as ManifestValue
from lancekeep.format.judge import Approved, approve_append
from lancekeep.format.judged_fragments import Frame
from lancekeep.format.manifest import (
    ManifestFile,
    file_of,
    make_successor,
    message_at,
    message_span,
    not_a_manifest,
    parse_message,
    place_transaction,
    section_at,
)
from lancekeep.format.messages import (
    DataFile,
    DataFragment,
    Field,
    IndexSection,
    Manifest,
    ManifestTail,
    RowIdSequence,
    RowVersionSequence,
    Transaction,
    parse,
)
from lancekeep.format.values import decoded

_STABLE_ROW_IDS = 2
_KNOWN_FLAGS = 1 | _STABLE_ROW_IDS | 4 | 8
"""Deletion files, stable row ids, the V2 format and table configuration."""
_FILE_VERSIONS = ("2.0", "2.1", "2.2")
_CLEANS_UP = "lance.auto_cleanup."
_KEY_METADATA = "lance-schema:unenforced-primary-key"
_MOST_FRAGMENTS = 2**32 - 2


@attrs.frozen
class NewFile:
    """A data file of one append, which is written and belongs to no version yet.

    Attributes:
        name: its name in the ``data`` directory.
        size: its size in bytes.
        rows: the number of its rows.
        layout: the encoded ``DataFile`` message that `layout_of` returned.
    """

    name: str
    size: int
    rows: int
    layout: bytes


@attrs.frozen
class TransactionFile:
    """A transaction as a file, which the version that it makes names.

    Attributes:
        name: its name in the ``_transactions`` directory.
        content: the encoded ``Transaction`` message.
        read_version: the version that its writer read.
    """

    name: str
    content: bytes
    read_version: int


@attrs.frozen
class Appendable:
    """A version of a table that an append can follow.

    Attributes:
        version: its number.
        size: the size of its manifest file in bytes.
        fields: the encoded fields of its schema.
        storage_version: the version of its data files.
        transaction: the name of its transaction file, which identifies the version.
        rebased: whether its writer rebased it in memory (`REBASED`); False if that is not known.
    """

    version: int
    size: int
    fields: tuple[bytes, ...] = attrs.field(repr=False)
    storage_version: str
    transaction: str
    rebased: bool
    _head: bytes = attrs.field(repr=False)
    _tail: Any = attrs.field(repr=False)
    _indexes: bytes | None = attrs.field(repr=False)
    _last_file: str
    _frame: Frame = attrs.field(repr=False)
    _hash: Any = attrs.field(default=None, eq=False, repr=False)
    """The BLAKE2b hash of the fields and fragments, which the next version continues; None if it is not wanted."""

    @staticmethod
    def parse(content: bytes, name: str) -> Appendable:
        """Decode a manifest file.

        Args:
            content: the bytes of the file.
            name: the file, for messages.

        Raises:
            Damaged: the bytes are not a manifest.
            Unsupported: an append to this version needs more than this module knows. The message says what.
        """
        try:
            tail = parse_message(ManifestTail, content)
            indexes = section_at(content, tail.index_section) if tail.HasField("index_section") else None
            last = parse(DataFragment, tail.fragments[-1]) if tail.fragments else DataFragment()
            rebased = _is_rebased(content, tail)
            frame = _frame(tail)
            obstacle = _obstacle(tail, indexes) or _fault(last, frame)
            if not tail.HasField("max_fragment_id") and tail.fragments:
                tail.max_fragment_id = max(parse(DataFragment, fragment).id for fragment in tail.fragments)
        except ValueError as error:
            raise not_a_manifest(name, error) from error
        if obstacle:
            raise Unsupported(f"{name}: {obstacle}; append with the Lance engine")
        head = ManifestTail(fields=tail.fields, fragments=tail.fragments).SerializeToString()
        fields, transaction = tuple(tail.fields), str(tail.transaction_file)
        for field in ("fields", "fragments"):  # they stay encoded, in the head
            tail.ClearField(field)
        version, storage = tail.version, tail.data_format.version
        last_file = next((file.path for file in last.files if not file.HasField("base_id")), "")
        size = len(content)
        return Appendable(version, size, fields, storage, transaction, rebased, head, tail, indexes, last_file, frame)

    @property
    def last_file(self) -> str:
        """A data file of this version; empty if it has none.

        Its name is random, so no other table at the same location has it.
        """
        return self._last_file

    def adding(self, file: NewFile, uuid: str) -> TransactionFile:
        """Return the transaction that appends a data file to this version.

        Args:
            file: the data file.
            uuid: the id of the transaction.
        """
        transaction = Transaction(read_version=self.version, uuid=uuid)
        transaction.append.fragments.append(_fragment_of(file))
        key, value = REBASED
        transaction.transaction_properties.add(key=key, value=value)
        return TransactionFile(f"{self.version}-{uuid}.txn", transaction.SerializeToString(), self.version)

    def followed_by(
        self, file: NewFile, transaction: TransactionFile, now: int, name: str, *, hashed: bool = False
    ) -> tuple[Appendable, Approved]:
        """Return the next version, and its form to publish.

        Args:
            file: the data file to append.
            transaction: the transaction that appends the file to this version, or to an earlier version.
            now: the time in nanoseconds since 1970.
            name: the table, for messages.
            hashed: whether `digest` will be called for the next version.

        Raises:
            CommitRefused: the judge has found problems.
        """
        version = self.version + 1
        tail = ManifestTail()
        tail.CopyFrom(self._tail)
        fragment = _fragment_of(file)
        number = tail.max_fragment_id + 1 if tail.HasField("max_fragment_id") else 0
        if number:  # the engine leaves zeros out
            fragment.id = number
        if tail.reader_feature_flags & _STABLE_ROW_IDS:
            number_rows(fragment, tail.next_row_id, version)
            tail.next_row_id += file.rows
        make_successor(tail, version, now, transaction.name)
        tail.max_fragment_id = number
        if self._indexes is not None:
            tail.index_section = 0
        place_transaction(tail, self._indexes)
        added = ManifestTail(fragments=[fragment.SerializeToString()]).SerializeToString()
        head = self._head + added
        sections = [] if self._indexes is None else [self._indexes]
        content = file_of(head + tail.SerializeToString(), *sections, transaction.content)
        frame = attrs.evolve(self._frame, next_row_id=tail.next_row_id)
        built = Approved(version, transaction.name, content, self.transaction)
        built = approve_append(name, built, decoded(Fragment, fragment), frame)
        return attrs.evolve(
            self,
            version=version,
            size=len(content),
            transaction=transaction.name,
            rebased=False,
            head=head,
            tail=tail,
            last_file=file.name,
            frame=frame,
            hash=self._hash_with(added) if hashed else None,
        ), built

    def digest(self, content: bytes) -> FileDigest:
        """Return the digest of the manifest file of this version.

        `followed_by` has built it with ``hashed``. The digest continues the digest of the version before, because
        hashing all fragments would take longer than the append.
        """
        start, _ = message_span(content)
        digest = self._hash.copy()
        digest.update(content[start + len(self._head) :])
        digest.update(content[:start])
        return FileDigest(len(content), digest.hexdigest(), start)

    def _hash_with(self, fragment: bytes) -> Any:
        """Return the hash of the fields and fragments with one more encoded fragment."""
        if self._hash is None:
            return blake2b(self._head + fragment, digest_size=DIGEST_BYTES)
        following = self._hash.copy()
        following.update(fragment)
        return following

    def alone(self) -> bytes:
        """Return a manifest file of version 1 with this schema and no fragment."""
        bare = ManifestTail(fields=self.fields, version=1, data_format=self._tail.data_format)
        return ManifestFile(parse(Manifest, bare.SerializeToString()), None).serialize(Transaction())


def layout_of(example: bytes, version: Appendable, name: str) -> bytes:
    """Return how a data file of this table is laid out, as an encoded ``DataFile``.

    Columns are matched by their names, because the field ids of a table whose columns were altered have gaps.

    Args:
        example: the manifest file of a dataset of one fragment, which the engine wrote with the same schema.
        version: the version to append to.
        name: the table, for messages.

    Raises:
        Unsupported: the table's fields differ from the fields that the engine writes for this schema.
    """
    written = parse(ManifestTail, message_at(example))
    ours, theirs = _by_path(version.fields), _by_path(written.fields)
    if list(ours) != list(theirs) or any(ours[path][1] != theirs[path][1] for path in ours):
        raise Unsupported(f"{name}: the engine describes the columns in another way; append with the Lance engine")
    numbers = {number: ours[path][0] for path, (number, _) in theirs.items()}
    file = parse(DataFragment, written.fragments[0]).files[0]
    file.fields[:] = [numbers[number] for number in file.fields]
    file.ClearField("path")
    file.ClearField("file_size_bytes")
    return bytes(file.SerializeToString())


def fragment_of(file: NewFile) -> Fragment:
    """Return a new fragment of one data file, which has no id yet."""
    return decoded(Fragment, _fragment_of(file))


def _fragment_of(file: NewFile) -> Any:
    data = parse(DataFile, file.layout)
    data.path, data.file_size_bytes = file.name, file.size
    return DataFragment(files=[data], physical_rows=file.rows)


def _is_rebased(content: bytes, tail: Any) -> bool:
    if not tail.HasField("transaction_section"):
        return False
    try:
        transaction = parse(Transaction, section_at(content, tail.transaction_section))
    except ValueError:  # an append does not need it
        return False
    return REBASED in [(each.key, each.value) for each in transaction.transaction_properties]


def _obstacle(tail: Any, indexes: bytes | None) -> str:
    """Return why an append needs the engine; empty if it does not."""
    flags = (tail.reader_feature_flags | tail.writer_feature_flags) & ~_KNOWN_FLAGS
    if flags:
        return f"the table requires the features {flags}, which are not known here"
    if tail.base_paths:
        return "some of its files lie in other places"
    if tail.HasField("branch") and tail.branch:
        return "it is a branch"
    if tail.data_format.file_format != "lance" or tail.data_format.version not in _FILE_VERSIONS:
        return f"its data files have the format {tail.data_format.file_format} {tail.data_format.version}"
    if any(entry.key.startswith(_CLEANS_UP) for entry in tail.config):
        return "its commits clean up old versions"
    if tail.HasField("max_fragment_id") and tail.max_fragment_id >= _MOST_FRAGMENTS:
        return "its fragment ids are used up"
    if tail.reader_feature_flags & _STABLE_ROW_IDS and tail.fragments and not tail.next_row_id:
        return "its next row id is missing"
    system = [index.name for index in parse(IndexSection, indexes or b"").indices if is_system_index(index.name)]
    if system:
        return f"it has the index {system[0]}, which records changes"
    for field in (parse(Field, content) for content in tail.fields):
        foreign = [entry.key for entry in field.metadata if not entry.key.startswith(_KEY_METADATA)]
        if foreign:
            return f"its column {field.name} has the metadata {foreign[0]}"
    return ""


def _frame(tail: Any) -> Frame:
    """Return what the fragments of a version are judged against.

    It has the fields without their metadata, because an append needs the engine if there is metadata.
    """
    fields = [parse(Field, content) for content in tail.fields]
    return Frame.of(
        ManifestValue(
            fields=tuple(SchemaField(each.name, each.id, each.parent_id, each.logical_type) for each in fields),
            reader_feature_flags=tail.reader_feature_flags,
            next_row_id=tail.next_row_id,
            data_format=decoded(DataStorageFormat, tail.data_format),
        ),
        (),
    )


def _fault(last: Any, frame: Frame) -> str:
    """Return why the engine cannot read the last fragment of a version; empty if it can, as far as is known."""
    problem = next(frame.problems_of_versions(decoded(Fragment, last)), None)
    return "" if problem is None else f"it cannot be read: {problem}"


def number_rows(fragment: Any, first: int, version: int) -> int:
    """Give the rows of a fragment their ids and versions; return their number."""
    rows = fragment.physical_rows
    ids = RowIdSequence()
    span = ids.segments.add().range
    if first:  # the engine leaves zeros out
        span.start = first
    span.end = first + rows
    versions = RowVersionSequence()
    run = versions.runs.add(version=version)
    run.span.range.end = rows
    fragment.inline_row_ids = ids.SerializeToString()
    fragment.inline_last_updated_at_versions = fragment.inline_created_at_versions = versions.SerializeToString()
    return int(rows)


def _by_path(fields: Sequence[bytes]) -> dict[tuple[str, ...], tuple[int, bytes]]:
    """Return the id of each field and its encoded description without ids, by the names that lead to it."""
    found: dict[tuple[str, ...], tuple[int, bytes]] = {}
    paths: dict[int, tuple[str, ...]] = {}
    for content in fields:
        field = parse(Field, content)
        number = field.id
        path = paths[number] = (*(paths[field.parent_id] if field.parent_id >= 0 else ()), field.name)
        metadata = sorted((entry.key, entry.value) for entry in field.metadata)
        for name in ("id", "parent_id", "metadata"):
            field.ClearField(name)
        for key, value in metadata:
            field.metadata.add(key=key, value=value)
        found[path] = number, field.SerializeToString()
    return found
