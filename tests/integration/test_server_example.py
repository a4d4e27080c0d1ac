"""The compose example of the server: its two servers run with its settings, as documented."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import lance
import pyarrow as pa
import pytest
import yaml
from deployments import bucket, s3_options

from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.adapters.rest.routes import ROUTES
from lancekeep.entrypoints.cli.serve import serve
from lancekeep.entrypoints.rest.settings import PORT, ServerSettings

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "server"
CHART = EXAMPLE / "helm"
SETTINGS = 'root = "s3://b/lake"\ncommit_store = "conditional-put://"\n[server]\nthreads = 8\n'
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
    return document


def test_the_compose_file_is_consistent(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert ("image" in service) != ("build" in service), name
        for other, condition in service.get("depends_on", {}).items():
            needs_check = condition["condition"] == "service_healthy"
            assert not needs_check or "healthcheck" in services[other], f"{name} waits for {other}"
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in compose["volumes"], volume
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "keys travel without TLS"
    servers = [service for service in services.values() if "build" in service]
    assert len(servers) == 2
    for service in servers:
        assert service["ports"][0].endswith(f":{PORT}")
        seconds = int(service["stop_grace_period"].removesuffix("s"))
        assert seconds > ServerSettings().shutdown_seconds, "a commit in progress must finish before SIGKILL"


def test_the_container_file_runs_the_server_without_privileges() -> None:
    lines = (EXAMPLE / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    found = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"lancekeep\[([\w,]+)\]", found["ARG"])
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert found["USER"] != "0"
    assert {"/keys", "/lake"} <= set(found["RUN"].split()), "the user owns the directories that it writes to"
    assert f"{Path(json.loads(found['CMD'])[0])}" == "/lake"
    assert found["EXPOSE"] == str(PORT)
    assert f"127.0.0.1:{PORT}/healthz" in found["HEALTHCHECK"]
    assert found["ENTRYPOINT"] == '["lancekeep", "serve"]'  # without a shell, so the server receives SIGTERM


def test_the_service_finishes_requests_before_it_is_killed() -> None:
    service = configparser.ConfigParser(strict=False, interpolation=None)
    service.optionxform = str  # type: ignore[assignment,method-assign]  # the names of systemd have capitals
    service.read(EXAMPLE / "lancekeep.service")
    program, *command = shlex.split(service["Service"]["ExecStart"])
    assert Path(program).name == "lancekeep"
    assert int(service["Service"]["TimeoutStopSec"]) > ServerSettings().shutdown_seconds
    parsed = serve.make_context("serve", [*command[1:], "lake"], resilient_parsing=True)
    assert (parsed.params["workers"], parsed.params["log_format"]) == (4, "json")


def test_alerts_and_dashboard_ask_for_metrics_that_the_server_has(tmp_path: Path) -> None:
    rules = [
        rule for group in yaml.safe_load((EXAMPLE / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
    ]
    assert all({"summary", "action"} <= rule["annotations"].keys() for rule in rules)
    panels = json.loads((EXAMPLE / "dashboard.json").read_text())["panels"]
    queries = [rule["expr"] for rule in rules] + [each["expr"] for panel in panels for each in panel["targets"]]
    (tmp_path / "lancekeep.toml").write_text(
        f'[server]\nevents = true\n[catalogs.lake]\nroot = "{tmp_path}/lake"\n'
        '[[catalogs.lake.event_files]]\nname = "files"\nurl = "out"\n'
        f'[catalogs.lake.server]\npolicy = "{tmp_path}/policy.toml"\n'
    )
    _, key = KeyFile(tmp_path / "keys.json").create("root")
    grant = '[[grants]]\nrole = "admin"\non = ""\nprincipals = ["key:root"]\n'
    (tmp_path / "policy.toml").write_text(f'{grant}[[quotas]]\non = ""\ntables = 7\nbytes = "1 MB"\n')
    environment = {**os.environ, "LANCEKEEP_CONFIG": str(tmp_path / "lancekeep.toml")}
    line = ["--workers", "2", "--log-format", "json", "--keys", str(tmp_path / "keys.json")]
    with server(line, environment) as uri:
        httpx.get(f"{uri}/catalogs/lake/v1/namespace/$/table/list", headers={"x-api-key": key}).raise_for_status()
        shown = httpx.get(f"{uri}/metrics").text
    assert re.search(r'^lancekeep_quota_limit{[^}]*resource="tables"[^}]*} 7\.0$', shown, re.MULTILINE)  # of 2 workers
    kinds = dict(re.findall(r"^# TYPE (lancekeep_\w+) (\w+)$", shown, re.MULTILINE))
    suffixes = {"counter": "", "gauge": "", "histogram": "_bucket"}
    known = {f"{name}{suffixes[kind]}" for name, kind in kinds.items()}
    asked = {name for query in queries for name in re.findall(r"lancekeep_\w+", query)}
    assert asked == known
    reads = {
        name for query in queries for names in re.findall(r'operation=~"([^"]+)"', query) for name in names.split("|")
    }
    assert reads <= {route.operation for route in ROUTES}
    outcomes = {name for query in queries for name in re.findall(r'outcome="(\w+)"', query)}
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "server.md").read_text()))
    assert outcomes <= documented


def test_the_values_of_the_chart_have_a_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"].keys() - {"global", "nameOverride"} == values.keys()
    for name, value in values.items():
        if isinstance(value, dict) and (fields := schema["properties"][name].get("properties")):
            assert fields.keys() == value.keys(), name
    assert re.search(schema["properties"]["settings"]["pattern"], SETTINGS)
    assert values["shutdownSeconds"] == ServerSettings().shutdown_seconds
    assert values["service"]["port"] == PORT


def rendered(tmp_path: Path, **values: Any) -> list[dict[str, Any]]:
    """Return the objects of the chart, as Helm makes them.

    Raises:
        ValueError: Helm refuses the values.
    """
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    for action in (["lint", "--strict"], ["template", "prod"]):
        line = ["helm", *action, str(CHART), "--values", str(tmp_path / "values.yaml")]
        run = subprocess.run(line, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise ValueError(run.stdout + run.stderr)
    return [each for each in yaml.safe_load_all(run.stdout) if each]


def test_a_server_runs_with_what_the_chart_renders(tmp_path: Path) -> None:
    """A server takes the arguments, variables and files of the container, below another directory."""
    if shutil.which("helm") is None:
        pytest.skip("no Helm on the PATH: make chart")
    needed = {"settings": SETTINGS, "keysSecret": "keys"}
    for values, message in (
        ({"settings": SETTINGS}, "keysSecret is empty"),
        ({"settings": "", "keysSecret": "keys"}, "settings"),
        ({**needed, "replica": 3}, "replica"),
        ({**needed, "shutdownSeconds": 0}, "shutdownSeconds"),
        ({**needed, "minAvailable": 2}, "no node could be drained"),
        ({**needed, "policySecret": "p", "policyConfigMap": "p"}, "one policy"),
        ({**needed, "ingress": {"enabled": True}}, r"ingress\.host is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            rendered(tmp_path, **values)
    for each in rendered(tmp_path, **needed, clusterSecret="cluster"):
        if each["kind"] == "Deployment":
            (container,) = each["spec"]["template"]["spec"]["containers"]
            assert {"cluster", "keys"} <= {mount["name"] for mount in container["volumeMounts"]}
            assert sum(variable["name"].startswith("LANCEKEEP_SERVER__CLUSTER_") for variable in container["env"]) == 4
    optional = {
        "policyConfigMap": "policy",
        "environmentSecret": "storage",
        "ingress": {"enabled": True, "host": "lake.example", "tlsSecret": "lake"},
        "serviceMonitor": True,
    }
    objects = rendered(tmp_path, **needed, **optional)
    kinds = {each["kind"]: each for each in objects}
    assert len(kinds) == len(objects) == 7
    pod = kinds["Deployment"]["spec"]["template"]
    assert pod["metadata"]["labels"].items() >= kinds["Service"]["spec"]["selector"].items()
    assert pod["spec"]["terminationGracePeriodSeconds"] > ServerSettings().shutdown_seconds
    (container,) = pod["spec"]["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}
    assert container["ports"][0]["containerPort"] == PORT
    assert container["envFrom"] == [{"secretRef": {"name": "storage"}}]

    def here(text: str) -> str:
        return text.replace("/etc/lancekeep", str(tmp_path))

    settings = kinds["ConfigMap"]["data"]["lancekeep.toml"].replace("s3://b", f"file://{tmp_path}")
    (tmp_path / "lancekeep.toml").write_text(settings)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "policy.toml").write_text('[[grants]]\nrole = "admin"\non = ""\nprincipals = ["*"]\n')
    (tmp_path / "keys").mkdir()
    _, key = KeyFile(tmp_path / "keys" / "keys.json").create("ada")
    variables = {each["name"]: here(each["value"]) for each in container["env"]}
    environment = {**os.environ, **variables, "LANCEKEEP_SERVER__HOST": "127.0.0.1"}
    with server([here(each) for each in container["args"]], environment) as uri:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert httpx.get(uri + container[probe]["httpGet"]["path"]).status_code == 200
        assert httpx.get(f"{uri}/v1/namespace/$/table/list").status_code == 401
        assert httpx.get(f"{uri}/v1/namespace/$/table/list", headers={"x-api-key": key}).json()["tables"] == []


def expanded(value: str, environment: Mapping[str, str]) -> str:
    """Expand variables as compose does, as far as the example uses them."""
    found = re.sub(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}", lambda each: environment.get(each[1], each[2] or ""), value)
    return found.replace("$$", "$")


@contextmanager
def server(command: list[str], environment: dict[str, str]) -> Iterator[str]:
    line = [sys.executable, "-m", "lancekeep", "serve", *command, "--port", "0"]
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as one:
        try:
            assert one.stderr is not None
            port = next(fields["url"] for fields in map(json.loads, one.stderr) if "url" in fields).rpartition(":")[2]
            yield f"http://127.0.0.1:{port}"
        finally:
            one.terminate()
            assert one.wait() == 0


def test_the_servers_of_the_example_share_a_catalog(
    compose: dict[str, Any], moto_endpoint: str, redis_url: str, tmp_path: Path
) -> None:
    lake = bucket(moto_endpoint)
    places = {
        "http://minio:9000": moto_endpoint,
        "redis://redis:6379/0": redis_url,
        "/keys/": f"{tmp_path}/",
        "s3://lake": f"s3://{lake}",
    }
    shell = {"MINIO_ROOT_USER": "test", "MINIO_ROOT_PASSWORD": "test"}

    def here(text: str) -> str:
        text = expanded(text, shell)
        for place, own in places.items():
            text = text.replace(place, own)
        return text

    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LANCEKEEP_")}
    service = compose["services"]["one"]
    environment = {**inherited, **{name: here(str(value)) for name, value in service["environment"].items()}}
    command = [here(each) for each in service["command"]]
    create = [sys.executable, "-m", "lancekeep", "keys", "create", "ada"]
    key = subprocess.run(create, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    headers = {"x-api-key": key}
    sink = pa.BufferOutputStream()
    rows = pa.table({"id": [1, 2]})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    with ExitStack() as stack:
        one, other = (stack.enter_context(server(command, environment)) for _ in range(2))
        for uri in (one, other):
            assert httpx.get(f"{uri}/healthz").status_code == httpx.get(f"{uri}/readyz").status_code == 200
            assert httpx.get(f"{uri}/v1/namespace/$/table/list").status_code == 401
        body = {"content": sink.getvalue().to_pybytes(), "headers": {**headers, "content-type": ARROW}}
        assert httpx.post(f"{one}/v1/table/t/create", **body).status_code == 200
        assert httpx.post(f"{other}/v1/table/t/insert", **body).status_code == 200
        for uri in (one, other):
            assert httpx.get(f"{uri}/v1/namespace/$/table/list", headers=headers).json()["tables"] == ["t"]
        location = httpx.post(f"{one}/v1/table/t/describe", headers=headers, json={}).json()["location"]
    assert location.startswith(f"s3://{lake}/catalog/")
    found = lance.dataset(location, storage_options=s3_options(moto_endpoint)).to_table()
    assert sorted(found["id"].to_pylist()) == [1, 1, 2, 2]
