"""The URLs of stores, and the adapters that other distributions register.

Commit stores, manifest stores and object stores find adapters in the same way (docs/write-an-adapter.md).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import attrs

from lancekeep.domain.errors import InvalidInput

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


def _registered(group: str) -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # imports the standard library's packages for mail and archives

    return entry_points(group=group)


@attrs.frozen
class StoreKind:
    """A port whose adapters are chosen by the scheme of a URL.

    Attributes:
        name: the port in messages.
        group: the group of entry points that name adapters of other distributions: URL scheme = class.
        example: URLs for messages.
    """

    name: str
    group: str
    example: str

    def adapter(self, scheme: str) -> Any | None:
        """Return the adapter that another distribution registers for a scheme, or None.

        Raises:
            InvalidInput: several distributions register the scheme.
        """
        adapters = {entry.value: entry for entry in _registered(self.group) if entry.name == scheme}
        if len(adapters) > 1:
            raise InvalidInput(
                f"several adapters are registered for {scheme}://: {', '.join(sorted(adapters))}. Uninstall all but "
                "one."
            )
        return next((entry.load() for entry in adapters.values()), None)

    def schemes(self, own: Iterable[str] = ()) -> list[str]:
        """Return the schemes of Lancekeep, then those that others register.

        Args:
            own: The schemes of Lancekeep.
        """
        own = list(own)
        return [*own, *sorted({entry.name for entry in _registered(self.group)} - set(own))]

    def unknown(self, scheme: str, own: Iterable[str] = ()) -> InvalidInput:
        """Return the error for a scheme without an adapter."""
        schemes = self.schemes(own)
        available = f"available are {', '.join(f'{known}://' for known in schemes)}" if schemes else "none is installed"
        return InvalidInput(f"unknown {self.name} {scheme}://{nearest(scheme, schemes)}; {available}")


COMMIT_STORES = StoreKind(
    "commit store", "lancekeep.commit_stores", "sqlite:///var/lib/lake/commits.db or redis://localhost:6379/0"
)
MANIFEST_STORES = StoreKind("manifest store", "lancekeep.manifest_stores", "postgresql://db/lake?catalog=prod")
OBJECT_STORES = StoreKind("object store", "lancekeep.object_stores", "s3://bucket/lake")


@attrs.frozen
class StoreUrl:
    """Hold the parsed URL of a commit store or manifest store.

    ``options`` combines the URL's query and the properties of the store. ``str`` returns the URL without user,
    password and options, for use in messages.
    """

    parts: SplitResult = attrs.field(repr=False)
    options: Mapping[str, str] = attrs.field(repr=False)

    @staticmethod
    def parse(url: str, options: Mapping[str, str], kind: StoreKind = COMMIT_STORES) -> StoreUrl:
        """Parse a URL.

        Raises:
            InvalidInput: the text is not a URL, or an option is set twice.
        """
        scheme, separator, _ = url.partition("://")
        if not separator or not scheme:
            raise InvalidInput(
                f"expected the URL of a {kind.name}, such as {kind.example}; found a text without a scheme followed by "
                "'://'"
            )
        try:
            url.encode()  # refuses lone surrogates
            parts = urlsplit(url)
            for host in parts.netloc.rpartition("@")[2].split(","):
                _ = urlsplit(f"//{host}").port
            query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            # from None: the parser's own message quotes the URL, which may hold a password
            raise InvalidInput(f"{scheme}://…: not a valid URL; check host, port and the query") from None
        location = StoreUrl(parts, {})
        given = dict(options)
        for name, value in query:
            if name in given:
                raise InvalidInput(f"{location}: the option {name!r} is set twice; set it once")
            given[name] = value
        if parts.fragment:
            location.refuse("a fragment ('#…') is not supported; write '#' as %23 in a name or a password")
        return StoreUrl(parts, given)

    def __str__(self) -> str:
        host = self.parts.netloc.rpartition("@")[2]
        return f"{self.parts.scheme}://{host}{self.parts.path}"

    def refuse(self, reason: str) -> NoReturn:
        raise InvalidInput(f"{self}: {reason}")

    def check_options(self, known: Collection[str]) -> None:
        """Raise `InvalidInput` for an unknown option and name the nearest option."""
        for name in self.options:
            if name not in known:
                expected = f"known are {', '.join(sorted(known))}" if known else "the store has none"
                self.refuse(f"unknown option {name!r}{nearest(name, known)}; {expected}")

    def absolute_path(self) -> str:
        """Return the local path with symbolic links resolved: one name per file."""
        path = unquote(self.parts.path)
        if self.parts.netloc not in ("", "localhost") or not path.strip("/"):
            written = f"{unquote(self.parts.netloc)}{path}"
            example = f"{self.parts.scheme}://{quote(os.path.abspath(written or 'commits'))}"
            self.refuse(f"expected an absolute path after three slashes, such as {example}")
        if "\0" in path:
            self.refuse("a path cannot contain a NUL character")
        return os.path.realpath("/" + path.lstrip("/"))

    def hosts(self, default_port: int) -> list[tuple[str, int]]:
        """Return host and port of each address, separated by commas in the URL."""
        addresses = [urlsplit(f"//{each}") for each in self.parts.netloc.rpartition("@")[2].split(",")]
        hosts = [(each.hostname, default_port if each.port is None else each.port) for each in addresses]
        if not all(host for host, _ in hosts):
            self.refuse("expected HOST[:PORT]; several are separated by commas")
        return [(host, port) for host, port in hosts if host]

    def name_only(self) -> str:
        """Return the name that is the only part after ``://``."""
        name = unquote(self.parts.netloc)
        if not name or "@" in name or ":" in name or self.parts.path.strip("/"):
            self.refuse(f"expected one name, as in {self.parts.scheme}://NAME")
        return name

    def boolean(self, name: str, default: bool) -> bool:
        return self.choice(name, {"true": True, "false": False}, default)

    def choice(self, name: str, choices: Mapping[str, T], default: T) -> T:
        value = self.options.get(name)
        if value is None:
            return default
        if value.lower() not in choices:
            self.refuse(f"option {name} is {value!r}; expected {' or '.join(choices)}")
        return choices[value.lower()]

    def seconds(self, name: str, default: float) -> float:
        value = self.options.get(name)
        if value is None:
            return default
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            self.refuse(f"option {name} is {value!r}; expected a number of seconds above 0")
        return seconds


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that is probably meant, or an empty text."""
    matches = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
