"""Changes of the policy in a TOML file, which keep its comments.

A grant is appended as text, and removed as lines, so everything else in the file stays unchanged. Each change is read
again before it is written: if the result were another policy than the one intended, it is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from lancekeep.adapters.authorization.policy_file import policy_of, text_of
from lancekeep.domain.authorization import Grant, Policy
from lancekeep.domain.errors import InvalidInput
from lancekeep.local_files import locked, replace_file

LARGEST: Final = 1 << 20
"""The most bytes of a policy that a change may leave: servers read it as a whole."""
KEYS: Final = ("role", "rights", "on", "principals", "groups", "columns", "rows")
"""The keys of a grant, in the order in which they are written."""

_WHAT = "the policy"
_HEADER = re.compile(r"[ \t]*\[")
_GRANT = re.compile(r"""[ \t]*\[\[[ \t]*(?:grants|"grants"|'grants')[ \t]*\]\]""")

Parse = Callable[[str, str], Policy]
"""Returns the policy in a text, given what an error calls it; raises `InvalidInput`."""


@attrs.frozen
class Permit:
    """Refuses changes, under the lock of the file.

    Attributes:
        found: Called with the text before the change.
        left: Called with the policy after the change, before it is written.
    """

    found: Callable[[str], None] = lambda _: None
    left: Callable[[Policy], None] = lambda _: None


_ANY: Final = Permit()


@attrs.frozen
class Changed:
    """A policy after a change.

    Attributes:
        text: Its text.
        policy: The policy.
        grant: The grant that was added or removed; None if the policy was replaced.
        removed: The lines that were removed with a grant, with the comments in them.
    """

    text: str
    policy: Policy
    grant: Grant | None = None
    removed: str = ""


class PolicyEdits:
    """Changes the file of a policy, under a lock.

    Each change asks ``permit`` under the lock, before it changes anything.

    Args:
        path: The file.
        parse: Reads a policy, and refuses one that cannot be kept.
    """

    def __init__(self, path: Path, parse: Parse = policy_of) -> None:
        self.path = path
        self._parse = parse

    def add(self, grant: Mapping[str, Any], permit: Permit = _ANY) -> Changed:
        """Add a grant to the end of the file.

        Args:
            grant: The keys and values of the grant, as in the file.
            permit: Refuses a change.

        Raises:
            InvalidInput: The grant or the present file is not valid.
            Unsupported: This process may not change the file.
        """
        lines = ["[[grants]]", *(f"{key} = {_toml(grant[key])}" for key in KEYS if grant.get(key) is not None)]
        added = "\n".join(lines) + "\n"
        _require_small(added)
        [wanted] = policy_of(added, "the new grant").grants
        with locked(self.path, _WHAT) as target:
            before = self._text(permit)
            old = self._parse(before, f"the policy {self.path}")
            text = before + ("" if before.endswith("\n") or not before else "\n") + ("\n" if before else "") + added
            wanted = attrs.evolve(wanted, number=len(old.grants) + 1)
            intended = attrs.evolve(old, grants=(*old.grants, wanted))
            policy = self._written(target, text, intended, permit)
        return Changed(text, policy, wanted)

    def remove(self, number: int, permit: Permit = _ANY) -> Changed:
        """Remove a grant by its position from 1.

        Comments between the lines of the grant are removed with it; comments before and after the grant stay.

        Raises:
            InvalidInput: There is no such grant, or the present file is not valid, or its grants are not written as
                ``[[grants]]``.
            Unsupported: This process may not change the file.
        """
        with locked(self.path, _WHAT) as target:
            before = self._text(permit)
            old = self._parse(before, f"the policy {self.path}")
            if not 1 <= number <= len(old.grants):
                raise InvalidInput(f"the policy has {len(old.grants)} grants, and no grant {number}; list them first")
            text, removed = _without(before, number)
            rest = [each for each in old.grants if each.number != number]
            grants = tuple(attrs.evolve(each, number=place) for place, each in enumerate(rest, 1))
            policy = self._written(target, text, attrs.evolve(old, grants=grants), permit)
        return Changed(text, policy, old.grants[number - 1], removed)

    def replace(self, text: str, permit: Permit = _ANY) -> Changed:
        """Replace the whole policy, with its comments.

        The present file need not be valid.

        Raises:
            InvalidInput: The text is not a valid policy.
            Unsupported: This process may not change the file.
        """
        _require_small(text)
        policy = self._parse(text, "the new policy")
        with locked(self.path, _WHAT) as target:
            self._text(permit)
            self._written(target, text, policy, permit)
        return Changed(text, policy)

    def _text(self, permit: Permit) -> str:
        text = text_of(self.path) if self.path.exists() else ""
        permit.found(text)
        return text

    def _written(self, target: Path, text: str, intended: Policy, permit: Permit) -> Policy:
        content = _require_small(text)
        if _parsed_or_none(self._parse, text) != intended:
            raise InvalidInput(
                f"the grants in {self.path} are not written as [[grants]], so one of them cannot be changed alone; "
                "nothing was changed. Replace the whole policy"
            )
        permit.left(intended)
        replace_file(target, content, _WHAT, self.path, private=False)
        return intended


def _require_small(text: str) -> bytes:
    """Return a text as bytes, before it is parsed."""
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("the policy has a character that UTF-8 cannot write; remove it") from error
    if len(content) > LARGEST:
        raise InvalidInput(f"the policy would have {len(content)} bytes; it may have {LARGEST}")
    return content


def _parsed_or_none(parse: Parse, text: str) -> Policy | None:
    try:
        return parse(text, "the changed policy")
    except InvalidInput:
        return None


def _without(text: str, number: int) -> tuple[str, str]:
    """Return a text without its grant of a number, and the removed lines."""
    lines = text.split("\n")
    headers = [place for place, line in enumerate(lines) if _GRANT.match(line)]
    if number > len(headers):
        return text, ""
    start = headers[number - 1]
    following = (place for place in range(start + 1, len(lines)) if _HEADER.match(lines[place]))
    end = next(following, len(lines))
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):  # it belongs to what follows
        end -= 1
    return "\n".join((*lines[:start], *lines[end:])), "\n".join((*lines[start:end], ""))


def _toml(value: str | Sequence[str]) -> str:
    """Return a text or a list of texts as TOML."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"[{', '.join(map(_toml, value))}]"
