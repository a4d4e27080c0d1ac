"""What commands have in common: the stores they work on, and how they talk.

A command takes ``@stores``, which gives it a `Stores`, and what it needs of ``@as_json`` and ``@assume_yes``; and the
catalog's public functions by ``@click.pass_obj``, a `Doors`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TextIO, TypeVar

import attrs
import click

from lancekeep.application.catalog import Catalog
from lancekeep.application.certification import Certificate
from lancekeep.domain.errors import NotFound

P = ParamSpec("P")
T = TypeVar("T")

STORAGE_ENVIRONMENT = "LANCEKEEP_STORAGE__"
COMMIT_STORE_ENVIRONMENT = "LANCEKEEP_COMMIT_STORE__"
"""What the names of environment variables that hold a store's options begin with; the rest is the option's name."""


class Doors(Protocol):
    """The public functions of `lancekeep` that commands call: an adapter must not import what is made of adapters."""

    @property
    def connect(self) -> Callable[..., Catalog]: ...

    @property
    def certify(self) -> Callable[..., Certificate]: ...

    @property
    def jobs(self) -> Any: ...  # the module `lancekeep.jobs`; asking for it needs PySpark


@attrs.frozen
class Stores:
    """Where the catalog lies and what commits its versions, as ``connect(**stores.given)`` takes it."""

    root: str
    commit_store: str | None
    storage_options: dict[str, str] = attrs.field(repr=False)
    commit_store_options: dict[str, str] = attrs.field(repr=False)

    @property
    def given(self) -> dict[str, Any]:
        return attrs.asdict(self)

    @contextmanager
    def catalog(self, doors: Doors, *, new: bool = False, **how: str) -> Iterator[Catalog]:
        """The catalog that lies there, or with ``new`` is to be made there.

        Raises `NotFound` where nothing lies: a mistyped root must not pass for a catalog in order.
        """
        with doors.connect(**self.given, **how) as catalog:
            if not new and catalog.is_bare():
                raise NotFound(f"nothing lies at {catalog.root_uri}: no catalog, and no table. Is it the right root?")
            yield catalog


def stores(command: Callable[Concatenate[Stores, P], T]) -> Callable[..., T]:
    """The argument ROOT and the options that go with it, as the first argument of the command.

    An option on the command line takes precedence over one in a file, and both over the environment. The list of
    processes shows arguments to every user of the machine, so secrets belong in a file, on stdin or in the environment.
    """

    @click.argument("root")
    @click.option(
        "--commit-store",
        envvar="LANCEKEEP_COMMIT_STORE",
        metavar="URL",
        help="The commit store; left out, the storage's own condition. Also: LANCEKEEP_COMMIT_STORE.",
    )
    @pairs("--storage-option", f"An option of the storage; may be repeated. Also: {STORAGE_ENVIRONMENT}NAME.")
    @pairs_in_file("--storage-option-file", "Read secret options of the storage from lines NAME=VALUE; '-' is stdin.")
    @pairs(
        "--commit-store-option",
        f"An option of the commit store; may be repeated. Also: {COMMIT_STORE_ENVIRONMENT}NAME.",
    )
    @pairs_in_file("--commit-store-option-file", "The same for secret options of the commit store, a password.")
    @wraps(command)
    def with_stores(
        *args: Any,
        root: str,
        commit_store: str | None,
        storage_option: dict[str, str],
        storage_option_file: dict[str, str],
        commit_store_option: dict[str, str],
        commit_store_option_file: dict[str, str],
        **kwargs: Any,
    ) -> T:
        storage = _from_environment(STORAGE_ENVIRONMENT) | storage_option_file | storage_option
        commits = _from_environment(COMMIT_STORE_ENVIRONMENT) | commit_store_option_file | commit_store_option
        return command(Stores(root, commit_store, storage, commits), *args, **kwargs)

    return with_stores


def as_json(command: Callable[P, T]) -> Callable[P, T]:
    """``--json``: the result as one JSON document on stdout, and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")(command)


def assume_yes(command: Callable[P, T]) -> Callable[P, T]:
    """``--yes``: do what would otherwise only be shown."""
    return click.option("--yes", "assume_yes", is_flag=True, help="Do it; without, it is only shown.")(command)


def pairs(name: str, explanation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """An option of the form NAME=VALUE that may be repeated, as a dict."""
    return click.option(name, multiple=True, metavar="NAME=VALUE", callback=_parsed, help=explanation)


def pairs_in_file(name: str, explanation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """An option that names a file with a line NAME=VALUE for each pair, as a dict; empty lines and comments (#) count
    for nothing."""
    return click.option(name, type=click.File(), metavar="FILE", callback=_parsed_file, help=explanation)


def _parsed_file(context: click.Context, option: click.Parameter, file: TextIO | None) -> dict[str, str]:
    if file is None:
        return {}
    lines = (line.rstrip("\r\n") for line in file)
    return _parsed(context, option, [line for line in lines if line.strip() and not line.startswith("#")])


def _from_environment(prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix).lower(): os.environ[name] for name in os.environ if name.startswith(prefix)}


def _parsed(_: click.Context, option: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Raises `click.BadParameter`, which quotes names only: a value may be a secret."""
    pairs: dict[str, str] = {}
    for value in values:
        name, separator, given = value.partition("=")
        if not name or not separator:
            raise click.BadParameter("expected NAME=VALUE, found no name followed by '='", param=option)
        if name in pairs:
            raise click.BadParameter(f"{name} is given twice; say it once", param=option)
        pairs[name] = given
    return pairs
