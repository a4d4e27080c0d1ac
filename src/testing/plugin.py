"""The options of ``pytest --pyargs lancekeep.testing``. Loaded by every pytest, so it imports nothing."""

from __future__ import annotations

from typing import Any


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("lancekeep", "behaviours of Lance namespaces (lancekeep.testing)")
    group.addoption(
        "--lance-namespace", metavar="IMPL", help="the namespace to try, as lance_namespace.connect takes it"
    )
    group.addoption(
        "--lance-namespace-property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property for it; {place} becomes a directory of the behaviour's own (default: root={place})",
    )
    group.addoption(
        "--lance-namespace-without",
        default="",
        metavar="CAPABILITIES",
        help="what it does not offer: namespaces,properties,locations,register,rename,versions",
    )
