"""Define the options that commands share: stores and form of the output.

A command takes ``@stores``, which passes it a `Stores`, and ``@as_json`` and ``@assume_yes`` as needed. It receives the
public functions of the package by ``@click.pass_obj``, as `PublicFunctions`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TextIO, TypeVar

import attrs
import click

from lancekeep.application.catalog import Catalog, directory_of, services_of
from lancekeep.config import CATALOG_VARIABLE, REMEMBERED, ConnectionConfig, given, named_catalogs, public_url
from lancekeep.domain.errors import InvalidInput, NotFound
from lancekeep.entrypoints.cli.command import CATALOG, LEFT_OUT
from lancekeep.entrypoints.cli.console import message
from lancekeep.entrypoints.cli.output import FORM, FORMS

if TYPE_CHECKING:  # pylance loads only when a command reads files
    from lancekeep.application.certification import Certificate
    from lancekeep.application.upkeep.backup_report import BackupReport
    from lancekeep.application.upkeep.copy_report import CatalogCopy
    from lancekeep.entrypoints.hashing import Recording
    from lancekeep.entrypoints.lost_rows import LostRows
    from lancekeep.entrypoints.verification import Verification

P = ParamSpec("P")
T = TypeVar("T")


class PublicFunctions(Protocol):
    """The public functions of `lancekeep` for commands, imported on first use."""

    @property
    def connect(self) -> Callable[..., Catalog]: ...

    @property
    def backup(self) -> Callable[..., BackupReport]: ...

    @property
    def copy_catalog(self) -> Callable[..., CatalogCopy]: ...

    @property
    def certify(self) -> Callable[..., Certificate]: ...

    @property
    def verify(self) -> Callable[..., Verification]: ...

    @property
    def digest(self) -> Callable[..., Recording]: ...

    @property
    def lost_rows(self) -> Callable[[Catalog, Verification], list[LostRows]]: ...

    @property
    def drop_fragments(self) -> Callable[[Catalog, Verification], list[LostRows]]: ...

    @property
    def jobs(self) -> Any: ...  # the module `lancekeep.jobs`; asking for it needs PySpark


@attrs.frozen
class Stores:
    """The stores of a catalog: ``connect(**stores.given)``.

    They are resolved from arguments, environment and files.
    """

    root: str
    commit_store: str | None
    manifest_store: str | None
    storage_options: dict[str, str] = attrs.field(repr=False)
    commit_store_options: dict[str, str] = attrs.field(repr=False)
    manifest_store_options: dict[str, str] = attrs.field(repr=False)
    served: bool = False

    @classmethod
    def of(cls, config: ConnectionConfig) -> Self:
        """Return the stores of a configuration.

        Raises:
            InvalidInput: It names no root.
        """
        return cls(
            config.require_root(),
            config.commit_store,
            config.manifest_store,
            dict(config.storage_options),
            dict(config.commit_store_options),
            dict(config.manifest_store_options),
            config.impl == "rest",
        )

    @property
    def of_versions(self) -> dict[str, Any]:
        """The stores that decide about versions, for ``lancekeep.certify``."""
        return {name: value for name, value in self.given.items() if not name.startswith("manifest_store")}

    @property
    def given(self) -> dict[str, Any]:
        return attrs.asdict(self, filter=lambda field, _: field.name != "served")

    @contextmanager
    def catalog(self, functions: PublicFunctions, *, new: bool = False, **how: str | None) -> Iterator[Catalog]:
        """Open the catalog, by default with the commit store that it remembers.

        Args:
            functions: The public functions.
            new: Allow an empty root.
            how: Other arguments of `lancekeep.connect`.

        Raises:
            NotFound: The root is empty: a mistyped root must not look like a healthy catalog.
        """
        remembered = self.commit_store is None and not self.served
        given = {**self.given, "commit_store": REMEMBERED} if remembered else self.given
        with functions.connect(**given, **how) as catalog:
            if not new and services_of(catalog).is_bare():
                raise NotFound(f"{catalog.root_uri} holds neither a catalog nor a table. Check the root.")
            if remembered and (store := directory_of(catalog).ledger.own_store) is not None:
                message(f"Commit store: {store}, which the catalog remembers.")
            yield catalog


def stores(command: Callable[Concatenate[Stores, P], T]) -> Callable[..., T]:
    """Pass a command the argument CATALOG and its options, as a `Stores`.

    CATALOG is a root, a URL or the name of a configured catalog. Without it, the default catalog is meant.

    An option takes precedence over an option file, and both over the environment and ``lancekeep.toml``. The process
    list shows arguments to every user of the machine, so secrets belong in a file, on stdin or in the environment.
    """

    return _with_stores(command, Stores.of)


def stores_if_named(command: Callable[Concatenate[Stores | None, P], T]) -> Callable[..., T]:
    """Pass a command its `Stores`, as `stores` does.

    Without a CATALOG, named or configured, pass None.
    """
    return _with_stores(command, lambda config: None if config.root is None else Stores.of(config))


def _with_stores(
    command: Callable[Concatenate[Any, P], T], chosen: Callable[[ConnectionConfig], Stores | None]
) -> Callable[..., T]:
    @click.argument(CATALOG, metavar="[CATALOG]", required=False)
    @click.option(
        "--commit-store",
        metavar="URL",
        help="URL of the commit store. Default: the one that the catalog remembers. Also: LANCEKEEP_COMMIT_STORE.",
    )
    @pairs("--storage-option", "An option of the storage; may be repeated. Also: LANCEKEEP_STORAGE__NAME.")
    @pairs_in_file("--storage-option-file", "Read secret options of the storage from lines NAME=VALUE; '-' is stdin.")
    @pairs(
        "--commit-store-option",
        "An option of the commit store; may be repeated. Also: LANCEKEEP_COMMIT_STORE__NAME.",
    )
    @pairs_in_file("--commit-store-option-file", "The same for secret options of the commit store, a password.")
    @click.option(
        "--manifest-store",
        metavar="URL",
        help="URL of the store of the catalog's entries. Default: the directory ROOT. Also: LANCEKEEP_MANIFEST_STORE.",
    )
    @pairs(
        "--manifest-store-option",
        "An option of the manifest store; may be repeated. Also: LANCEKEEP_MANIFEST_STORE__NAME.",
    )
    @pairs_in_file("--manifest-store-option-file", "The same for secret options of the manifest store.")
    @wraps(command)
    def with_stores(
        *args: Any,
        place: str | None,
        commit_store: str | None,
        storage_option: dict[str, str],
        storage_option_file: dict[str, str],
        commit_store_option: dict[str, str],
        commit_store_option_file: dict[str, str],
        manifest_store: str | None,
        manifest_store_option: dict[str, str],
        manifest_store_option_file: dict[str, str],
        **kwargs: Any,
    ) -> T:
        left_out = click.get_current_context().meta.get(LEFT_OUT, False)
        config = ConnectionConfig.resolve(
            given(
                _named(None if left_out else place),
                commit_store=commit_store,
                manifest_store=manifest_store,
                storage_options=storage_option_file | storage_option,
                commit_store_options=commit_store_option_file | commit_store_option,
                manifest_store_options=manifest_store_option_file | manifest_store_option,
            )
        )
        return command(chosen(config), *args, **kwargs)

    return with_stores


def _named(place: str | None) -> dict[str, str]:
    """Return the property that an argument CATALOG stands for.

    Raises:
        InvalidInput: It is the name of a configured catalog and of another directory.
    """
    if place is None:
        return {}
    root = named_catalogs().get(place)
    if root is None:
        return {"root": place}
    if os.path.isdir(place) and os.path.realpath(place) != os.path.realpath(root):
        raise InvalidInput(
            f"{place!r} is a directory, and the name of the configured catalog at {public_url(root)}. Write "
            f"./{place} for the directory, or the root of the catalog"
        )
    return {"catalog": place}


def chosen_name() -> str | None:
    """Return the name of the configured catalog that the command was given.

    None stands for a root or a URL.
    """
    context = click.get_current_context()
    left_out = context.meta.get(LEFT_OUT, False)
    place = os.environ.get(CATALOG_VARIABLE) if left_out else context.params.get(CATALOG)
    return place if place in named_catalogs() else None


def advised(name: str, *words: str) -> str:
    """Return another command for the same catalog, as a message advises it.

    It has the CATALOG that was given, without secrets, and none if the default catalog was meant.
    """
    context = click.get_current_context()
    place = None if context.meta.get(LEFT_OUT, False) else context.params.get(CATALOG)
    return shlex.join(["lancekeep", name, *([] if place is None else [public_url(place)]), *words])


def as_json(command: Callable[P, T]) -> Callable[..., T]:
    """Add ``-o`` and ``--json``.

    The command receives ``as_json``. If it is true, the command prints by `print_report`.
    """

    @click.option("--json", "json_form", is_flag=True, help="Print the result as JSON, and nothing else: -o json.")
    @click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(FORMS),
        help="Form of the result; json has all of it.  [default: table]",
    )
    @wraps(command)
    def with_form(*args: Any, json_form: bool, form: str | None, **kwargs: Any) -> T:
        if json_form and form not in (None, "json"):
            raise click.UsageError(f"--json is -o json; give either --json or -o {form}")
        chosen = "json" if json_form else form or "table"
        click.get_current_context().meta[FORM] = chosen
        return command(*args, as_json=chosen != "table", **kwargs)  # type: ignore[arg-type]  # adds `as_json`

    return with_form


def assume_yes(command: Callable[P, T]) -> Callable[P, T]:
    """Add ``--yes``, which makes the changes that the command otherwise shows."""
    return click.option("--yes", "assume_yes", is_flag=True, help="Apply the plan. Without --yes, only show it.")(
        command
    )


def pairs(name: str, explanation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Add a repeatable option of the form NAME=VALUE; the command receives a dict."""
    return click.option(name, multiple=True, metavar="NAME=VALUE", callback=_parsed, help=explanation)


def pairs_in_file(name: str, explanation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Add an option for a file of lines NAME=VALUE; the command receives a dict.

    Empty lines and comments (#) are ignored.
    """
    return click.option(name, type=click.File(), metavar="FILE", callback=_parsed_file, help=explanation)


def _parsed_file(context: click.Context, option: click.Parameter, file: TextIO | None) -> dict[str, str]:
    if file is None:
        return {}
    lines = (line.rstrip("\r\n") for line in file)
    return _parsed(context, option, [line for line in lines if line.strip() and not line.startswith("#")])


def _parsed(_: click.Context, option: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Return pairs as a dict. Raises `click.BadParameter` with names only, because a value may be a secret."""
    pairs: dict[str, str] = {}
    for value in values:
        name, separator, given = value.partition("=")
        if not name or not separator:
            raise click.BadParameter("expected NAME=VALUE, found no name followed by '='", param=option)
        if name in pairs:
            raise click.BadParameter(f"{name} is given twice; give it once", param=option)
        pairs[name] = given
    return pairs
