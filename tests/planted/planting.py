"""A pytest plugin: each test runs with its fault planted, and has to fail."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from planted.fault import MISFITS
from planted.faults import FAULTS


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    [(name, fault)] = ((name, fault) for name, fault in FAULTS.items() if fault.found_by == pyfuncitem.nodeid)
    try:
        with fault.planted():
            yield
    except MISFITS:
        raise
    except BaseException as found:  # such as an outcome of pytest
        print(f"{name}: {type(found).__name__}: {str(found)[:200]}")
        return True
    raise AssertionError(f"{pyfuncitem.nodeid} passes though {name}")
