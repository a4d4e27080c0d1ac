"""The log of a request with an idempotency key, and the record of its effect.

A client that repeats a request with its idempotency key gets one effect and one answer. Each keyed request has a log,
which grows by put-if-absent, so all processes agree on its order. An attempt may change the catalog or commit a version
only while no later attempt has taken over. No lease and no clock is involved.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, TypeVar

import attrs

from lancekeep.domain.catalog import CatalogView, Change, SetProperties
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import Damaged, InvalidInput, StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import OWN_PROPERTIES
from lancekeep.domain.namespace import Namespace
from lancekeep.domain.table import Table, confined

Result = TypeVar("Result")
Effect = Table | Namespace

PROPERTY = f"{OWN_PROPERTIES}request."
"""The prefix of the properties of the root namespace that record effects."""


class Proof(Enum):
    """What proves that an operation took effect.

    ENTRY: a record in the commit of the catalog that made the change. VERSION: the staged manifest, which the log names
    before its commit. NONE: nothing proves it, so a request whose first attempt has left no answer is not repeated.
    """

    ENTRY = auto()
    VERSION = auto()
    NONE = auto()


PROOFS: Mapping[str, Proof] = {
    **dict.fromkeys(
        (
            "create_namespace",
            "drop_namespace",
            "declare_table",
            "create_empty_table",
            "create_table",
            "register_table",
            "deregister_table",
            "drop_table",
            "rename_table",
            "undrop_table",
            "alter_namespace",
            "alter_table",
        ),
        Proof.ENTRY,
    ),
    **dict.fromkeys(
        (
            "create_table_version",
            "batch_create_table_versions",
            "insert_into_table",
            "merge_insert_into_table",
            "update_table",
            "delete_from_table",
            "restore_table",
            "alter_table_add_columns",
            "alter_table_alter_columns",
            "alter_table_drop_columns",
            "update_table_schema_metadata",
            "update_field_metadata",
        ),
        Proof.VERSION,
    ),
}
"""The proof of each operation of a namespace; `Proof.NONE` for the others."""


_UUID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Superseded(StoreUnavailable):
    """A later attempt of the same request has taken over.

    This attempt changed nothing since.
    """


@attrs.frozen
class RequestKey:
    """Identifies a keyed request.

    Two clients, operations or objects never share a log.

    Attributes:
        principal: the authenticated client; empty without authentication.
        operation: the method of the namespace.
        object_id: the identifier of the object.
        key: the idempotency key.
    """

    principal: str
    operation: str
    object_id: tuple[str, ...]
    key: str

    @staticmethod
    def of(principal: str, operation: str, object_id: Sequence[str], key: str) -> RequestKey:
        """Return the key of a request.

        Raises:
            InvalidInput: the idempotency key is not a UUID.
        """
        if not _UUID.fullmatch(key):
            raise InvalidInput(
                "the Idempotency-Key is not a UUID; send one such as 7c1b7c5e-2d5f-4a4c-9d0e-4f8f0a6f3f11, new for "
                "each request and the same for its retries"
            )
        return RequestKey(principal, operation, tuple(object_id), key.lower())

    @property
    def name(self) -> str:
        """The name of the request's log and of its record."""
        parts = [self.principal, self.operation, list(self.object_id), self.key]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


# -- the log -------------------------------------------------------------------------------------------------------


@attrs.frozen
class Begun:
    """The first entry.

    Attributes:
        fingerprint: the digest of the request.
        attempt: the random name of the first attempt.
    """

    fingerprint: str
    attempt: str


@attrs.frozen
class TakenOver:
    """Another attempt continues; earlier attempts append nothing."""

    attempt: str


@attrs.frozen
class Claimed:
    """An attempt is about to commit staged manifests; the commit is the effect.

    Attributes:
        token: the staged manifests.
        body: the digest of the request's data; empty if the fingerprint covers them.
    """

    token: CommitToken
    body: str = ""


@attrs.frozen
class Answered:
    """The last entry: the answer.

    Attributes:
        answer: the text of the answer.
        body: the digest of the request's data, as in `Claimed`.
    """

    answer: str
    body: str = ""


Entry = Begun | TakenOver | Claimed | Answered
_KINDS: Mapping[str, type[Begun | TakenOver | Claimed | Answered]] = {
    "begun": Begun,
    "taken_over": TakenOver,
    "claimed": Claimed,
    "answered": Answered,
}


def encode_entry(entry: Entry) -> bytes:
    """Return the stored form of an entry."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(entry, kind))
    fields = {name: str(value) for name, value in attrs.asdict(entry, recurse=False).items()}
    return json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()


def decode_entry(content: bytes, name: str) -> Entry:
    """Return an entry from its stored form, which is input.

    Raises:
        Damaged: the content is not an entry; ``name`` names it in the message.
    """
    try:
        fields: dict[str, Any] = json.loads(content)
        kind = _KINDS[fields.pop("kind")]
        if not all(isinstance(value, str) for value in fields.values()):
            raise TypeError("a field is not text")
        if kind is Claimed:
            fields["token"] = CommitToken.parse(fields["token"])
        return kind(**fields)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(
            f"{name} is not an entry of the log of a keyed request. Remove the directory of the log; the request must "
            "then not be repeated with its key"
        ) from error


# -- the record in the catalog -------------------------------------------------------------------------------------


@attrs.frozen
class Record:
    """What a property of the root namespace says about a keyed request.

    Attributes:
        attempt: the number of the attempt: its place in the log.
        effect: what the attempt changed; None if it has only taken over.
    """

    attempt: int
    effect: Effect | None = None

    def encode(self) -> str:
        """Return the text of the property."""
        fields: dict[str, Any] = {"attempt": self.attempt}
        if self.effect is not None:
            fields |= {"id": list(self.effect.id.names), "properties": dict(self.effect.properties)}
        if isinstance(self.effect, Table):
            fields["location"] = self.effect.location
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    @staticmethod
    def decode(text: str) -> Record:
        """Return a record from its text.

        Raises:
            Damaged: the text is not a record.
        """
        try:
            fields = json.loads(text)
            attempt = fields["attempt"]
            if not isinstance(attempt, int):
                raise TypeError("the attempt is not a number")
            if "id" not in fields:
                return Record(attempt)
            object_id = ObjectId(tuple(map(str, fields["id"])))
            properties = {str(name): str(value) for name, value in fields["properties"].items()}
            if "location" in fields:
                return Record(attempt, Table(object_id, confined(str(fields["location"])), properties))
            return Record(attempt, Namespace(object_id, properties))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise Damaged(
                f"the root namespace has a property {PROPERTY}* that is not the record of a request: {text[:80]!r}"
            ) from error


def record_of(view: CatalogView, name: str) -> Record | None:
    """Return the record of a request; None if it has no effect yet."""
    text = view.properties.get(PROPERTY + name)
    return None if text is None else Record.decode(text)


def take_over(view: CatalogView, name: str, attempt: int) -> list[Change]:
    """Keep earlier attempts from changing the catalog.

    Change nothing if one of these attempts has made its change.

    Raises:
        Superseded: a later attempt has taken over.
    """
    record = _permitted(view, name, attempt)
    if record is not None and record.effect is not None:
        return []
    return [SetProperties({PROPERTY + name: Record(attempt).encode()})]


def recording(
    view: CatalogView,
    name: str,
    attempt: int,
    changes: Callable[[], tuple[Sequence[Change], Result]],
    effect: Callable[[Result], Effect],
    settled: Sequence[str] = (),
) -> tuple[Sequence[Change], Result]:
    """Return the changes of a decision with the record of their effect.

    Args:
        view: the catalog.
        name: the request.
        attempt: the number of the attempt.
        changes: the decision; called unless an earlier attempt has made its change.
        effect: takes the result of the decision, and returns what it changed.
        settled: requests whose answers are stored, so that their records are no longer needed.

    Raises:
        Superseded: a later attempt has taken over, or an earlier one has made the change.
    """
    record = _permitted(view, name, attempt)
    if record is not None and record.effect is not None:
        raise Superseded("another attempt of the request has made its change; repeat the request with its key")
    made, result = changes()
    if not made:
        return made, result
    forgotten = {PROPERTY + each: None for each in settled if PROPERTY + each in view.properties}
    recorded = {PROPERTY + name: Record(attempt, effect(result)).encode()}
    return [*made, SetProperties({**forgotten, **recorded})], result


def without_records(change: Change) -> Change:
    """Return a change without the records of requests in it."""
    if not isinstance(change, SetProperties):
        return change
    kept = {name: value for name, value in change.properties.items() if not name.startswith(PROPERTY)}
    return SetProperties(kept)


def withdrawing(
    view: CatalogView, name: str, attempt: int, changes: Callable[[], tuple[Sequence[Change], Result]]
) -> tuple[Sequence[Change], Result]:
    """Return the changes of a decision that undoes the effect, without the record.

    Raises:
        Superseded: a later attempt has taken over.
    """
    _permitted(view, name, attempt)
    made, result = changes()
    return [*made, SetProperties({PROPERTY + name: Record(attempt).encode()})], result


def _permitted(view: CatalogView, name: str, attempt: int) -> Record | None:
    record = record_of(view, name)
    if record is not None and record.attempt > attempt:
        raise Superseded("another attempt of the request has taken over; repeat the request with its key")
    return record


def another_request() -> InvalidInput:
    """Return the error of a key that was used for another request."""
    return InvalidInput(
        "the Idempotency-Key was used for another request of this operation and object; use a new key for each request"
    )
