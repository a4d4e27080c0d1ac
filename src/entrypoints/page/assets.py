"""The files that pages load, with a digest of their content in their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

import attrs
from starlette.responses import Response

_TYPES = {"style.css": "text/css", "search.js": "text/javascript"}
_CACHED = "public, max-age=31536000, immutable"


@attrs.frozen
class Assets:
    """The assets of the page, by their URLs."""

    _responses: Mapping[str, Response]

    @property
    def urls(self) -> Mapping[str, str]:
        """The URL of each asset, by its name without extension."""
        return {url.removeprefix("/assets/").partition("-")[0]: url for url in self._responses}

    def response(self, path: str) -> Response | None:
        """Return the asset at a path, or None."""
        return self._responses.get(path)


@cache
def assets() -> Assets:
    """Read the assets of the package."""
    found: dict[str, Response] = {}
    for name, media_type in _TYPES.items():
        content = files("lancekeep.entrypoints.page").joinpath("static", name).read_bytes()
        stem, _, extension = name.partition(".")
        url = f"/assets/{stem}-{sha256(content).hexdigest()[:12]}.{extension}"
        found[url] = Response(content, media_type=media_type, headers={"cache-control": _CACHED})
    return Assets(found)
