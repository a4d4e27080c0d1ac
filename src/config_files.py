"""The configuration files: where they are, and what they contain."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lancekeep.domain.errors import InvalidInput

FILE = "lancekeep.toml"
SUBSCRIBERS = ("webhooks", "event_files")
"""The lists of subscribers of events that a file may have."""
CONFIG_VARIABLE = "LANCEKEEP_CONFIG"
"""Names the one configuration file to read, in place of the files of the project and the user."""


def files(variables: Mapping[str, str]) -> Iterator[Path]:
    """Return the files to read.

    They are the nearest one in the current folder and its parents, then the user's.
    """
    if variables.get(CONFIG_VARIABLE):
        yield Path(variables[CONFIG_VARIABLE]).expanduser()
        return
    project = next(filter(os.path.isfile, (folder / FILE for folder in _folders())), None)
    if project is not None and _is_trusted(project):
        yield project
    home = variables.get("XDG_CONFIG_HOME") or variables.get("APPDATA") or os.path.expanduser("~/.config")
    user = Path(home, "lancekeep", FILE)
    if user.is_absolute() and os.path.isfile(user):  # without a home, "~" is a folder of the current folder
        yield user


def _folders() -> Iterator[Path]:
    try:
        current = Path.cwd()
    except FileNotFoundError:  # the current folder was removed
        return
    yield from (current, *current.parents)


def _is_trusted(file: Path) -> bool:
    """Return whether this user or root owns a file: in a shared parent such as /tmp, anyone can create one."""
    if not hasattr(os, "geteuid") or file.stat().st_uid in (0, os.geteuid()):
        return True
    warnings.warn(
        f"{file} belongs to another user and is ignored; set {CONFIG_VARIABLE} to its path to use it", stacklevel=2
    )
    return False


def content(file: Path) -> dict[str, Any]:
    """Return the content of a file.

    Raises:
        InvalidInput: The file cannot be read, or is no TOML file.
    """
    import tomllib  # a process without a configuration file starts without it

    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        problem = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "it is not UTF-8"
        raise InvalidInput(f"{file} is not a TOML file: {problem}") from None  # the cause quotes the content


def tables_of_catalog(variables: Mapping[str, str], name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the table ``[catalogs.NAME]`` of each file that has it, with the file."""
    for file in files(variables):
        catalogs = content(file).get("catalogs", {})
        table = catalogs.get(name) if isinstance(catalogs, dict) else None
        if isinstance(table, dict):  # `ConnectionConfig` refuses other forms
            yield file, table


def subscriber_tables(
    variables: Mapping[str, str], catalog: str | None = None
) -> tuple[Path, dict[str, list[dict[str, Any]]]] | None:
    """Return the subscribers of events in the first file that has some.

    Args:
        variables: The environment.
        catalog: The configured catalog whose subscribers are wanted; None for the top level of the files.

    Returns:
        The file, and the tables by the names in `SUBSCRIBERS`; None if no file has any.

    Raises:
        InvalidInput: A list of subscribers has another form.
    """
    top = ((file, content(file)) for file in files(variables))
    prefix = "" if catalog is None else f"catalogs.{catalog}."
    for file, table in top if catalog is None else tables_of_catalog(variables, catalog):
        found = {name: value for name, value in table.items() if name in SUBSCRIBERS}
        for name, tables in found.items():
            if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
                raise InvalidInput(f"{file}: write each entry of {name!r} as a table [[{prefix}{name}]]")
        if found:
            return file, found
    return None


def is_toml(text: str) -> bool:
    """Return whether a text is the content of a TOML file."""
    import tomllib  # as in `content`

    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True
