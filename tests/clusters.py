"""Programs on a cluster of Spark, whose executors are processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages import free_port
from pyspark.sql import SparkSession
from spark_driver import home
from spark_imports import WITH_IMPORTS

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start(place: Path, *hosts: str) -> str:
    """Start a master, and a worker of one core on each host; return the master's address.

    A local cluster has one host, and Spark starts no speculative copy on the host of the first attempt.
    """
    port = free_port()
    address = f"spark://{hosts[0]}:{port}"
    _start(place, "Master", "--host", hosts[0], "--port", str(port))
    for host in hosts:
        _start(place, "Worker", "--host", host, "--cores", "1", "--memory", "1g", address)
    return address


def _start(place: Path, role: str, *arguments: str) -> None:
    tools = home(place) / "bin"
    command = [str(tools / "spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}", *arguments]
    given = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": f"{QUICK} -Djava.io.tmpdir={place}"}
    subprocess.Popen([*command, "--webui-port", "0"], env={**os.environ, **given}, stdout=subprocess.DEVNULL)


def session(master: str, place: Path, settings: Mapping[str, str]) -> SparkSession:
    """Start a session on a cluster."""
    common = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{QUICK} -Djava.io.tmpdir={place}",
        "spark.executor.extraJavaOptions": f"{QUICK} -Djava.io.tmpdir={place}",
        "spark.local.dir": str(place / "scratch"),
        "spark.sql.adaptive.enabled": "false",  # a plan then has its final form at once
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master(master)
    for name, value in {**common, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def printed_by(program: str, place: Path) -> Any:
    """Run a program of this directory, which prints JSON; return that. All its processes are killed."""
    given = {**WITH_IMPORTS, "SPARK_HOME": str(home(place)), "SPARK_LOCAL_IP": "127.0.0.1"}
    errors = place / "errors"
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(program)), str(place)],
        env={**os.environ, **given},
        stdout=subprocess.PIPE,
        stderr=errors.open("w"),
        start_new_session=True,
    )
    assert process.stdout
    try:
        output, _ = process.communicate(timeout=500)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert output, errors.read_text()[-5000:]
    return json.loads(output)
