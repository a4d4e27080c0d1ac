"""``lancekeep config``: the configuration of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import click

from lancekeep.config import ConnectionConfig, named_catalogs, public_url
from lancekeep.config_files import FILE, content, is_toml
from lancekeep.config_settings import COMMIT_STORE, REST, STORAGE
from lancekeep.domain.errors import InvalidInput, Refused
from lancekeep.entrypoints.cli.command import Command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import can_ask, confirmed, message, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, assume_yes, pairs, pairs_in_file
from lancekeep.entrypoints.cli.output import Column, Output, output

NONE = "none"
_SECRET = re.compile(r"[a-z0-9+.-]+://[^/]*@|[?&][^=]*(password|secret|token|key)[^=]*=", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@click.group()
def config() -> None:
    """Show and write the configuration of this machine."""


@config.command(cls=Command)
@output
def show(out: Output) -> None:
    """Show each setting, its value and where it comes from.

    Settings come from the environment and from lancekeep.toml. Options of stores and of a server may be secrets, so
    their values are not shown.
    """
    columns = (Column("setting"), Column("value"), Column("origin"))
    found = ConnectionConfig.resolve({})
    rows = [
        {"setting": name, "value": _shown(found, name), "origin": origin}
        for name, origin in sorted(found.sources.items())
    ]
    rows += [
        {"setting": f"catalogs.{name}", "value": public_url(root), "origin": "lancekeep.toml"}
        for name, root in sorted(named_catalogs().items())
    ]
    out.rows(columns, rows, "Nothing is configured; commands need a CATALOG.")


def _shown(found: ConnectionConfig, name: str) -> str:
    if name.startswith((STORAGE, COMMIT_STORE, REST)):
        return "not shown"
    value = getattr(found, name)
    return public_url(value) if isinstance(value, str) else str(value).lower()


@attrs.frozen
class _Answers:
    """What the file will say.

    Attributes:
        root: The root of the catalog, absolute.
        commit_store: The URL of its commit store; None for none.
        name: The name of the catalog in commands; empty for the default catalog.
    """

    root: str
    commit_store: str | None
    name: str

    @property
    def is_served(self) -> bool:
        """Whether the root is a server, which has stores of its own."""
        return self.root.lower().startswith(("http://", "https://"))

    def section(self) -> str:
        """Return the lines of the file."""
        head = [f"[catalogs.{self.name}]"] if self.name else []
        store = [] if self.commit_store is None else [f"commit_store = {_quoted(self.commit_store)}"]
        return "\n".join([*head, f"root = {_quoted(self.root)}", *store, ""])


@config.command(cls=Command)
@click.option("--root", help="The root of the catalog: a directory, or a URL such as s3://bucket/lake.")
@click.option("--commit-store", metavar="URL", help="URL of its commit store, without a password; none for none.")
@click.option("--name", help="A name for the catalog in commands. Default: it is the default catalog.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), default=FILE, help="The file to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@pairs("--storage-option", "An option of the storage, for the check only; may be repeated.")
@pairs_in_file("--storage-option-file", "The same for secret options, from lines NAME=VALUE; '-' is stdin.")
@pairs("--commit-store-option", "An option of the commit store, for the check only; may be repeated.")
@pairs_in_file("--commit-store-option-file", "The same for secret options, a password.")
@assume_yes
@click.pass_context
def init(
    context: click.Context,
    root: str | None,
    commit_store: str | None,
    name: str | None,
    file: Path,
    overwrite: bool,
    storage_option: dict[str, str],
    storage_option_file: dict[str, str],
    commit_store_option: dict[str, str],
    commit_store_option_file: dict[str, str],
    assume_yes: bool,
) -> None:
    """Write lancekeep.toml, after a check of the stores.

    Asks for what the options do not give. Checks by `lancekeep certify` that the stores are safe for commits. Passwords
    are never written: give them by the environment. Without a terminal, needs --root, --commit-store and --yes. Exit
    code 1: the stores can lose a commit, and nothing was written.
    """
    functions: PublicFunctions = context.obj
    answers = _answers(root, commit_store, name)
    adds = _adds(file, answers, overwrite)
    done = "add the catalog to" if adds else "replace" if file.exists() else "write"
    stores = f"{answers.root} with {answers.commit_store or 'no commit store'}"
    check = "" if answers.is_served else f"Check {stores}, which writes and removes files there, and "
    plan = f"{check}{done} {file}"
    if not confirmed(plan[0].upper() + plan[1:], assume_yes):
        return
    if not answers.is_served:
        options = (storage_option_file | storage_option, commit_store_option_file | commit_store_option)
        failed = _failed(functions, answers, *options)
        if failed:
            message(f"Not safe: {'; '.join(failed)}. Nothing was written.")
            context.exit(WRONG)
    _write(file, _added(file, answers) if adds else answers.section(), new=done == "write")
    place = f" {answers.name}" if answers.name else ""
    message(f"Wrote {file}. Create the catalog with lancekeep init{place}.")


def _failed(
    functions: PublicFunctions, answers: _Answers, storage_options: dict[str, str], commit_store_options: dict[str, str]
) -> list[str]:
    """Return the checks that stores fail."""
    with progress("certify") as report_progress:
        certificate = functions.certify(
            answers.root,
            commit_store=answers.commit_store,
            storage_options=storage_options,
            commit_store_options=commit_store_options,
            progress=report_progress,
        )
    return [f"{check.name}: {check.evidence}" for check in certificate.failed]


def _answers(root: str | None, commit_store: str | None, name: str | None) -> _Answers:
    """Complete the options by questions.

    Raises:
        Refused: An option is missing, and there is no terminal to ask.
        InvalidInput: An answer cannot be written.
    """
    if root is not None and root.lower().startswith(("http://", "https://")):
        commit_store = commit_store or NONE  # the server has it
    missing = [option for option, given in (("--root", root), ("--commit-store", commit_store)) if given is None]
    if missing and not can_ask():
        raise Refused(f"there is no terminal to ask for {' and '.join(missing)}. Nothing was changed. Add the options")
    if root is None:
        root = str(click.prompt("Root of the catalog", default="./lake", err=True))
    if commit_store is None:
        explained = "Commit store (none, conditional-put://, sqlite:///PATH, redis://HOST, dynamodb://TABLE)"
        commit_store = str(click.prompt(explained, default="conditional-put://", err=True))
    if name is None:
        name = str(click.prompt("Name (empty: the default catalog)", default="", err=True)) if missing else ""
    if name and not _NAME.fullmatch(name):
        raise InvalidInput(f"the name {name!r} has other characters than letters, digits, '-' and '_'. Choose another")
    for what, given in (("root", root), ("commit store", commit_store)):
        if _SECRET.search(given):
            raise InvalidInput(
                f"the {what} {public_url(given)} has a user, a password or a key. Leave "
                "them out; set LANCEKEEP_COMMIT_STORE__PASSWORD and LANCEKEEP_STORAGE__NAME in the environment"
            )
        if not given or not given.isprintable():
            raise InvalidInput(f"the {what} {given!r} is no URL and no path. Nothing was changed")
    place = root if "://" in root else os.path.abspath(os.path.expanduser(root))
    return _Answers(place, None if commit_store == NONE else commit_store, name)


def _adds(file: Path, answers: _Answers, overwrite: bool) -> bool:
    """Return whether to add a section to the file and keep the rest.

    Raises:
        Refused: The file exists, and may not be replaced.
        InvalidInput: The folder of the file does not exist, or the file cannot be read, or no section can follow.
    """
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"{file}: its folder does not exist. Nothing was changed. Create the folder first")
    if not os.path.lexists(file):
        return False
    found: Mapping[str, Any] = content(file) if not overwrite else {}
    if answers.name and not overwrite and answers.name not in found.get("catalogs", {}):
        if not is_toml(_added(file, answers)):
            raise InvalidInput(
                f"{file}: catalogs is not written as sections, so none can follow. Nothing was changed. Write each "
                f"catalog as [catalogs.NAME], or choose another --file"
            )
        return True
    if not overwrite and not (can_ask() and click.confirm(f"{file} exists. Replace it?", err=True)):
        raise Refused(f"{file} exists. Nothing was changed. Choose another --file or --name, or add --overwrite")
    return False


def _added(file: Path, answers: _Answers) -> str:
    """Return the text of a file, with the section of the catalog at its end."""
    return file.read_text("utf-8").rstrip("\n") + "\n\n" + answers.section()


def _write(file: Path, text: str, *, new: bool) -> None:
    """Write a file, which appears when it is complete.

    A file that exists keeps its permissions, because it may have secrets, and its symbolic link.
    """
    place = Path(os.path.realpath(file))
    partial = place.with_name(f".{place.name}.{uuid4().hex}")
    try:
        if not new:
            partial.touch(mode=0o600)
            shutil.copymode(place, partial)
        partial.write_text(text, "utf-8")
        if new:
            os.link(partial, place)  # refuses a file that appeared since
            partial.unlink()
        else:
            os.replace(partial, place)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _quoted(text: str) -> str:
    """Return a printable text as a string of TOML."""
    return json.dumps(text, ensure_ascii=False)
