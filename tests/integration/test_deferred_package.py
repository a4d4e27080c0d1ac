"""A package whose own code runs when something asks for one of its names."""

import subprocess
import sys

import pytest

LOADED = f"{(package := 'lance_namespace_urllib3_client')}.api.table_api"

IMPORTS = f"""
import sys
from lancekeep.entrypoints.deferred_package import MODELS, defer

defer(MODELS)
import lancekeep.entrypoints.supervised_worker

assert MODELS == {package!r}
assert {LOADED!r} not in sys.modules
"""

USES = f"""
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from threading import Barrier

def ask(name):
    barrier.wait()
    return getattr(import_module(MODELS), name)

barrier = Barrier(8)
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(ask, ["TableApi", "ApiClient", "DescribeTableRequest", "__version__"] * 2))
assert found[0] is sys.modules[{LOADED!r}].TableApi
assert found[:4] == found[4:]
assert not hasattr(import_module(MODELS), "missing")
"""

STARTS = f"""
import runpy, sys

sys.argv[1:] = ["no number"]
try:
    runpy.run_module("lancekeep.entrypoints.worker", run_name="__main__")
except ValueError:
    pass
assert "lancekeep.entrypoints.supervised_worker" in sys.modules
assert {LOADED!r} not in sys.modules
"""

TOO_LATE = """
import lance_namespace_urllib3_client as before
from lancekeep.entrypoints.deferred_package import MODELS, defer

defer(MODELS)
defer("a_package_that_is_not_installed")
import lance_namespace_urllib3_client as after
assert before is after
"""


def run(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("program", [IMPORTS, STARTS], ids=["modules", "program"])
def test_a_worker_imports_the_models_without_the_client(program: str) -> None:
    run(program)


def test_threads_that_ask_for_names_at_the_same_time_find_the_whole_package() -> None:
    run(IMPORTS + USES)


def test_a_package_that_is_imported_or_missing_stays_so() -> None:
    run(TOO_LATE)
