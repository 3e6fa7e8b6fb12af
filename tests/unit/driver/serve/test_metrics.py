"""The metrics page: dra-driver-cpu's families to the letter, and states at the time of the request."""

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dranode.api.cpuset import CPUSet
from dranode.api.resource import ResourceClaim
from dranode.driver.claims.held import ClaimRef
from dranode.driver.claims.plugin import Plugin
from dranode.driver.claims.record import Record
from dranode.driver.kubelet.listener import Listener
from dranode.driver.kubelet.sockets import socket_paths
from dranode.driver.plugins import load_plugins
from dranode.driver.serve.metrics import Metrics
from dranode.driver.serve.service import DriverService
from dranode.driver.serve.state_metrics import prefix_of
from dranode.driver.slices.plan import PublisherStatus
from dranode.sim.machines.forms import open_machine
from tests.fakes.cluster import MemoryCluster
from tests.fakes.drivers import Lamps, allocated_claim, reference
from tests.fakes.ledger import newer_schema

# Name, type and labels as dra-driver-cpu registers them (pkg/metrics/metrics.go).
REFERENCE = {
    "dra_cpu_allocated_cpus": "gauge",
    "dra_cpu_available_cpus": "gauge",
    "dra_cpu_reserved_cpus": "gauge",
    "dra_cpu_resource_claims_active": "gauge",
    "dra_cpu_prepare_claims": "counter",
    "dra_cpu_unprepare_claims": "counter",
    "dra_cpu_prepare_claim_duration_seconds": "histogram",
    "dra_cpu_claim_allocated_cpus": "histogram",
}


class Cluster(MemoryCluster):
    """A cluster that reports a given state of the slices."""

    told = PublisherStatus(published=True, created=2, repairs=1)

    def status(self, driver: str) -> PublisherStatus:
        del driver
        return self.told


@dataclass
class World:
    metrics: Metrics
    cluster: Cluster
    service: DriverService

    def prepare(self, *claims: ResourceClaim, missing: int = 0) -> None:
        self.cluster.claims.update({reference(claim): claim for claim in claims})
        refs = [reference(claim) for claim in claims] + [ClaimRef("default", f"m{n}", f"m-{n}") for n in range(missing)]
        self.service.listener.calls.prepare(tuple(refs))

    def text(self, accept: str = "") -> str:
        return self.metrics.page(accept).body.decode()

    def values(self, pattern: str) -> dict[str, float]:
        """The samples with these names and labels, in Prometheus' notation."""
        lines = (line.rpartition(" ") for line in self.text().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in lines if re.fullmatch(pattern, name)}


@pytest.fixture
def worlds() -> Iterator[dict[str, World]]:
    (cpu,) = load_plugins(["cpu"], open_machine("sockets=1,numa=2,cores=4,threads=2"), {"reserved_cpus": "0,8"})
    # A page that took 10 ms of CPU is kept for longer than this clock's next step.
    metrics, cluster = Metrics(itertools.count().__next__, cost=lambda: 0.0), Cluster()
    with tempfile.TemporaryDirectory(prefix="dranode-") as name:
        root = Path(name)
        (root / "plugins_registry").mkdir()
        made: dict[str, World] = {}
        plugins: tuple[Plugin, ...] = (cpu, Lamps())
        for plugin in plugins:
            service = DriverService(
                plugin,
                cluster,
                Listener(
                    plugin.driver,
                    "node",
                    socket_paths(root, plugin.driver),
                    root / "plugins" / plugin.driver,
                    pytest.fail,
                ),
                cdi=root / "cdi",
            )
            service.counters = metrics.add(service)
            service.start()
            made[plugin.driver] = World(metrics, cluster, service)
        yield made
        for world in made.values():
            world.service.stop()


def cpu_claim(name: str, cpus: int, group: int = 0) -> ResourceClaim:
    consumed = {"dra.cpu/cpu": str(cpus)}
    share = f"share-{name}"
    return allocated_claim(name, "dra.cpu", [f"cpudevnuma{group:03d}"], shareID=share, consumedCapacity=consumed)


def test_the_eight_families_of_dra_driver_cpu_have_its_names_types_and_labels(worlds: dict[str, World]) -> None:
    world = worlds["dra.cpu"]
    found = {family.name: family for family in text_string_to_metric_families(world.text())}
    assert {name: found[name].type for name in REFERENCE} == REFERENCE
    for call in ("prepare", "unprepare"):
        assert world.values(rf"dra_cpu_{call}_claims_total.*") == {
            f'dra_cpu_{call}_claims_total{{result="{result}"}}': 0.0 for result in ("success", "error", "unknown")
        }
    sizes = re.findall(r'dra_cpu_claim_allocated_cpus_bucket\{le="([^"]+)"\}', world.text())
    assert sizes == [str(float(2**exponent)) for exponent in range(11)] + ["+Inf"]
    seconds = re.findall(r'dra_cpu_prepare_claim_duration_seconds_bucket\{le="([^"]+)"\}', world.text())
    assert (seconds[0], seconds[-2], len(seconds)) == ("0.005", "10.0", 15)
    assert "_created" not in world.text()


def test_an_unusable_ledger_shows_that_claims_cannot_be_prepared(worlds: dict[str, World]) -> None:
    node = worlds["dra.cpu"].service.node

    def can_prepare() -> list[float]:
        node.check()
        return list(worlds["dra.cpu"].values(r'dranode_can_prepare\{driver="dra.cpu"\}').values())

    assert can_prepare() == [1]
    with newer_schema(worlds["dra.cpu"].service.listener.data / "ledger.db") as mend:
        assert can_prepare() == [0]
        mend()
        assert can_prepare() == [1]


def test_cpus_and_claims_are_counted(worlds: dict[str, World]) -> None:
    world = worlds["dra.cpu"]
    world.prepare(cpu_claim("a", 3), cpu_claim("b", 2, 1), missing=1)
    assert world.values("dra_cpu_(allocated|available|reserved)_cpus|dra_cpu_resource.*") == {
        "dra_cpu_allocated_cpus": 5,
        "dra_cpu_available_cpus": 9,
        "dra_cpu_reserved_cpus": 2,
        "dra_cpu_resource_claims_active": 2,
    }
    assert world.values("dra_cpu_prepare_claims_total.*")['dra_cpu_prepare_claims_total{result="success"}'] == 2
    assert world.values("dra_cpu_prepare_claims_total.*")['dra_cpu_prepare_claims_total{result="error"}'] == 1
    assert (
        world.values("dra_cpu_prepare_claim_duration_seconds_count")["dra_cpu_prepare_claim_duration_seconds_count"]
        == 3
    )
    world.service.listener.calls.unprepare((reference(cpu_claim("a", 3)),))
    assert world.values(r'dra_cpu_unprepare_claims_total\{result="success"\}') == {
        'dra_cpu_unprepare_claims_total{result="success"}': 1
    }
    assert world.values("dranode_(held|free)_cpus.*") == {
        'dranode_held_cpus{driver="dra.cpu"}': 2,
        'dranode_free_cpus{driver="dra.cpu"}': 12,
    }


def test_only_new_claims_are_counted_in_the_sizes(worlds: dict[str, World]) -> None:
    world = worlds["dra.cpu"]
    for _ in range(3):
        world.prepare(cpu_claim("a", 3))
    assert world.values("dra_cpu_claim_allocated_cpus_(count|sum)") == {
        "dra_cpu_claim_allocated_cpus_count": 1,
        "dra_cpu_claim_allocated_cpus_sum": 3,
    }


def test_latency_is_reported_by_call_and_outcome_from_0_on(worlds: dict[str, World]) -> None:
    world = worlds["dra.cpu"]
    world.prepare(cpu_claim("a", 1), missing=2)
    assert world.values("dranode_call_duration_seconds_count.*dra.cpu.*") == {
        'dranode_call_duration_seconds_count{call="prepare",driver="dra.cpu",outcome="success"}': 1,
        'dranode_call_duration_seconds_count{call="prepare",driver="dra.cpu",outcome="error"}': 2,
        'dranode_call_duration_seconds_count{call="unprepare",driver="dra.cpu",outcome="success"}': 0,
        'dranode_call_duration_seconds_count{call="unprepare",driver="dra.cpu",outcome="error"}': 0,
    }


def test_a_driver_without_cpus_has_families_with_its_own_name(worlds: dict[str, World]) -> None:
    world = worlds[Lamps.driver]
    world.prepare(allocated_claim("lit", Lamps.driver, ["lamp-0"]))
    assert world.values("lamps_example_com_resource_claims_active") == {"lamps_example_com_resource_claims_active": 1}
    assert world.values(r'lamps_example_com_prepare_claims_total\{result="success"\}') != {}
    assert world.values("lamps_example_com_allocated_cpus") == {}
    assert world.values(r"dranode_claims\{.*") == {
        'dranode_claims{driver="dra.cpu"}': 0,
        f'dranode_claims{{driver="{Lamps.driver}"}}': 1,
    }


def test_states_are_read_at_each_request(worlds: dict[str, World]) -> None:
    world = worlds["dra.cpu"]
    driver = 'driver="dra.cpu"'
    assert world.values(rf"dranode_slice_writes_total\{{{driver},verb=\"created\"\}}")
    world.cluster.told = PublisherStatus(published=True, created=7)
    assert list(world.values(rf"dranode_slice_writes_total\{{{driver},verb=\"created\"\}}").values()) == [7]
    assert list(world.values(rf"dranode_devices\{{{driver},health=\"healthy\"\}}").values()) == [2]
    assert world.values(rf"dranode_(ready|active)\{{{driver}\}}") == {
        f"dranode_ready{{{driver}}}": 0,
        f"dranode_active{{{driver}}}": 1,
    }
    before = world.values(rf"dranode_ledger_bytes\{{{driver}\}}")
    world.prepare(*(cpu_claim(f"c{number}", 1) for number in range(6)))
    assert list(before.values()) < list(world.values(rf"dranode_ledger_bytes\{{{driver}\}}").values())


def test_answers_to_the_runtime_are_timed_by_request(worlds: dict[str, World]) -> None:
    world = worlds["dra.cpu"]
    assert world.service.counters is not None
    world.service.counters.nri_answered("Create", 0.0004)
    text = r'dranode_nri_request_duration_seconds_bucket\{driver="dra.cpu",le="(0.0002|0.0005)",request="Create"\}'
    assert list(world.values(text).values()) == [0, 1]


def test_prometheus_gets_the_requested_format(worlds: dict[str, World]) -> None:
    metrics = worlds["dra.cpu"].metrics
    assert metrics.page("").content_type.startswith("text/plain")
    page = metrics.page("application/openmetrics-text; version=1.0.0")
    assert page.content_type.startswith("application/openmetrics-text")
    assert page.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(("driver", "prefix"), [("dra.cpu", "dra_cpu"), ("my-lamp.example.com", "my_lamp_example_com")])
def test_a_drivers_name_becomes_the_prefix_of_its_metrics(driver: str, prefix: str) -> None:
    assert prefix_of(driver) == prefix


def test_a_claim_that_holds_no_cpu_has_no_size(worlds: dict[str, World]) -> None:
    world = worlds["dra.cpu"]
    assert world.service.counters is not None
    world.service.counters.granted(Record(uid="u", held=CPUSet()))
    assert list(world.values("dra_cpu_claim_allocated_cpus_count").values()) == [0]


def test_a_page_is_made_once_a_second_for_each_format_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    metrics = Metrics(lambda: now[0])
    made: list[str] = []

    def encoder(accept: str) -> tuple[Callable[[object], bytes], str]:
        def encode(registry: object) -> bytes:
            del registry
            made.append(accept)
            return str(len(made)).encode()

        return encode, accept

    monkeypatch.setattr("dranode.driver.serve.metrics.choose_encoder", encoder)
    pages = []
    for seconds in (0.0, 0.5, 0.99, 1.0, 1.5):
        now[0] = 10 + seconds
        pages.append([metrics.page(kind).body for kind in ("text", "openmetrics")])
    assert pages == [[b"1", b"2"]] * 3 + [[b"3", b"4"]] * 2


def test_an_expensive_page_is_made_seldom_and_all_formats_take_one_percent_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, spent = [0.0], [0.0]
    metrics = Metrics(lambda: now[0], lambda: spent[0])

    def encoder(accept: str) -> tuple[Callable[[object], bytes], str]:
        def encode(registry: object) -> bytes:
            del registry
            spent[0] += 0.05
            return b"page"

        return encode, accept

    monkeypatch.setattr("dranode.driver.serve.metrics.choose_encoder", encoder)
    for accept in ("text", "openmetrics"):
        metrics.page(accept)  # the first page of each format is made at once
    first = spent[0]
    for now[0] in range(1, 1001):
        metrics.page("text")
        metrics.page("openmetrics")
    assert 5.0 < spent[0] - first <= 0.01 * 1000 + 0.1


def test_a_cheap_page_is_new_every_second() -> None:
    now = [0.0]
    metrics = Metrics(lambda: now[0], lambda: 0.0)
    page = metrics.page("")
    now[0] = 1.0
    assert metrics.page("") is not page
