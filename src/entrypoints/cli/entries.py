"""``lancekeep create``, ``rename``, ``register``, ``set`` and ``unset``."""

from __future__ import annotations

import re
from typing import Any

import click

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, pairs, stores
from lancekeep.entrypoints.cli.upkeep import mode

_VECTOR = re.compile(r"(.+)\[(\d+)]")


@command()
@click.option("--namespace", is_flag=True, help="Create a namespace in place of a table.")
@pairs("--column", "A column of the table, with its Arrow type: id=int64, v=float[768]; may be repeated.")
@pairs("--property", "A property; may be repeated.")
@mode
@stores
@click.argument("name")
@click.pass_obj
def create(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    mode: str | None,
    namespace: bool,
    column: dict[str, str],
    property: dict[str, str],  # noqa: A002 - the name of the option
) -> None:
    """Create a namespace, or a table without rows.

    A type is the name of an Arrow type, such as int64 or timestamp[us]. A type with a length is a type of vectors.
    """
    if namespace == bool(column):
        raise click.UsageError(
            "Give either --namespace or the columns of a table; `lancekeep import` creates a table from files."
        )
    with chosen.catalog(functions, new=True, mode=mode) as catalog:
        if namespace:
            catalog.create_namespace(name, property)
            message(f"Created the namespace {name}.")
        else:
            catalog.write(name, _schema(column).empty_table(), properties=property)
            message(f"Created the table {name} with {len(column)} columns.")


def _schema(columns: dict[str, str]) -> Any:
    import pyarrow as pa

    return pa.schema([(name, _type(name, text)) for name, text in columns.items()])


def _type(name: str, text: str) -> Any:
    import pyarrow as pa

    vector = _VECTOR.fullmatch(text)
    try:
        item = pa.type_for_alias(vector[1] if vector else text)
    except ValueError:
        raise InvalidInput(
            f"column {name}: {text!r} is no Arrow type. Write int64, double, string, bool, binary, date32, "
            "timestamp[us], or a vector such as float[768]"
        ) from None
    return pa.list_(item, int(vector[2])) if vector else item


@command()
@mode
@stores
@click.argument("name")
@click.argument("target", metavar="NEW_NAME")
@click.pass_obj
def rename(functions: PublicFunctions, chosen: Stores, name: str, target: str, mode: str | None) -> None:
    """Rename a table, also into another namespace.

    The table NAME is NEW_NAME from now on; its files stay where they are. Later commits under the old name are refused.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        catalog.rename_table(name, target)
    message(f"Renamed {name} to {target}.")


@command()
@pairs("--property", "A property of the table; may be repeated.")
@mode
@stores
@click.argument("name")
@click.argument("location")
@click.pass_obj
def register(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    location: str,
    mode: str | None,
    property: dict[str, str],  # noqa: A002 - the name of the option
) -> None:
    """Add an existing Lance table below the root to the catalog.

    LOCATION is its directory: relative to the root, an absolute path or a URI. `lancekeep deregister` removes it again.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        catalog.register_table(name, location, property)
        version = catalog.describe_table(name).version
    message(f"Registered {name} with version {version}.")


@command("set")
@mode
@stores
@click.argument("name")
@click.argument("properties", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.pass_obj
def set_(functions: PublicFunctions, chosen: Stores, name: str, properties: tuple[str, ...], mode: str | None) -> None:
    """Set properties of a table or a namespace.

    Other properties of NAME do not change. The page about properties lists those that Lancekeep reads.
    """
    given = dict(each.split("=", 1) for each in properties if "=" in each[1:])
    if len(given) != len(properties):
        raise click.UsageError("Write each property once, as KEY=VALUE.")
    with chosen.catalog(functions, mode=mode) as catalog:
        _alter(catalog, name, set=given)
    message(f"Set {', '.join(given)} of {name}.")


@command()
@mode
@stores
@click.argument("name")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.pass_obj
def unset(functions: PublicFunctions, chosen: Stores, name: str, keys: tuple[str, ...], mode: str | None) -> None:
    """Remove properties of a table or a namespace.

    Other properties of NAME do not change.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        _alter(catalog, name, remove=keys)
    message(f"Removed {', '.join(keys)} from {name}.")


def _alter(catalog: Catalog, name: str, **change: Any) -> None:
    alter = catalog.alter_table if catalog.table_exists(name) else catalog.alter_namespace
    alter(name, **change)
