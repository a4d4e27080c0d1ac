"""Every error Lancekeep raises on purpose.

One root, :class:`LancekeepError`; below it, families by what the caller does next:

========================  =============================================================================
family                    what the caller does next
========================  =============================================================================
:class:`InvalidInput`     correct the call; nothing was written
:class:`NotFound`         name something that exists
:class:`AlreadyExists`    choose another name, or use what is there
:class:`Refused`          change the state that forbids it (the message says which), then call again
:class:`Retryable`        call again, later
:class:`CommitUnknown`    settle it with ``resolve(error.token)``, before anything else
:class:`Damaged`          repair what is stored; calling again will not help
========================  =============================================================================

:class:`~lancekeep.domain.commit_token.CommitUnknown` is defined with the token that it carries; the others are below.

Errors pickle: every field is an argument of ``Exception.__init__``. Messages name the object, what was
expected, what was found and what to do, and never a secret.
"""

from __future__ import annotations


class LancekeepError(Exception):
    """The root of every error Lancekeep raises on purpose."""


class InvalidInput(LancekeepError, ValueError):
    """The call cannot mean anything: correct it. Nothing was written."""


class MissingExtra(InvalidInput):
    """The chosen adapter needs a package that is not installed; the message says how to install it."""


class NotFound(LancekeepError, LookupError):
    """What was named does not exist."""


class NamespaceNotFound(NotFound):
    """No such namespace."""


class TableNotFound(NotFound):
    """No such table."""


class VersionNotFound(NotFound):
    """The table has no such version."""


class TagNotFound(VersionNotFound):
    """The table has no such tag."""


class BranchNotFound(VersionNotFound):
    """The table has no such branch."""


class ObjectNotFound(NotFound):
    """The object store holds nothing under this key."""


class AlreadyExists(LancekeepError):
    """The name is taken."""


class NamespaceAlreadyExists(AlreadyExists):
    """A namespace or a table has this name."""


class TableAlreadyExists(AlreadyExists):
    """A table or a namespace has this name."""


class Refused(LancekeepError):
    """The state of the catalog, the table or the store forbids it; the message says what would allow it."""


class Unsupported(Refused):
    """A catalog of this kind cannot hold or do it; the message says which kind can."""


class NamespaceNotEmpty(Refused):
    """The namespace still has children."""


class CommitRefused(Refused):
    """This version may never be committed: it leaves a gap, names a foreign file, or would wipe the table."""


class VersionTaken(Refused):
    """Another writer has committed this very version; nothing of this commit remains."""


class CommitStoreMismatch(Refused):
    """The catalog's versions are managed by another commit store than the one it was opened with."""


class UnsafeStore(Refused):
    """The store lacks a guarantee that the operation rests on."""


class UnsafeStoreWarning(UserWarning):
    """What `UnsafeStore` would have said, had not ``unsafe=True`` been given."""


class AccessDenied(Refused):
    """The credentials at hand do not permit this."""


class Retryable(LancekeepError):
    """It did not work this time; calling again may."""


class ConcurrentModification(Retryable):
    """Others kept changing the same thing until the attempts ran out. Nothing of this call was written."""


class StoreUnavailable(Retryable):
    """A store did not answer, or answered that it cannot now. What it was asked may or may not have happened."""


class Damaged(LancekeepError):
    """What is stored contradicts the specification; the message names the object and the repair."""
