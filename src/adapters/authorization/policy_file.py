"""The policy in a TOML file.

A file has any number of grants::

    [[grants]]
    role = "write"                   # read, write or admin
    on = "ml.features"               # an object and everything below it; "" is the whole catalog
    principals = ["key:ada"]         # "*" is every authenticated principal
    groups = ["engineers"]

    [[grants]]
    rights = ["describe", "append", "CreateTableTag"]  # rights, and single operations, in place of a role
    on = "ml.events"
    groups = ["collectors"]

    [[grants]]
    role = "read"
    on = "hr.people"
    groups = ["analysts"]
    columns = ["id", "name", "team"]                   # other columns are absent
    rows = "team <> 'board'"                           # rows for which this is not true are absent

It may have quotas, which limit all callers, or the principals and groups that they name::

    [[quotas]]
    on = "ml"
    tables = 1000
    bytes = "2 TB"
"""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from decimal import Decimal
from pathlib import Path
from typing import Any

from lancekeep.domain.authorization import EVERYONE, Decision, Grant, Policy, Principal, Quota
from lancekeep.domain.conditions import Condition, condition_of
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.expressions import require_bounded
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.restrictions import NAMES, RESTRICTED, RIGHTS, Restriction
from lancekeep.domain.rights import ROLES, Permission, granted, name_of
from lancekeep.local_files import Reloaded, WatchedFile, not_reported

_LOG = logging.getLogger(__name__)
_KINDS = ("key:", "jwt:")
"""What the names of principals begin with: how they authenticate."""
_KEYS = ("role", "rights", "on", "principals", "groups", "columns", "rows")
_QUOTA_KEYS = ("on", "principals", "groups", "tables", "bytes")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?) ?([kMGTP]|[KMGTP]i)?B")
_POWERS = "kMGTP"
_KEY = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_KEY}(?:[ \t]*+\.[ \t]*+{_KEY}){{200}}")
"""A key of so many parts, for which the time of tomllib grows with their square."""

Check = Callable[[Policy], None]
"""Raises `InvalidInput` for a policy that cannot be kept."""


def any_policy(policy: Policy) -> None:
    """Accept every policy."""


class PolicyFile:
    """An `Authorizer` whose policy is a file, read again whenever the file changes.

    If a changed file is invalid, the last valid policy stays in force, the log reports the error once, and ``problem``
    holds it.

    Args:
        path: The file.
        reloaded: Called after each change of the file.
        check: Refuses a policy that cannot be kept.

    Raises:
        InvalidInput: The file cannot be read, or is invalid.
    """

    def __init__(self, path: Path, reloaded: Reloaded = not_reported, check: Check = any_policy) -> None:
        self.path = path
        self._file = WatchedFile(path)
        self._check = check
        self._policy = self._read()
        self._reloaded = reloaded
        self.problem: str | None = None

    def __repr__(self) -> str:
        return f"PolicyFile({str(self.path)!r})"

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        self._file.refresh(self._reload)
        return self._policy

    def state(self) -> Policy:
        return self.policy

    def decide(self, principal: Principal, permission: Permission, object_id: ObjectId) -> Decision:
        return self.policy.decide(principal, permission, object_id)

    def rights(self, principal: Principal, object_id: ObjectId) -> Set[str]:
        return self.policy.rights(principal, object_id)

    def restricted(self, principal: Principal, object_id: ObjectId) -> Sequence[Grant]:
        return self.policy.restricted(principal, object_id)

    def limiting(self, principal: Principal) -> Sequence[Quota]:
        return self.policy.limiting(principal)

    def sees(self, principal: Principal, object_id: ObjectId) -> bool:
        return self.policy.sees(principal, object_id)

    def subtrees(
        self, principal: Principal, object_id: ObjectId, required: Collection[Permission]
    ) -> Sequence[ObjectId]:
        return self.policy.subtrees(principal, object_id, required)

    def _reload(self) -> None:
        try:
            self._policy = self._read()
        except InvalidInput as error:
            self.problem = str(error)
            _LOG.error("The last valid policy stays in force: %s", error)
        else:
            self.problem = None
            policy = self._policy
            counts = len(policy.grants), len(policy.quotas)
            _LOG.info("Read the policy in %s again: %d grants, %d quotas.", self.path, *counts)
        self._reloaded(self.path, self.problem)

    def parsed(self, text: str, place: str) -> Policy:
        """Return the policy in a text, if this policy may become it.

        Raises:
            InvalidInput: The text is not a policy, or the policy cannot be kept.
        """
        policy = policy_of(text, place)
        self._check(policy)
        return policy

    def _read(self) -> Policy:
        return self.parsed(text_of(self.path), f"the policy {self.path}")


def read_policy(path: Path) -> Policy:
    """Read a policy.

    Raises:
        InvalidInput: The file cannot be read, or is invalid.
    """
    return policy_of(text_of(path), f"the policy {path}")


def text_of(path: Path) -> str:
    """Return the text of a policy.

    Raises:
        InvalidInput: The file cannot be read, or is not text in UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot read the policy {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f"the policy {path} is not a TOML file: {error}") from error


def policy_of(text: str, place: str) -> Policy:
    """Return the policy that a text in TOML describes.

    Args:
        text: The text.
        place: What an error calls the policy.

    Raises:
        InvalidInput: The text is not a policy.
    """
    if _LONG_KEY.search(text):
        raise InvalidInput(f"{place} has names of more than 200 parts; a policy needs none")
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{place} is not a TOML file: {str(error) or type(error).__name__}") from error
    _require_known(content, ("grants", "quotas"), place)
    return Policy(
        tuple(_grant(each, at, f"{place}, grant {at}") for at, each in _tables(content, "grants", place)),
        tuple(_quota(each, at, f"{place}, quota {at}") for at, each in _tables(content, "quotas", place)),
    )


def _tables(content: Mapping[str, Any], name: str, place: str) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the tables of one name, numbered from 1."""
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise InvalidInput(f"{place}: write each of the {name} as a table [[{name}]]")
    return list(enumerate(tables, 1))


def _grant(given: Mapping[str, Any], number: int, place: str) -> Grant:
    _require_known(given, _KEYS, place)
    rights, subtree = _rights(given, place), _subtree(given, place)
    principals, groups = _callers(given, place)
    if not principals and not groups:
        raise InvalidInput(f"{place} names no principal and no group; name one, or remove the grant")
    return Grant(rights, subtree, principals, groups, number, _restriction(given, rights, place))


def _quota(given: Mapping[str, Any], number: int, place: str) -> Quota:
    _require_known(given, _QUOTA_KEYS, place)
    subtree = _subtree(given, place)
    principals, groups = _callers(given, place)
    if "principals" not in given and "groups" not in given:
        principals = frozenset((EVERYONE,))
    elif not principals and not groups:
        raise InvalidInput(
            f"{place} names no principal and no group, so it limits no caller; name one, leave both keys out to limit "
            "every caller, or remove the quota"
        )
    tables = given.get("tables")
    if tables is not None and (not isinstance(tables, int) or isinstance(tables, bool) or tables < 0):
        raise InvalidInput(f"{place}: tables is {tables!r}; give a number of tables")
    size = _bytes(given["bytes"], place) if "bytes" in given else None
    if tables is None and size is None:
        raise InvalidInput(f"{place} limits nothing; give tables, bytes, or both")
    return Quota(subtree, tables, size, principals, groups, number)


def _bytes(given: Any, place: str) -> int:
    """Return a number of bytes, which may be text with a unit."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    found = _SIZE.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise InvalidInput(f"{place}: bytes is {given!r}; give a number, or text such as '2 TB' or '500 GiB'")
    number, unit = found.groups()
    power = 0 if unit is None else _POWERS.lower().index(unit[0].lower()) + 1
    return int(Decimal(number) * (1024 if unit is not None and unit.endswith("i") else 1000) ** power)


def _subtree(given: Mapping[str, Any], place: str) -> ObjectId:
    on = given.get("on")
    if not isinstance(on, str | list):
        found = "is missing" if on is None else f"is {on!r}"
        raise InvalidInput(
            f"{place}: on {found}; give the identifier of an object as text or as a list of names; '' is the catalog"
        )
    try:
        return ObjectId.of(on)
    except InvalidInput as error:
        raise InvalidInput(f"{place}: {error}") from error


def _callers(given: Mapping[str, Any], place: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the principals and groups that a grant or a quota names."""
    principals, groups = (_names(given, key, place) for key in ("principals", "groups"))
    unknown = sorted(name for name in principals if not name.startswith(_KINDS) and name != "*")
    if unknown:
        raise InvalidInput(
            f"{place}: the principal {unknown[0]!r} has no kind; write {_KINDS[0] + unknown[0]!r} for an API key, "
            f"{_KINDS[1] + unknown[0]!r} for the subject of a token, or '*'"
        )
    return principals, groups


def _restriction(given: Mapping[str, Any], rights: Set[str], place: str) -> Restriction | None:
    """Return the restriction of a grant, which permits reading alone."""
    if "columns" not in given and "rows" not in given:
        return None
    permitted = {*RIGHTS, *NAMES, *map(name_of, RESTRICTED)}
    more = sorted(rights - permitted)
    if more:
        raise InvalidInput(
            f"{place} has columns or rows, so it cannot permit {more[0]}: such a grant permits reading alone. Write a "
            f"second grant for {more[0]}, or give role = 'read'"
        )
    columns = _columns(given, place) if "columns" in given else None
    return Restriction(columns, frozenset([_condition(given["rows"], place)]) if "rows" in given else frozenset())


def _columns(given: Mapping[str, Any], place: str) -> frozenset[str]:
    columns = _names(given, "columns", place)
    if not columns:
        raise InvalidInput(f"{place}: columns is empty; name a column, or remove the grant")
    wrong = sorted(name for name in columns if "." in name or "`" in name or name in ("*", ""))
    if wrong:
        raise InvalidInput(
            f"{place}: columns has {wrong[0]!r}, which is no column; name whole columns, as the schema spells them. A "
            "struct is permitted with all of its fields"
        )
    return columns


def _condition(text: Any, place: str) -> Condition:
    if not isinstance(text, str):
        raise InvalidInput(f"{place}: rows is {text!r}; give a condition as text, such as \"team = 'a'\"")
    try:
        condition = condition_of(text)
        require_bounded(condition.text)
    except InvalidInput as error:
        raise InvalidInput(f"{place}: rows is {text!r}: {error}") from error
    if not condition.paths:
        raise InvalidInput(f"{place}: rows is {text!r}, which names no column; remove it, or name one")
    return condition


def _rights(given: Mapping[str, Any], place: str) -> frozenset[str]:
    """Return the rights that a grant names, by a role or one by one."""
    role = given.get("role")
    if "role" in given and "rights" in given:
        raise InvalidInput(f"{place} has a role and rights; give one of them, and write a second grant for the other")
    if "rights" not in given:
        if not isinstance(role, str) or role not in ROLES:
            raise InvalidInput(f"{place}: role is {role!r}; choose {', '.join(ROLES)}, or give rights")
        return frozenset(ROLES[role])
    names = _names(given, "rights", place)
    if not names:
        raise InvalidInput(f"{place}: rights is empty; name a right, or remove the grant")
    try:
        return granted(sorted(names))
    except InvalidInput as error:
        raise InvalidInput(f"{place}: {error}") from error


def _names(given: Mapping[str, Any], key: str, place: str) -> frozenset[str]:
    names = given.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise InvalidInput(f"{place}: {key} is {names!r}; give a list of names")
    return frozenset(names)


def _require_known(given: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise InvalidInput(f"{place} has the unknown key {unknown[0]!r}; known are {', '.join(known)}")
