"""Names of columns, and how SQL of the engine quotes them.

Measured with pylance 14: the engine refuses a dot in the name of a column. It stores a backtick or an empty name, but
then can neither read nor append to the table. In the names of fields of structs both are fine. SQL of the engine, and
its paths, take any name between backticks, with each backtick doubled.
"""

from __future__ import annotations

from collections.abc import Iterable

from lancekeep.domain.errors import InvalidInput


def quoted(*names: str) -> str:
    """Return the path of a column or field as SQL of the engine takes it."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def unquoted(name: str) -> str:
    """Return a name as SQL states it, without its quotes."""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def plain_path(names: Iterable[str]) -> str:
    """Return a path as `quoted` does, with quotes only where the path needs them."""
    return ".".join(quoted(name) if "." in name or "`" in name else name for name in names)


def require_readable(columns: Iterable[str]) -> None:
    """Check that the engine can read columns with such names.

    Raises:
        InvalidInput: A name is empty, or has a backtick or a dot.
    """
    for name in columns:
        if not name or "`" in name or "." in name:
            raise InvalidInput(
                f"a column cannot have the name {name!r}: Lance cannot read columns whose names are empty or have a "
                f"backtick or a dot. Choose another name; for a table that has the column: ALTER TABLE … RENAME COLUMN "
                f"{quoted(name)} TO …"
            )
