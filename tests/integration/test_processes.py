"""Appends of processes that end or fork: every append is answered, and every process exits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lance
import pytest
from deployments import Deployment, deployment

PATIENCE = 60
"""Seconds after which a process counts as hanging."""

PLACES = ("sqlite", "conditional-put-s3")

OPENED = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
import pyarrow as pa
import lancekeep

options = {place.storage_options!r}
catalog = lancekeep.connect({place.root!r}, commit_store={place.commit_store!r}, storage_options=options)
row = pa.table({{"a": [1]}})
catalog.write("t", row)
"""

SHUTDOWN = """
def append():
    try:  # pools take no more acts once the interpreter shuts down
        while True:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(int)
    except RuntimeError:
        pass
    for data in (row, row.to_reader()):
        try:
            catalog.write("t", data, "append")
        except BaseException as error:
            print(repr(error), flush=True)

for _ in range(8):
    threading.Thread(target=append).start()
"""

FORK = """
entered, leave = threading.Event(), threading.Event()

class Slow:
    def __getattr__(self, name):
        value = getattr(objects, name)
        return partial(self.slowly, value) if name == "put" else value

    def slowly(self, act, *arguments):
        entered.set()
        leave.wait()
        return act(*arguments)

from lancekeep.application.catalog import directory_of

commits = directory_of(catalog).commits
objects, commits.objects = commits.objects, Slow()
writer = threading.Thread(target=catalog.write, args=("t", row, "append"))
writer.start()
entered.wait()
child = os.fork()
for data in () if child else (row, row.to_reader()):
    try:
        catalog.write("t", data, "append")
    except lancekeep.Refused as error:
        print(error, flush=True)
if child:
    assert os.waitpid(child, 0) == (child, 0)
    leave.set()
    writer.join()
    catalog.write("t", row, "append")
"""


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, moto_endpoint: str) -> Deployment:
    return deployment(request.param, tmp_path, redis_url, moto_endpoint)


def printed(place: Deployment, script: str) -> str:
    """Return what a process prints that runs a script and exits."""
    text = OPENED.format(place=place) + script
    command = ["timeout", "--signal=ABRT", str(PATIENCE), sys.executable, "-X", "faulthandler", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(place: Deployment) -> int:
    return lance.dataset(f"{place.root}/t.lance", storage_options=place.storage_options or None).count_rows()


def test_threads_append_while_the_interpreter_shuts_down(place: Deployment) -> None:
    assert printed(place, SHUTDOWN) == ""
    assert rows(place) == 1 + 8 * 2


def test_child_that_was_forked_during_an_append_is_refused(place: Deployment) -> None:
    assert printed(place, FORK).count("this process was forked while another thread wrote") == 2
    assert rows(place) == 1 + 2
