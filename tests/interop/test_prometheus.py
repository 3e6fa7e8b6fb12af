"""The alert rules in Prometheus' rule tester, and the dashboard's expressions in a real Prometheus."""

import http.server
import itertools
import json
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.usage import ClaimShare, ContainerReading, Figure, UsageBook
from dranode.driver.serve.claim_metrics import usage_metrics
from tests.fakes.waiting import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "alerts" / "rules.yaml"
DASHBOARD = DEPLOY / "dashboards" / "claims.json"

pytestmark = pytest.mark.interop

TARGET = 'driver="dra.cpu", instance="n:8080"'
POD = 'namespace="ns", resourceclaim_name="c", pod="p"'
CLAIM = 'namespace="ns", resourceclaim_name="c"'
# For each alert: series with a value a minute that fire it within two hours, and others that do not.
SERIES = {
    "DranodeNotReady": (
        {f"dranode_ready{{{TARGET}}}": "0x120", f"dranode_active{{{TARGET}}}": "1x120"},
        {f"dranode_ready{{{TARGET}}}": "0x120", f"dranode_active{{{TARGET}}}": "0x120"},
    ),
    "DranodeDown": (
        {f"up{{{TARGET}}}": "1x100 0x19", f"dranode_ready{{{TARGET}}}": "1x100"},
        {f"up{{{TARGET}}}": "0x120"},
    ),
    "DranodePrepareFails": (
        {f'dranode_call_duration_seconds_count{{{TARGET}, call="prepare", outcome="error"}}': "0+1x120"},
        {f'dranode_call_duration_seconds_count{{{TARGET}, call="prepare", outcome="success"}}': "0+1x120"},
    ),
    "DranodeWrongCPUs": (
        {f"dranode_mask_lag_seconds{{{TARGET}}}": "61x120"},
        {f"dranode_mask_lag_seconds{{{TARGET}}}": "60x120"},
    ),
    "DranodeCPUSetDrift": (
        {f"dranode_container_drifts_total{{{TARGET}}}": "0x90 1x29"},
        {f"dranode_container_drifts_total{{{TARGET}}}": "0 5x119"},
    ),
    "DranodeClaimsImpaired": (
        {f"dranode_claims_impaired{{{TARGET}}}": "2x120"},
        {f"dranode_claims_impaired{{{TARGET}}}": "0x120"},
    ),
    "DranodeClaimIdle": (
        {f"dranode_claim_idle{{{CLAIM}, {TARGET}}}": "1x120"},
        {f"dranode_claim_idle{{{CLAIM}, {TARGET}}}": "1x70 0x10 1x40"},
    ),
    "DranodeClaimThrottled": (
        {
            f"dranode_claim_cpu_cfs_throttled_periods_total{{{POD}}}": "0+200x120",
            f"dranode_claim_cpu_cfs_periods_total{{{POD}}}": "0+600x120",
        },
        {
            f"dranode_claim_cpu_cfs_throttled_periods_total{{{POD}}}": "0+100x120",
            f"dranode_claim_cpu_cfs_periods_total{{{POD}}}": "0+600x120",
        },
    ),
    "DranodeClaimShortOfCPU": (
        {f"dranode_claim_cpu_pressure_waiting_seconds_total{{{POD}}}": "0+40x120"},
        {f"dranode_claim_cpu_pressure_waiting_seconds_total{{{POD}}}": "0+20x120"},
    ),
    "DranodeClaimRemoteMemory": (
        {
            f"dranode_claim_remote_memory_bytes{{{POD}}}": "2147483648x120",
            f"dranode_claim_memory_bytes{{{POD}}}": "4294967296x120",
        },
        # Always, but only a little.
        {
            f"dranode_claim_remote_memory_bytes{{{POD}}}": "1000000x120",
            f"dranode_claim_memory_bytes{{{POD}}}": "1000000x120",
        },
    ),
}


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"there is no {name}; Debian has it in its package prometheus")
    return path


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    done = subprocess.run([program("promtool"), "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(alerts())} rules found" in done.stdout


def fired_amiss(tmp_path: Path, name: str, series: dict[str, str], labels: list[dict[str, str]]) -> str:
    """Return promtool's output for an alert that has to fire with these labels after two hours of these series."""
    rule = alerts()[name]
    fires = [
        {"exp_labels": {**rule["labels"], **each}, "exp_annotations": filled(rule["annotations"], each)}
        for each in labels
    ]
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": key, "values": values} for key, values in series.items()],
                "alert_rule_test": [{"eval_time": "2h", "alertname": name, "exp_alerts": fires}],
            }
        ],
    }
    place = tmp_path / "test.yaml"
    place.write_text(yaml.safe_dump(document))
    done = subprocess.run([program("promtool"), "test", "rules", place], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def filled(annotations: dict[str, str], labels: dict[str, str]) -> dict[str, str]:
    """Return the annotations as Prometheus renders them."""
    values = {"DranodeClaimThrottled": "33.33%", "DranodeClaimShortOfCPU": "66.67%", "DranodeClaimRemoteMemory": "50%"}
    by_text = {alerts()[name]["annotations"]["description"]: value for name, value in values.items()}
    texts = {}
    for key, text in annotations.items():
        whole = text.replace("{{ $value | humanizePercentage }}", by_text.get(text, ""))
        for name, value in labels.items():
            whole = whole.replace(f"{{{{ $labels.{name} }}}}", value)
        texts[key] = whole
    return texts


@pytest.mark.parametrize("name", SERIES)
def test_an_alert_fires_when_it_should_and_only_then(tmp_path: Path, name: str) -> None:
    firing, quiet = SERIES[name]
    pod = {"namespace": "ns", "resourceclaim_name": "c", "pod": "p"}
    labels = {"driver": "dra.cpu", "instance": "n:8080"}
    if "Claim" in name and name != "DranodeClaimsImpaired":
        labels = {key: value for key, value in pod.items() if key != "pod" or name != "DranodeClaimIdle"}
    assert not fired_amiss(tmp_path, name, firing, [labels])
    assert not fired_amiss(tmp_path, name, quiet, [])
    assert fired_amiss(tmp_path, name, quiet, [labels])


def test_every_alert_is_tested() -> None:
    assert set(SERIES) == set(alerts())


class _Usage(Collector):
    """Claims whose usage grows with every reading."""

    def __init__(self) -> None:
        self._book, self._looks = UsageBook(), itertools.count(1)

    def collect(self) -> Iterator[Metric]:
        look = next(self._looks)
        busy, idle = ClaimRef("ns", "busy", "uid-1"), ClaimRef("ns", "idle", "uid-2")
        values = {figure: {"cgroup": 30.0 * look} for figure in Figure}
        self._book.add(61.0 * look, {busy: 2, idle: 1}, [ContainerReading("c1", (ClaimShare(busy, "p", 2),), values)])
        yield from usage_metrics([("dra.cpu", self._book.usage())])


@pytest.fixture(scope="module")
def page() -> Iterator[int]:
    """Yield the port of a metrics page."""
    registry = CollectorRegistry()
    registry.register(_Usage())

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = generate_latest(registry)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def prometheus(page: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a Prometheus that scrapes the page every second."""
    path, folder = program("prometheus"), tmp_path_factory.mktemp("prometheus")
    scrape = {"job_name": "dranode", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{page}"]}]}
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]})
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([path, *options, f"--web.listen-address={address}"], stderr=log) as process,
    ):
        yield address
        process.terminate()


def answer(address: str, expression: str) -> list[dict[str, Any]]:
    """Return the result of an expression; empty while Prometheus starts."""
    text = expression.replace("$__rate_interval", "1m").replace("$namespace", ".*")
    query = urllib.parse.urlencode({"query": text})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=10) as response:
            result: list[dict[str, Any]] = json.load(response)["data"]["result"]
            return result
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.SERVICE_UNAVAILABLE:
            return []
        raise AssertionError(f"{text}: {error.read().decode()}") from error
    except OSError:
        return []


@pytest.mark.parametrize("expression", expressions())
def test_a_real_prometheus_answers_every_expression_of_the_dashboard(prometheus: str, expression: str) -> None:
    eventually(lambda: answer(prometheus, expression))


def test_a_real_prometheus_keeps_the_claims_labels_and_knows_the_idle_claim(prometheus: str) -> None:
    (idle,) = [text for text in expressions() if text.endswith("== 1")]
    eventually(lambda: answer(prometheus, idle))
    (found,) = answer(prometheus, idle)
    assert found["metric"] == {"namespace": "ns", "resourceclaim_name": "idle"}
