"""Messages of the table format as values of the domain, and back.

The attributes of a value have the names of the message's fields, so one codec serves all classes: it reads the fields'
types from the message and learns from the attribute's default whether an absent field is None. Fields that this release
does not know stay encoded in the attribute ``others``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast, overload

import attrs
from google.protobuf.unknown_fields import UnknownFieldSet

from lancekeep.domain import manifest as values
from lancekeep.domain import operations
from lancekeep.domain.errors import Damaged
from lancekeep.domain.manifest import Fragment
from lancekeep.format.messages import MESSAGES, DataFragment, parse, uuid_text

T = TypeVar("T")

_NAMED_DIFFERENTLY = {
    values.Manifest: "ManifestOfVersion",
    values.Fragment: "DataFragment",
    values.SchemaField: "Field",
}
_ENUMS = {
    ("Field", "type"): values.FieldType,
    ("Field", "encoding"): values.FieldEncoding,
    ("DeletionFile", "file_type"): values.DeletionFileType,
    ("Update", "update_mode"): operations.UpdateMode,
}
CLASSES: Mapping[str, type] = {
    _NAMED_DIFFERENTLY.get(kind, kind.__name__): kind
    for module in (values, operations)
    for kind in vars(module).values()
    if isinstance(kind, type) and attrs.has(kind) and kind.__module__ == module.__name__
}
_OPERATIONS = {
    operations.UpdateMemWalState: "update_mem_wal_state",
    operations.AppendFragmentReuseTransitions: "append_fri_transitions",
}
"""The fields of operations whose names do not follow from the class."""
_FIRST_OPERATION = 100


class Fragments(Sequence[Fragment]):
    """The fragments of a manifest, each decoded when it is read.

    A table may have millions of fragments, so they stay encoded: decoded, they take ten times the memory.

    Attributes:
        encoded: The encoded fragments.

    Raises:
        Damaged: a fragment cannot be decoded, or has a value that the format does not allow.
    """

    def __init__(self, encoded: Sequence[bytes], name: str) -> None:
        self.encoded = encoded
        self._name = name

    def __len__(self) -> int:
        return len(self.encoded)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Fragment]: ...
    def __getitem__(self, index: int | slice) -> Fragment | Sequence[Fragment]:
        if isinstance(index, slice):
            return self.of(self.encoded[index])
        return self._value(self.encoded[index])

    def __iter__(self) -> Iterator[Fragment]:
        return map(self._value, self.encoded)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Fragments) and self.encoded == other.encoded:
            return True
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(ours == theirs for ours, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to tuples, which hash by content

    def __repr__(self) -> str:
        return f"<{len(self)} fragments of {self._name}>"

    def of(self, encoded: Sequence[bytes]) -> Fragments:
        """Return some of the fragments."""
        return Fragments(encoded, self._name)

    def messages(self) -> Iterator[Any]:
        """Yield the fragments as messages, which takes less time than values."""
        return map(self._message, self.encoded)

    def _message(self, content: bytes) -> Any:
        try:
            return parse(DataFragment, content)
        except ValueError as error:
            raise Damaged(f"{self._name}: a fragment cannot be decoded: {error}") from error

    def _value(self, content: bytes) -> Fragment:
        message = self._message(content)
        try:
            return decoded(Fragment, message)
        except ValueError as error:
            raise Damaged(f"{self._name}: fragment {message.id} is not valid: {error}") from error


def differing(fragments: Sequence[Fragment], others: Sequence[Fragment]) -> Iterator[Fragment]:
    """Yield the fragments that have no equal in other fragments.

    Encoded fragments are compared by their hashes, so only fragments that differ are decoded.
    """
    known = set(map(hash, _encoded(others)))
    if isinstance(fragments, Fragments):
        chosen = [content for content in fragments.encoded if hash(content) not in known]
        return iter(fragments.of(chosen))
    return (fragment for fragment in fragments if hash(encoded(fragment).SerializeToString()) not in known)


def _encoded(fragments: Sequence[Fragment]) -> Iterable[bytes]:
    if isinstance(fragments, Fragments):
        return fragments.encoded
    return (bytes(encoded(fragment).SerializeToString()) for fragment in fragments)


def decoded(kind: type[T], message: Any) -> T:
    """Return a message as a value of a class.

    Raises:
        ValueError: a field has a value that the format does not allow.
    """
    return kind(**_attributes_of(kind, message))


def decoded_manifest(message: Any, name: str) -> values.Manifest:
    """Return a manifest message as a value.

    Its fragments become values when they are read.

    Args:
        message: the message.
        name: the manifest file, for messages.

    Raises:
        ValueError: a field outside the fragments has a value that the format does not allow.
    """
    found = _attributes_of(values.Manifest, message)
    return values.Manifest(**{**found, "fragments": Fragments(message.fragments, name)})


def _attributes_of(kind: type, message: Any) -> dict[str, Any]:
    readers = _readers(kind)
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        attribute, read = readers[field.number]
        found[attribute] = value if read is None else read(value)
    if len(UnknownFieldSet(message)):
        found["others"] = _unknown_fields(message)
    return found


def encoded(value: Any) -> Any:
    """Return a value as a message.

    Raises:
        ValueError: an attribute does not fit into its field.
    """
    message = MESSAGES[message_name(type(value))]()
    if value.others:
        message.MergeFromString(value.others)
    for attribute, default, write in _writers(type(value)):
        part = getattr(value, attribute)
        if part is not default and (default is None or part != default):
            write(message, part)
    return message


def decoded_transaction(message: Any) -> operations.Transaction:
    """Return a transaction message as a value.

    Raises `ValueError`, as `decoded` does.
    """
    found = [field for field, _ in message.ListFields() if field.number >= _FIRST_OPERATION]
    if len(found) > 1:
        raise ValueError(f"the transaction has {len(found)} operations, {found[0].name} and {found[1].name} among them")
    operation: operations.Operation | None = None
    if found:
        operation = decoded(CLASSES[found[0].message_type.name], getattr(message, found[0].name))
    return operations.Transaction(
        message.read_version,
        message.uuid,
        message.tag,
        {entry.key: entry.value for entry in message.transaction_properties},
        operation,
        _unknown_fields(message) if len(UnknownFieldSet(message)) else b"",
    )


def encoded_transaction(transaction: operations.Transaction) -> Any:
    """Return a transaction as a message. Raises `ValueError`, as `encoded` does."""
    message = MESSAGES["Transaction"]()
    message.MergeFromString(transaction.others)
    for name in ("read_version", "uuid", "tag"):
        if getattr(transaction, name):
            setattr(message, name, getattr(transaction, name))
    for key, value in transaction.transaction_properties.items():
        message.transaction_properties.add(key=key, value=value)
    if transaction.operation is not None:
        operation = getattr(message, operation_name(type(transaction.operation)))
        _set_message(operation, transaction.operation)
    return message


def operation_name(kind: type[operations.Operation]) -> str:
    """Return the name of the field of an operation, such as ``create_index``."""
    given = _OPERATIONS.get(kind)
    return given or "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__)[1:]


def _learned_once(function: T) -> T:
    """Remember results, as `functools.cache`.

    The types of that function do not accept a class as an argument.
    """
    return cast("T", cache(cast("Any", function)))


_Read = Callable[[Any], Any]
_Write = Callable[[Any, Any], None]


@_learned_once
def _readers(kind: Any) -> dict[int, tuple[str, _Read | None]]:
    """Return how the attributes of a class are read, by field number. None takes the value of the field."""
    fields = MESSAGES[message_name(kind)].DESCRIPTOR.fields_by_name
    return {fields[name].number: (name, _reader(fields[name])) for name in _attributes(kind)}


@_learned_once
def _writers(kind: Any) -> list[tuple[str, Any, _Write]]:
    """Return how the attributes of a class are written, with their defaults, which are left out."""
    fields = MESSAGES[message_name(kind)].DESCRIPTOR.fields_by_name
    return [(name, default, _writer(fields[name])) for name, default in _attributes(kind).items()]


def _attributes(kind: type) -> dict[str, Any]:
    return {attribute.name: attribute.default for attribute in attrs.fields(kind) if attribute.name != "others"}


def message_name(kind: type) -> str:
    return _NAMED_DIFFERENTLY.get(kind, kind.__name__)


def _reader(field: Any) -> _Read | None:
    message = field.message_type
    if _is_of_version(field):
        return None  # see `decoded_manifest`
    if message is None:
        enum = _ENUMS.get((field.containing_type.name, field.name))
        return enum or (tuple if field.is_repeated else None)
    if message.name == "Uuid":
        return lambda of: uuid_text(of.uuid)
    if is_map(message):
        return _map_reader(message)
    item = CLASSES[message.name]
    if field.is_repeated:
        return lambda messages: tuple([decoded(item, each) for each in messages])
    return lambda of: decoded(item, of)


def _map_reader(entry: Any) -> _Read:
    value = entry.fields_by_name["value"].message_type
    if value is not None:
        item = CLASSES[value.name]
        return lambda entries: {each.key: decoded(item, each.value) for each in entries}
    if entry.name == "UpdateMapEntry":  # an entry without a value removes the key
        return lambda entries: {each.key: each.value if each.HasField("value") else None for each in entries}
    return lambda entries: {each.key: each.value for each in entries}


def _is_of_version(field: Any) -> bool:
    """Return whether a field holds the fragments of a manifest."""
    return (field.containing_type.name, field.name) == ("ManifestOfVersion", "fragments")


def _writer(field: Any) -> _Write:
    name, message = field.name, field.message_type
    if _is_of_version(field):
        return lambda to, value: to.fragments.extend(_encoded(value))
    if message is None:
        if field.is_repeated:
            return lambda to, value: getattr(to, name).extend(value)
        return lambda to, value: setattr(to, name, value)
    if message.name == "Uuid":
        return lambda to, value: setattr(getattr(to, name), "uuid", bytes.fromhex(value.replace("-", "")))
    if is_map(message):
        convert = encoded if message.fields_by_name["value"].message_type else _unchanged
        entry = MESSAGES[message.name]
        return lambda to, value: getattr(to, name).extend(
            [entry(key=key, value=convert(each)) for key, each in value.items()]
        )
    if field.is_repeated:
        return lambda to, value: getattr(to, name).extend([encoded(each) for each in value])
    return lambda to, value: _set_message(getattr(to, name), value)


def is_map(message: Any) -> bool:
    return message.name in ("Property", "Metadata") or message.name.endswith("Entry")


def _unchanged(value: Any) -> Any:
    return value


def _set_message(message: Any, value: Any) -> None:
    message.SetInParent()  # an empty message is present too
    message.CopyFrom(encoded(value))


def _unknown_fields(message: Any) -> bytes:
    """Return the encoded fields of a message that its definition does not name."""
    rest = type(message)()
    rest.CopyFrom(message)
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    return bytes(rest.SerializeToString())
