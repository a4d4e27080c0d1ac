"""Object identifiers (namespace specification, "Object Identifier")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import attrs

from lancekeep.domain.errors import InvalidInput

DELIMITER = "."
"""The separator of names in the string form of an identifier."""

MANIFEST_DELIMITER = "$"
"""The separator of names in the manifest table's ``object_id`` and in directory names; no name can contain it."""

DROPPED = ".lancekeep-dropped"
"""The first name of the records of dropped tables. No request can use it, and no such namespace exists."""

LONGEST = 246
"""The maximum length of an object id in bytes: with the prefix ``{hash}_`` it fits a file name of 255 bytes."""

_FORBIDDEN = re.compile(r"[/\\$\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@attrs.frozen(order=True)
class ObjectId:
    """The path of names from the root namespace to an object; the root has no names.

    >>> ObjectId.of("ml.features").names
    ('ml', 'features')
    """

    names: tuple[str, ...] = ()

    @staticmethod
    def of(identifier: str | Iterable[str] | ObjectId | None, delimiter: str = DELIMITER) -> ObjectId:
        """Parse an identifier in list form or string form; empty or None is the root.

        Args:
            identifier: names as a list, or as text with ``delimiter`` in between.
            delimiter: the separator in string form.

        Raises:
            InvalidInput: a name is empty, is ``.`` or ``..``, contains ``/``, ``\\``, ``$`` or a control character, or
                the identifier is longer than `LONGEST` bytes.
        """
        if isinstance(identifier, ObjectId):
            return identifier
        if identifier is None or identifier == "":
            return ObjectId()
        if not delimiter:
            raise InvalidInput("the delimiter is empty; give the names as a list, or choose a delimiter")
        try:
            return _checked(tuple(identifier.split(delimiter) if isinstance(identifier, str) else identifier))
        except TypeError as error:  # not iterable, or names that are not hashable and so not text
            raise InvalidInput(f"the identifier {identifier!r} is not text, and not a list of text") from error

    @staticmethod
    @lru_cache(maxsize=4096)
    def from_key(key: str) -> ObjectId:
        """Return the object id of a `key`, without checking its names."""
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
        """The namespace that contains the object; the parent of the root is the root."""
        return ObjectId(self.names[:-1])

    @property
    def is_root(self) -> bool:
        return not self.names

    def child(self, name: str) -> ObjectId:
        """Return the object with this name in this namespace."""
        return ObjectId.of((*self.names, name))

    def __str__(self) -> str:
        return DELIMITER.join(self.names) or "(root)"


@lru_cache(maxsize=4096)  # each native callback names its table
def _checked(names: tuple[str, ...]) -> ObjectId:
    for name in names:
        check_name(name, names)
    if names[:1] == (DROPPED,):
        raise InvalidInput(f"the name {DROPPED!r} is reserved for the catalog; choose another name")
    object_id = ObjectId(names)
    length = len(object_id.key.encode())
    if length > LONGEST:
        raise InvalidInput(
            f"the identifier {_shown(names)} has {length} bytes; the name of a directory has room for {LONGEST}. "
            "Shorten a name."
        )
    return object_id


def check_name(name: object, names: tuple[object, ...]) -> None:
    """Check one of the ``names`` of an identifier.

    Raises:
        InvalidInput: the name is not valid.
    """
    if not isinstance(name, str):
        raise InvalidInput(f"{name!r} in the identifier {names!r} is not text; give every name as a string")
    if not name:
        raise InvalidInput(f"the identifier {_shown(names)} contains an empty name; give every level a name")
    if name in (".", ".."):
        raise InvalidInput(f"{name!r} in the identifier {_shown(names)} names a directory; choose another name")
    forbidden = _FORBIDDEN.search(name)
    if forbidden:
        raise InvalidInput(
            f"the name {name!r} contains {forbidden[0]!r}; names cannot contain '/', '\\', '$' or control characters"
        )


def _shown(names: tuple[object, ...]) -> str:
    text = DELIMITER.join(map(str, names))
    return repr(text if len(text) <= 80 else text[:77] + "...")


Identifier = str | Iterable[str] | ObjectId
"""What a caller gives as an identifier: names joined by ``.``, a list of names, or an `ObjectId`."""
