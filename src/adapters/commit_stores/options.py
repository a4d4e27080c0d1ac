"""Reading the URL of a commit store and what its options say."""

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
    """A commit store's URL, taken apart.

    ``options`` are the URL's query and the ``commit_store.*`` properties, together. ``str`` shows the URL without
    user, password and options, so that it may stand in messages.
    """

    parts: SplitResult = attrs.field(repr=False)
    options: Mapping[str, str] = attrs.field(repr=False)

    @staticmethod
    def parse(url: str, options: Mapping[str, str]) -> StoreUrl:
        """Raises `InvalidInput` for what is not a URL, and for an option that is given twice."""
        scheme, separator, _ = url.partition("://")
        if not separator or not scheme:
            raise InvalidInput(
                "a commit store is named by a URL such as sqlite:///var/lib/lake/commits.db or "
                "redis://localhost:6379/0; this one has no scheme followed by '://'"
            )
        try:
            url.encode()  # a lone surrogate is nothing that a store could be called
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
                raise InvalidInput(f"{location}: the option {name!r} is given twice; say it once")
            given[name] = value
        if parts.fragment:
            location.refuse("a fragment ('#…') means nothing here; write '#' as %23 inside a name or a password")
        return StoreUrl(parts, given)

    def __str__(self) -> str:
        host = self.parts.netloc.rpartition("@")[2]
        return f"{self.parts.scheme}://{host}{self.parts.path}"

    def refuse(self, reason: str) -> NoReturn:
        raise InvalidInput(f"{self}: {reason}")

    def check_options(self, known: Collection[str]) -> None:
        """Raises `InvalidInput` for an option that the store does not know, naming the nearest it does."""
        for name in self.options:
            if name not in known:
                expected = f"it knows {', '.join(sorted(known))}" if known else "it takes none"
                self.refuse(f"unknown option {name!r}{nearest(name, known)}; {expected}")

    def absolute_path(self) -> str:
        """The path of a store on this machine, symbolic links resolved, so that one place has one name."""
        path = unquote(self.parts.path)
        if self.parts.netloc not in ("", "localhost") or not path.strip("/"):
            written = f"{unquote(self.parts.netloc)}{path}"
            example = f"{self.parts.scheme}://{quote(os.path.abspath(written or 'commits'))}"
            self.refuse(f"expected an absolute path after three slashes, such as {example}")
        if "\0" in path:
            self.refuse("a path cannot hold a NUL character")
        return os.path.realpath("/" + path.lstrip("/"))

    def hosts(self, default_port: int) -> list[tuple[str, int]]:
        """Return host and port of each address between ``://`` and the path, which are separated by commas."""
        addresses = [urlsplit(f"//{each}") for each in self.parts.netloc.rpartition("@")[2].split(",")]
        hosts = [(each.hostname, default_port if each.port is None else each.port) for each in addresses]
        if not all(host for host, _ in hosts):
            self.refuse("expected HOST[:PORT]; several are separated by commas")
        return [(host, port) for host, port in hosts if host]

    def name_only(self) -> str:
        """What stands between ``://`` and the end of the URL, where that is one name."""
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
    """A hint at the known name that was probably meant; empty where none is near."""
    matches = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
