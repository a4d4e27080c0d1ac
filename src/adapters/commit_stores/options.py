"""Parse the URL and the options of a commit store."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import attrs

from lancekeep.domain.errors import InvalidInput

T = TypeVar("T")


@attrs.frozen
class StoreUrl:
    """Hold the parsed URL of a commit store.

    ``options`` combines the URL's query and the ``commit_store.*`` properties. ``str`` returns the URL without user,
    password and options, for use in messages.
    """

    parts: SplitResult = attrs.field(repr=False)
    options: Mapping[str, str] = attrs.field(repr=False)

    @staticmethod
    def parse(url: str, options: Mapping[str, str]) -> StoreUrl:
        """Parse a URL.

        Raises:
            InvalidInput: the text is not a URL, or an option is set twice.
        """
        scheme, separator, _ = url.partition("://")
        if not separator or not scheme:
            raise InvalidInput(
                "expected the URL of a commit store, such as sqlite:///var/lib/lake/commits.db or "
                "redis://localhost:6379/0; found a text without a scheme followed by '://'"
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
