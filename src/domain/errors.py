"""The errors that Lancekeep raises.

The root is :class:`LancekeepError`. Its families say what the caller does next:

========================  =============================================================================
family                    what the caller does next
========================  =============================================================================
:class:`InvalidInput`     correct the call; nothing was written
:class:`NotFound`         name something that exists
:class:`AlreadyExists`    choose another name, or use the existing object
:class:`Refused`          change the state that the message names, then call again
:class:`Retryable`        call again, later
:class:`CommitUnknown`    first settle it with ``resolve(error.token)``
:class:`Damaged`          repair the stored data; calling again does not help
:class:`EngineFailed`     read the table; do not repeat the call with the same values
========================  =============================================================================

:class:`~lancekeep.domain.commit_token.CommitUnknown` is defined with the token that it carries, the others below.

Errors pickle: every field is an argument of ``Exception.__init__``. A message names the object, says what was expected
and found and what to do, and contains no secret.
"""

from __future__ import annotations

from collections.abc import Iterator


class LancekeepError(Exception):
    """The root of all errors of Lancekeep."""


class InvalidInput(LancekeepError, ValueError):
    """The call is invalid. Nothing was written."""


class MissingExtra(InvalidInput):
    """An adapter needs a missing package; the message says how to install it."""


class SchemaMismatch(InvalidInput):
    """The columns of the data differ from the columns of the table."""


class NotFound(LancekeepError, LookupError):
    """The named object does not exist."""


class NamespaceNotFound(NotFound):
    """The namespace does not exist."""


class TableNotFound(NotFound):
    """The table does not exist."""


class ViewNotFound(NotFound):
    """The view does not exist."""


class VersionNotFound(NotFound):
    """The table has no such version."""


class CursorExpired(VersionNotFound):
    """The events after a cursor are not kept, or it belongs to another log."""


class TagNotFound(VersionNotFound):
    """The table has no such tag."""


class BranchNotFound(VersionNotFound):
    """The table has no such branch."""


class ColumnNotFound(NotFound):
    """The table has no such column."""


class IndexNotFound(NotFound):
    """The table has no such index."""


class TransactionNotFound(NotFound):
    """The catalog knows no such transaction."""


class ObjectNotFound(NotFound):
    """The object store has no object under this key."""


class AlreadyExists(LancekeepError):
    """The name is taken."""


class NamespaceAlreadyExists(AlreadyExists):
    """A namespace or a table has this name."""


class TableAlreadyExists(AlreadyExists):
    """A table or a namespace has this name."""


class ViewAlreadyExists(AlreadyExists):
    """A view, a table or a namespace has this name."""


class TagAlreadyExists(AlreadyExists):
    """The table has a tag of this name."""


class BranchAlreadyExists(AlreadyExists):
    """The table has a branch of this name."""


class IndexAlreadyExists(AlreadyExists):
    """The table has an index of this name."""


class Refused(LancekeepError):
    """The state of the catalog, the table or the store forbids the operation.

    The message says what would allow it.
    """


class Unsupported(Refused):
    """This kind of catalog or store lacks a feature; the message says which has it."""


class NamespaceNotEmpty(Refused):
    """The namespace is not empty."""


class CommitRefused(Refused):
    """The version must not be committed.

    It leaves a gap, names a foreign file, or would wipe the table.
    """


class LsmRefused(CommitRefused):
    """The version would set up LSM writes, which the table does not permit."""


class LsmWarning(UserWarning):
    """Issued if a count lacks rows of LSM writes, or native code hides `LsmRefused`."""


class VersionTaken(Refused):
    """Another writer committed this version; nothing of this commit remains."""


class CommitStoreMismatch(Refused):
    """Another commit store manages the versions of the catalog."""


class UnsafeStore(Refused):
    """The store lacks a guarantee that the operation needs."""


class UnsafeStoreWarning(UserWarning):
    """Issued in place of `UnsafeStore` if ``unsafe=True`` is set."""


class AccessDenied(Refused):
    """The credentials do not permit the operation."""


class QuotaExceeded(AccessDenied):
    """A quota of the policy is full; nothing was changed.

    Attributes:
        quota: The position of the quota in the policy; 0 if it is unknown.
        resource: What has no room: ``tables`` or ``bytes``.
    """

    def __init__(self, message: str = "", quota: int = 0, resource: str = "") -> None:
        super().__init__(message)
        self.quota = quota
        self.resource = resource


class Retryable(LancekeepError):
    """The operation failed, but may succeed if it is called again."""


class ConcurrentModification(Retryable):
    """Concurrent writers won every attempt. Nothing of this call was written."""


class StoreUnavailable(Retryable):
    """A store did not answer, or cannot answer now.

    The request may or may not have taken effect.
    """


class Damaged(LancekeepError):
    """Stored data violates the specification.

    The message names the object and the repair.
    """


class EngineFailed(LancekeepError):
    """The table engine failed unexpectedly, on given or on stored values.

    A change may or may not have been committed.
    """


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, each once: a chain of causes can be a cycle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__


def origin(found: BaseException, error: BaseException) -> BaseException | None:
    """Return what to raise ``found`` from, in place of ``error``.

    If ``found`` is a cause of ``error``, it keeps its own cause: otherwise the causes would be a cycle.
    """
    return found.__cause__ if any(each is found for each in causes(error)) else error
