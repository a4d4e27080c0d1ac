"""The pytest plugin of Lancekeep: the options of ``pytest --pyargs lancekeep.testing``.

Every pytest run in an environment with Lancekeep loads this module. It is a package of its own, because importing it
from ``lancekeep`` would load that package, too.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("lancekeep.testing")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lancekeep", "behaviours of Lance namespaces (lancekeep.testing)")
    group.addoption(
        "--lance-namespace",
        metavar="IMPL",
        help="the namespace to test: the first argument of lance_namespace.connect",
    )
    group.addoption(
        "--lance-namespace-property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property of the namespace; {place} becomes a new directory per behaviour (default: root={place})",
    )
    group.addoption(
        "--lance-namespace-without",
        default="",
        metavar="CAPABILITIES",
        help="capabilities to leave out: namespaces,properties,locations,register,rename,versions,data,tags,branches,"
        "indexes,schema,transactions,views",
    )
