"""Complete commands, options and names in a shell (ADR 114).

A key press must not wait for the storage, nor for the import of a command with its dependencies. This module therefore
imports click and the configuration only, and answers from two caches: the parameters of the commands, and names of
catalogs. Another process, `lookup`, reads names and writes them into the cache: the first key press waits for it for a
moment, later ones show what the cache has, and refresh it. Whatever fails completes nothing, and says nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

VARIABLE, REQUEST = "_LANCEKEEP_COMPLETE", "_LANCEKEEP_LOOKUP"
"""Variables of the shell's program: what to do, and what to look up."""
LOOKUP = "lookup"

_FRESH, _PATIENCE, _ABANDONED = 10.0, 1.5, 20.0
"""Seconds: names of this age are not looked up again; a key press waits at most so long for the first answer of a
catalog; a lookup that began earlier has failed."""
_UNUSED = 30 * 86_400.0
"""Seconds after which names that were not looked up leave the cache."""

TABLES, NAMESPACES, COLUMNS, TAGS, BRANCHES, DROPPED = "tables", "namespaces", "columns", "tags", "branches", "dropped"
_FILE = "file"
_ARGUMENTS = {
    "name": TABLES,
    "table": TABLES,
    "tables": TABLES,
    "source": TABLES,
    "target": TABLES,
    "namespace": NAMESPACES,
    "column": COLUMNS,
    "tag": TAGS,
    "version": TAGS,
    "before": TAGS,
    "after": TAGS,
    "branch": BRANCHES,
    "file": _FILE,
    "files": _FILE,
    "sources": _FILE,
}
"""What an argument names, by its name."""
_OPTIONS = {"--version": TAGS, "--branch": BRANCHES, "--column": COLUMNS, "--table": TABLES, "--from": BRANCHES}
_OF_DROPPED = ("undrop", "purge")
_OF_TABLE = (COLUMNS, TAGS, BRANCHES)
_CATALOG = "place"


class _Bash(BashComplete):
    """Completion in bash: no space after the name of a namespace."""

    source_template = BashComplete.source_template.replace(
        "elif [[ $type == 'plain' ]]; then\n            COMPREPLY+=($value)",
        "elif [[ $type == 'part' ]]; then\n            COMPREPLY+=(\"$value\")\n            compopt -o nospace\n"
        "        elif [[ $type == 'plain' ]]; then\n            COMPREPLY+=(\"$value\")",
    )


SHELLS: Mapping[str, type[ShellComplete]] = {"bash": _Bash, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(tuple(SHELLS)))
def completion(shell: str) -> None:
    """Print the program that completes commands, options and names in a shell.

    For bash: add eval "$(lancekeep completion bash)" to ~/.bashrc. Names of tables, columns and tags come from a cache
    in $XDG_CACHE_HOME/lancekeep.
    """
    group: Any = click.get_current_context().find_root().command
    click.echo(SHELLS[shell](group, {}, "lancekeep", VARIABLE).source())
    _parameters(group)


def complete(group: click.Group, instruction: str) -> None:
    """Answer the shell's program: print what completes the word at the cursor."""
    shell, _, action = instruction.partition("_")
    if action != "complete" or shell not in SHELLS:
        return
    shell_complete = SHELLS[shell](group, {}, "lancekeep", VARIABLE)
    warnings.simplefilter("ignore")
    with suppress(Exception):
        arguments, incomplete = shell_complete.get_completion_args()
        for item in _items(group, arguments, incomplete):
            shown = CompletionItem(item.value) if shell != "bash" and item.type == "part" else item
            click.echo(shell_complete.format_completion(shown))


def _items(group: click.Group, arguments: Sequence[str], incomplete: str) -> Iterator[CompletionItem]:
    known: Mapping[str, Any] = {"commands": _parameters(group), "options": {"--help": {}, "--version": {}}}
    path, rest = [], list(arguments)
    while rest and rest[0] in known.get("commands", {}):
        path.append(rest[0])
        known = known["commands"][rest.pop(0)]
    if "commands" in known:
        names = known["options"] if incomplete.startswith("-") else known["commands"]
        yield from _starting(names, incomplete)
        return
    positional, option, given = _parsed(known["options"], rest)
    if option is None and incomplete.startswith("-"):
        yield from _starting(known["options"], incomplete)
        return
    word = _Word(path[-1] if path else "", known["arguments"], positional, given)
    if option is not None:
        described = known["options"][option]
        kind = described.get("kind") or _OPTIONS.get(option)
        yield from _starting(described["choices"], incomplete) if described["choices"] else word.named(kind, incomplete)
    else:
        yield from word.argument(incomplete)


def _starting(names: Any, incomplete: str) -> Iterator[CompletionItem]:
    yield from (CompletionItem(name) for name in sorted(names) if name.startswith(incomplete))


def _parsed(options: Mapping[str, Any], rest: Sequence[str]) -> tuple[list[str], str | None, dict[str, str]]:
    """Return the arguments, the option whose value is missing, and the values of options."""
    positional: list[str] = []
    given: dict[str, str] = {}
    words = iter(rest)
    for word in words:
        name, separator, value = word.partition("=")
        if name in options and options[name]["takes_value"] and not separator:
            following = next(words, None)
            if following is None:
                return positional, name, given
            given[name] = following
        elif separator and name in options:
            given[name] = value
        elif not word.startswith("-"):
            positional.append(word)
    return positional, None, given


class _Word(NamedTuple):
    """The word at the cursor, among the arguments of a command."""

    command: str
    arguments: Sequence[Mapping[str, Any]]
    positional: Sequence[str]
    options: Mapping[str, str]

    def argument(self, incomplete: str) -> Iterator[CompletionItem]:
        others, takes_catalog = self._others(), self._takes_catalog()
        at = len(self.positional) - self._catalogs()
        if takes_catalog and not self.positional:
            from lancekeep.config import named_catalogs

            yield CompletionItem("", type="dir")
            yield from _starting(filter(_is_plain, named_catalogs()), incomplete)
            at = 0 if self._default() else len(others)
        if others and (at < len(others) or others[-1]["nargs"] == -1):
            yield from self.named(_ARGUMENTS.get(others[min(at, len(others) - 1)]["name"]), incomplete)

    def named(self, kind: str | None, incomplete: str) -> Iterator[CompletionItem]:
        """Yield names of one kind."""
        if kind == _FILE:
            yield CompletionItem("", type="file")
            return
        if kind is None:
            return
        kind = DROPPED if kind == TABLES and self.command in _OF_DROPPED else kind
        at = self._catalogs()
        table = next(iter(self.positional[at:]), "")
        if kind in _OF_TABLE and not table:
            return
        parent, dot, _ = incomplete.rpartition(".")
        subject = table if kind in _OF_TABLE else parent if kind in (TABLES, NAMESPACES) else ""
        settings = {name: self.options[f"--{name}"] for name in ("commit-store", "mode") if f"--{name}" in self.options}
        request = {
            "root": self.positional[0] if at else "",
            "kind": kind,
            "of": subject,
            "commit_store": settings.get("commit-store"),
            "mode": settings.get("mode"),
        }
        above = f"{parent}{dot}" if kind in (TABLES, NAMESPACES) else ""
        for name, is_whole in names_for(request, incomplete.removeprefix(above)):
            if _is_plain(whole := f"{above}{name}"):
                yield CompletionItem(whole if is_whole else f"{whole}.", type="plain" if is_whole else "part")

    def _others(self) -> list[Mapping[str, Any]]:
        return [each for each in self.arguments if each["name"] != _CATALOG]

    def _takes_catalog(self) -> bool:
        return len(self._others()) < len(self.arguments)

    def _catalogs(self) -> int:
        """Return how many of the given arguments are the catalog: one or none."""
        from lancekeep.entrypoints.cli.command import names_catalog

        if not self._takes_catalog() or not self.positional:
            return 0
        return int(names_catalog(self.positional[0]) or not self._default())

    def _default(self) -> bool:
        from lancekeep.config import ConnectionConfig

        return ConnectionConfig.resolve({}).root is not None


def _is_plain(name: str) -> bool:
    """Return whether a shell takes a name as one word, without quotes."""
    return all(each.isalnum() or each in "._-@+" for each in name) and not name.startswith("-")


# -- the parameters of commands ------------------------------------------------------------------------------------


def _parameters(group: click.Group) -> dict[str, Any]:
    """Return the parameters of each command, from the cache or from the commands."""
    sources = (file.stat() for file in Path(__file__).parent.glob("*.py"))
    stamp = [sys.version, *sorted(f"{each.st_mtime_ns} {each.st_size}" for each in sources)]
    name = f"commands-{hashlib.sha256(repr((__file__, stamp)).encode()).hexdigest()[:16]}.json"
    with suppress(OSError):
        if (found := _read(_cache() / name)) is not None:
            return dict(found)
    context = click.Context(group)
    loaded = {name: group.get_command(context, name) for name in group.list_commands(context)}
    described = {name: _described(each) for name, each in loaded.items() if each is not None}
    with suppress(OSError):  # without a cache, each key press imports the commands
        for old in _cache().glob("commands-*.json"):
            old.unlink(missing_ok=True)
        write(_cache() / name, described)
    return described


def _described(command: click.Command) -> dict[str, Any]:
    options = {
        name: {
            "takes_value": not (each.is_flag or each.count),
            "choices": list(each.type.choices) if isinstance(each.type, click.Choice) else [],
            "kind": _FILE if isinstance(each.type, click.Path | click.File) else None,
        }
        for each in command.params
        if isinstance(each, click.Option)
        for name in each.opts
    }
    options["--help"] = {"takes_value": False, "choices": [], "kind": None}
    arguments = [
        {"name": each.name, "nargs": each.nargs} for each in command.params if isinstance(each, click.Argument)
    ]
    found: dict[str, Any] = {"options": options, "arguments": arguments}
    if isinstance(command, click.Group):
        found["commands"] = {name: _described(each) for name, each in command.commands.items()}
    return found


# -- names ---------------------------------------------------------------------------------------------------------


def names_for(request: Mapping[str, Any], prefix: str) -> list[tuple[str, bool]]:
    """Return names that begin with a prefix.

    They come from the cache, and are looked up if they are old or missing. Each comes with whether it is a whole name.
    """
    found = _refreshed({**request, "prefix": ""})
    if found is not None and not found["complete"] and prefix:
        found = _refreshed({**request, "prefix": prefix})
    names = [] if found is None else found["names"]
    return [(name, is_whole) for name, is_whole in names if name.startswith(prefix)]


def cache_of(request: Mapping[str, Any]) -> Path:
    """Return the file with the names that a request asks for."""
    from lancekeep.config import ConnectionConfig

    root = ConnectionConfig.resolve(root_of(request)).root or ""
    place = root if "://" in root else os.path.realpath(os.path.expanduser(root))
    text = json.dumps({**request, "root": place}, sort_keys=True)
    return _cache() / f"names-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def root_of(request: Mapping[str, Any]) -> dict[str, str]:
    """Return the property that the argument CATALOG of a request stands for."""
    from lancekeep.config import named_catalogs

    place = str(request["root"])
    return {} if not place else {"catalog": place} if place in named_catalogs() else {"root": place}


def _refreshed(request: Mapping[str, Any]) -> Any:
    """Return what the cache has; start a lookup if it is old, and wait for it if there is nothing."""
    file = cache_of(request)
    found = _read(file)
    if found is not None and abs(time.time() - found["at"]) < _FRESH:  # a clock that was set back lets names age
        return found
    started = _started(file, request)
    if found is None and started is not None:
        with suppress(subprocess.TimeoutExpired):
            started.wait(_PATIENCE)
        found = _read(file)
    return found


def _started(file: Path, request: Mapping[str, Any]) -> subprocess.Popen[bytes] | None:
    """Start a lookup, unless one is running."""
    running = file.with_suffix(".running")
    with suppress(FileNotFoundError):
        if abs(time.time() - running.stat().st_mtime) > _ABANDONED:
            running.unlink()
    running.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        running.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        return None
    surroundings = {**os.environ, VARIABLE: LOOKUP, REQUEST: json.dumps(request)}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "lancekeep"],  # never a module of the current folder
        env=surroundings,
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )


def _cache() -> Path:
    """Return the folder of the cache.

    Raises:
        OSError: The user has no home, or the folder belongs to another user, who could offer commands in it.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lancekeep")
    if not folder.is_absolute():
        raise FileNotFoundError(f"{folder} is not an absolute path")
    with suppress(FileNotFoundError):
        if hasattr(os, "geteuid") and folder.lstat().st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user")
    return folder


def _read(file: Path) -> Any:
    with suppress(OSError, ValueError):
        return json.loads(file.read_bytes())
    return None


def forget_unused() -> None:
    """Remove names that were not looked up for a month."""
    for file in _cache().glob("*names-*"):
        with suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > _UNUSED:
                file.unlink()


def write(file: Path, content: Any) -> None:
    """Write a file of the cache.

    It appears when it is complete, and only this user can read it.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{uuid4().hex}")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(content), "utf-8")
    partial.replace(file)
