"""The files that describe a version of a table, as values.

Table format, "Manifest" and "Conflict Resolution".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from lancekeep.domain.errors import Damaged
from lancekeep.domain.features import refuse_unknown_features
from lancekeep.domain.manifest import IndexMetadata, IndexSection, Manifest, Timestamp
from lancekeep.domain.operations import Transaction
from lancekeep.format.manifest import (
    OF_ONE_VERSION,
    TRANSACTION_SECTIONS,
    dictionaries_of,
    file_of,
    message_span,
    not_a_manifest,
    parse_section,
    parse_span,
)
from lancekeep.format.messages import MESSAGES, ManifestOfVersion, parse
from lancekeep.format.values import decoded, decoded_manifest, decoded_transaction, encoded, encoded_transaction

T = TypeVar("T")

_UNSET: Mapping[str, Any] = {each.name: each.default for each in attrs.fields(Manifest) if each.name in OF_ONE_VERSION}
_FIRST_OPERATION = 100
"""The number of the first field of a transaction that holds an operation."""


@attrs.frozen
class TableVersion:
    """A decoded manifest file.

    Attributes:
        manifest: the manifest. Its fragments are decoded when they are read.
        index_section: the indexes; None if the file has no such section.
        transaction: the transaction inside the file; None if it has none.
        dictionaries: the values of dictionaries of format 0.1, with which the file begins.
    """

    manifest: Manifest
    index_section: IndexSection | None = None
    transaction: Transaction | None = None
    dictionaries: bytes = attrs.field(default=b"", repr=False)

    @property
    def indices(self) -> tuple[IndexMetadata, ...]:
        """The indexes of the version."""
        return self.index_section.indices if self.index_section else ()

    @staticmethod
    def parse(content: bytes, name: str) -> TableVersion:
        """Decode a manifest file.

        Args:
            content: the bytes of the file.
            name: the file, for messages.

        Raises:
            Damaged: the bytes are not a manifest file. The message gives the position of the damaged section.
            Unsupported: readers of the table need a feature that is not known here.
        """
        try:
            begin, end = message_span(content)
            message = parse_span(ManifestOfVersion, content, begin, end)
            manifest = _at(begin, lambda: decoded_manifest(message, name))
            refuse_unknown_features(manifest.reader_feature_flags, name)
            index_section = None
            if manifest.index_section is not None:
                index_section = _section(content, "IndexSection", manifest.index_section, _index_section)
            transaction = None
            position = manifest.transaction_position
            if position is not None:
                transaction = _section(content, "Transaction", position, decoded_transaction)
            dictionaries = b""
            if any(field.dictionary is not None and field.dictionary.length for field in manifest.fields):
                dictionaries = dictionaries_of(content, manifest.index_section, position)
        except ValueError as error:
            raise not_a_manifest(name, error) from error
        return TableVersion(manifest, index_section, transaction, dictionaries)

    def serialize(self) -> bytes:
        """Encode the file, with the positions of its sections.

        The position of the transaction is in the fields that the manifest states; in both if it states none.

        Raises:
            ValueError: an attribute does not fit into its field.
        """
        message = encoded(self.manifest)
        stated = [field for field in TRANSACTION_SECTIONS if message.HasField(field)]
        for field in ("index_section", *TRANSACTION_SECTIONS):
            message.ClearField(field)
        head, sections = self.dictionaries, []
        if self.index_section is not None:
            message.index_section = len(head)
            sections.append(encoded(self.index_section).SerializeToString())
        if self.transaction is not None:
            for field in stated or TRANSACTION_SECTIONS:
                setattr(message, field, len(head) + sum(4 + len(section) for section in sections))
            sections.append(encoded_transaction(self.transaction).SerializeToString())
        return file_of(message.SerializeToString(), *sections, head=head)


def successor(manifest: Manifest, version: int, now: int, transaction_file: str, tag: str) -> Manifest:
    """Return a manifest as the manifest of a later version.

    It keeps every attribute that does not describe one version. `make_successor` does the same with messages.

    Args:
        manifest: the manifest.
        version: the number of the later version.
        now: the time in nanoseconds since 1970.
        transaction_file: the name of its transaction file.
        tag: the tag of its transaction.
    """
    stated = {"transaction_file": transaction_file, "tag": tag}
    return attrs.evolve(manifest, version=version, timestamp=Timestamp(*divmod(now, 10**9)), **{**_UNSET, **stated})


def parse_manifest(message: bytes, name: str) -> Manifest:
    """Decode a manifest message; see `TableVersion.parse` for the errors."""
    try:
        manifest = decoded_manifest(parse(ManifestOfVersion, message), name)
        refuse_unknown_features(manifest.reader_feature_flags, name)
    except ValueError as error:
        raise not_a_manifest(name, error) from error
    return manifest


def parse_transaction(content: bytes, name: str) -> Transaction:
    """Decode a transaction file, ``_transactions/{read_version}-{uuid}.txn``.

    Args:
        content: the bytes of the file.
        name: the file, for messages.

    Raises:
        Damaged: the bytes are not a transaction.
    """
    try:
        return decoded_transaction(parse(MESSAGES["Transaction"], content))
    except ValueError as error:
        raise Damaged(
            f"{name} is not a transaction of a Lance table: the message of {len(content)} bytes at 0: {error}"
        ) from error


def operation_field(content: bytes, name: str) -> str:
    """Return the name of the operation of a transaction, such as ``restore``.

    Args:
        content: the encoded transaction.
        name: the file, for messages.

    Raises:
        Damaged: the bytes are not a transaction.
    """
    try:
        fields = parse(MESSAGES["Transaction"], content).ListFields()
    except ValueError as error:
        raise Damaged(f"{name} is not a transaction of a Lance table: {error}") from error
    return next((str(field.name) for field, _ in fields if field.number >= _FIRST_OPERATION), "")


def serialize_transaction(transaction: Transaction) -> bytes:
    """Encode a transaction file.

    Raises `ValueError` if an attribute does not fit into its field.
    """
    return bytes(encoded_transaction(transaction).SerializeToString())


def _index_section(message: Any) -> IndexSection:
    return decoded(IndexSection, message)


def _section(content: bytes, kind: str, position: int, decode: Callable[[Any], T]) -> T:
    message = parse_section(MESSAGES[kind], content, position)
    return _at(position, lambda: decode(message))


def _at(position: int, decode: Callable[[], T]) -> T:
    """Add the position of a message to the error for its content."""
    try:
        return decode()
    except ValueError as error:
        raise ValueError(f"the message at {position}: {error}") from error
