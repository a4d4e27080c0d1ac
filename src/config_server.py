"""The sources of the settings of ``lancekeep serve``, and their precedence."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from lancekeep.config_files import content, files, tables_of_catalog
from lancekeep.config_settings import ARGUMENT, SERVER, property_of
from lancekeep.domain.errors import InvalidInput


def server_settings(
    given: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    catalog: str | None = None,
    shared: Collection[str] = (),
) -> Iterator[tuple[str, Any, str]]:
    """Yield the settings of a server, each once, from the first source that has it.

    They are the given ones, then ``LANCEKEEP_SERVER__NAME``, then, if a catalog is named, ``[catalogs.NAME.server]`` of
    the files that `ConnectionConfig` reads, then ``[server]`` of the files.

    Args:
        given: Explicit settings by name; None stands for a setting that is not given.
        environment: The variables to read; by default the variables of the process.
        catalog: The configured catalog that is served, if it has a name.
        shared: The settings that no catalog has for itself.

    Yields:
        The name, the value and the origin of a setting. A table inside ``[server]`` is one value.

    Raises:
        InvalidInput: A table has another form, or a catalog has a shared setting.
    """
    variables = os.environ if environment is None else environment
    sources: list[tuple[str, Mapping[str, Any]]] = [
        (ARGUMENT, {name: value for name, value in given.items() if value is not None})
    ]
    for variable, value in variables.items():
        if (name := property_of(variable)).startswith(SERVER):
            sources.append((variable, {name.removeprefix(SERVER): value}))
    if catalog is not None:
        for file, table in tables_of_catalog(variables, catalog):
            origin, section = f"{file} [catalogs.{catalog}.server]", _server_table(file, table)
            if wrong := sorted(section.keys() & set(shared)):
                raise InvalidInput(f"{origin}: all catalogs of a server share {wrong[0]!r}; write it in [server]")
            sources.append((origin, section))
    sources += [(f"{file} [server]", _server_table(file, content(file))) for file in files(variables)]
    seen: set[str] = set()
    for origin, settings in sources:
        yield from ((name, value, origin) for name, value in settings.items() if name not in seen)
        seen.update(settings)


def _server_table(file: Path, table: Mapping[str, Any]) -> Mapping[str, Any]:
    section = table.get("server", {})
    if not isinstance(section, dict):
        raise InvalidInput(f"{file}: 'server' is a {type(section).__name__}; write a section [server]")
    return section
