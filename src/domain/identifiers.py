"""Identifiers of namespaces and tables (namespace specification, "Object Identifier")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import attrs

from lancekeep.domain.errors import InvalidInput

DELIMITER = "."
"""Joins names in the string form that people write."""

MANIFEST_DELIMITER = "$"
"""Joins names in the ``object_id`` column of the manifest table, and in directory names; so no name may hold it."""

LONGEST = 246
"""Bytes of an object id: behind ``{hash}_`` it has to fit a file name of 255 bytes."""

_FORBIDDEN = re.compile(r"[/\\$\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@attrs.frozen(order=True)
class ObjectId:
    """The names from below the root namespace down to an object; the root itself has none.

    >>> ObjectId.of("ml.features").names
    ('ml', 'features')
    """

    names: tuple[str, ...] = ()

    @staticmethod
    def of(identifier: str | Iterable[str] | ObjectId | None, delimiter: str = DELIMITER) -> ObjectId:
        """Understand an identifier in list form or, split at ``delimiter``, in string form; empty or None is the root.

        Raises:
            InvalidInput: a name is empty, is ``.`` or ``..``, holds ``/``, ``\\``, ``$`` or a control character, or
                the whole is longer than `LONGEST` bytes.
        """
        if isinstance(identifier, ObjectId):
            return identifier
        if identifier is None or identifier == "":
            return ObjectId()
        if not delimiter:
            raise InvalidInput("the delimiter between names is empty; give the names as a list")
        try:
            return _checked(tuple(identifier.split(delimiter) if isinstance(identifier, str) else identifier))
        except TypeError as error:  # no list, or one of what is not hashable, so no text
            raise InvalidInput(f"the identifier {identifier!r} is not text, nor a list of names that are") from error

    @staticmethod
    @lru_cache(maxsize=4096)
    def from_key(key: str) -> ObjectId:
        """The inverse of `key`, for what a manifest table holds; names are taken as they are."""
        return ObjectId(tuple(key.split(MANIFEST_DELIMITER)) if key else ())

    @property
    def key(self) -> str:
        """The ``object_id`` of the manifest table: the names joined by ``$``."""
        return MANIFEST_DELIMITER.join(self.names)

    @property
    def name(self) -> str:
        """The last name; empty for the root."""
        return self.names[-1] if self.names else ""

    @property
    def parent(self) -> ObjectId:
        """The namespace that holds the object; the root's parent is the root."""
        return ObjectId(self.names[:-1])

    @property
    def is_root(self) -> bool:
        return not self.names

    def child(self, name: str) -> ObjectId:
        """The object of that name inside this namespace."""
        return ObjectId.of((*self.names, name))

    def __str__(self) -> str:
        return DELIMITER.join(self.names) or "(root)"


@lru_cache(maxsize=4096)  # every native callback names its table anew
def _checked(names: tuple[str, ...]) -> ObjectId:
    for name in names:
        check_name(name, names)
    object_id = ObjectId(names)
    length = len(object_id.key.encode())
    if length > LONGEST:
        raise InvalidInput(
            f"the identifier {_shown(names)} is {length} bytes long; at most {LONGEST} fit into the name of a "
            "directory. Shorten a name."
        )
    return object_id


def check_name(name: object, names: tuple[object, ...]) -> None:
    """Raises `InvalidInput` where ``name``, one of ``names``, can be no part of an identifier."""
    if not isinstance(name, str):
        raise InvalidInput(f"{name!r} in the identifier {names!r} is not text; every name is a string")
    if not name:
        raise InvalidInput(f"the identifier {_shown(names)} holds an empty name; give every level a name")
    if name in (".", ".."):
        raise InvalidInput(f"{name!r} in the identifier {_shown(names)} names a directory; choose another name")
    forbidden = _FORBIDDEN.search(name)
    if forbidden:
        raise InvalidInput(
            f"the name {name!r} holds {forbidden[0]!r}; '/', '\\', '$' and control characters cannot be part of a name"
        )


def _shown(names: tuple[object, ...]) -> str:
    text = DELIMITER.join(map(str, names))
    return repr(text if len(text) <= 80 else text[:77] + "...")
