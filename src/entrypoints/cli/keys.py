"""``lancekeep keys``: create, list, rotate and revoke the API keys of a server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from lancekeep.adapters.authentication.api_keys import ApiKey, KeyFile
from lancekeep.entrypoints.cli.command import Command
from lancekeep.entrypoints.cli.console import print_line, print_table
from lancekeep.entrypoints.cli.options import as_json
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import span

T = TypeVar("T")


def _file(command: Callable[..., T]) -> Callable[..., T]:
    return click.option(
        "--file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="LANCEKEEP_SERVER__KEYS",
        required=True,
        help="The file of keys that the server reads. Also: LANCEKEEP_SERVER__KEYS.",
    )(command)


@click.group()
def keys() -> None:
    """Create, list, rotate and revoke the API keys of a server."""


@keys.command(cls=Command)
@click.argument("name")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group of the principal; may be repeated.")
@click.option("--expires", type=span, help="Time until the key expires: 90d. Default: never.")
@_file
@as_json
def create(name: str, groups: tuple[str, ...], expires: timedelta | None, file: Path, as_json: bool) -> None:
    """Create a key for the principal key:NAME, and print it.

    The key is shown only this once; the file holds its hash.
    """
    now = datetime.now(UTC)
    key, whole = KeyFile(file).create(name, groups, None if expires is None else now + expires, now)
    if as_json:
        print_report({**_document(key), "key": whole})
    else:
        print_line(whole)
        click.echo(f"Key {key.id} of {key.principal.name}. It is not shown again; store it now.", err=True)


@keys.command(name="list", cls=Command)
@_file
@as_json
def list_keys(file: Path, as_json: bool) -> None:
    """List the keys, without their secrets."""
    found = [_document(key) for key in KeyFile(file).keys().values()]
    if as_json:
        print_report(found)
        return
    columns = ("id", "principal", "groups", "created", "expires")
    print_table("Keys", columns, [tuple(_cell(each[column]) for column in columns) for each in found])


@keys.command(cls=Command)
@click.argument("key_id", metavar="ID")
@click.option("--overlap", type=span, default="7d", show_default=True, help="How long the old key stays valid.")
@_file
@as_json
def rotate(key_id: str, overlap: timedelta, file: Path, as_json: bool) -> None:
    """Create a key in place of the key ID, and print it.

    Both keys are valid until the overlap is over, so that callers can change to the new one. It has the principal, the
    groups and the time to live of the old key, is shown only this once, and the file holds its hash.
    """
    old, key, whole = KeyFile(file).rotate(key_id, overlap)
    if as_json:
        print_report({**_document(key), "key": whole, "replaces": _document(old)})
        return
    print_line(whole)
    end = _document(old)["expires"]
    click.echo(f"Key {key.id} of {key.principal.name}; {old.id} is valid until {end}. Store it now.", err=True)


@keys.command(cls=Command)
@click.argument("key_id", metavar="ID")
@click.option("--in", "span", type=span, required=True, help="Time from now until the key expires: 7d.")
@_file
@as_json
def expire(key_id: str, span: timedelta, file: Path, as_json: bool) -> None:
    """Let the key ID expire after a time from now.

    The end may be later than the present one.
    """
    key = KeyFile(file).expire(key_id, datetime.now(UTC) + span)
    if as_json:
        print_report(_document(key))
    else:
        print_line(f"Key {key.id} of {key.principal.name} is valid until {_document(key)['expires']}.")


@keys.command(cls=Command)
@click.argument("key_id", metavar="ID")
@_file
@as_json
def revoke(key_id: str, file: Path, as_json: bool) -> None:
    """Revoke the key ID at once."""
    key = KeyFile(file).revoke(key_id)
    if as_json:
        print_report({"revoked": _document(key)})
    else:
        print_line(f"Revoked key {key.id} of {key.principal.name}.")


def _document(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "principal": key.principal.name,
        "groups": list(key.groups),
        "created": key.created.isoformat(timespec="seconds"),
        "expires": None if key.expires is None else key.expires.isoformat(timespec="seconds"),
    }


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value or "never")
