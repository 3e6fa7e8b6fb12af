"""The page in a real browser: clicks, search, keyboard, print, light and dark, wide and narrow.

`SCREENSHOTS=DIR` keeps screenshots.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceAttribute, ResourcePool, ResourceSlice, ResourceSliceSpec
from dranode.cpu.layout import cpu_layout
from dranode.cpu.sysfs import read_topology
from dranode.driver.claims.held import ClaimRef, Holding
from dranode.driver.claims.plugin import Inventory
from dranode.show.picture.fleet import (
    DeviceKey,
    DeviceShare,
    FleetClaim,
    FleetDevice,
    FleetMoment,
    FleetNode,
    FleetPicture,
    WaitingPod,
)
from dranode.show.picture.node import DriverView
from dranode.show.picture.page import fleet_page
from dranode.show.picture.pictures import fleet_picture, views_picture
from dranode.sim.machines.forms import open_machine
from tests.fakes.browser import PROGRAM, Browser
from tests.fakes.fleets import CPUS, GPUS, NICS, training_fleet

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium is installed; apt-get install chromium")

HOSTILE = '</script><img src=x onerror="alert(1)"><script>alert(2)</script>\u2028"\'&lt;@@DATA@@'
INTERACTIVE = {"link", "button", "searchbox", "textbox", "radio", "DisclosureTriangle", "table"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_wrong(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test may cause an error in the console or a request to another address."""
    browser: Browser = request.getfixturevalue("browser")
    browser.errors.clear()
    browser.requests.clear()
    browser.media()
    yield
    assert browser.errors == []
    assert [address for address in browser.requests if not address.startswith("file://")] == []


def written(folder: Path, picture: FleetPicture) -> Path:
    page = folder / "page.html"
    page.write_text(fleet_page(picture), encoding="utf-8")
    return page


def keep(browser: Browser, name: str) -> None:
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        browser.screenshot(Path(folder) / f"{name}.png")


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.run(f"[...document.querySelectorAll('{selector}')].map((each) => each.textContent)")
    return found


def test_the_map_has_every_node_and_device_in_its_box(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(4)))
    keep(browser, "map")
    assert texts(browser, ".card .title .name") == [f"worker-{number}" for number in range(4)]
    assert browser.run("document.getElementById('moments').offsetHeight") == 0  # a single snapshot
    first = "document.querySelector('.card')"
    assert browser.run(f"[...{first}.querySelectorAll('.numa > small')].map((each) => each.textContent)") == [
        f"NUMA {numa}" for numa in range(4)
    ]
    box = browser.run(
        f"[...{first}.querySelectorAll('.numa')[1].querySelectorAll('.device .name')].map((each) => each.textContent)"
    )
    assert box == ["cpudevnuma001", "gpu-2", "gpu-3", "mlx5-2", "mlx5-3"]
    named = browser.run(f"[...{first}.querySelectorAll('.device')].map((each) => each.textContent)")
    assert sum("ml/train" in text for text in named) == 5 + 5 + 4
    assert "gpu.example.com" in browser.run("document.getElementById('totals').textContent")
    assert "11 of 32 free" in browser.run("document.getElementById('totals').textContent")


def test_a_click_opens_the_node_and_escape_leads_back(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(4)))
    browser.click(".card:nth-of-type(2)")
    browser.wait("!document.getElementById('node').hidden")
    keep(browser, "node")
    assert browser.run("document.getElementById('node-title').textContent") == "Node worker-1"
    assert len(texts(browser, "#node .line")) == 20
    assert any("A train-worker-1-0" in line for line in texts(browser, "#node .line"))
    browser.click("#node summary")
    assert "GPU-00000001" in browser.run("document.querySelectorAll('#node dl')[4].textContent")
    browser.press("Escape")
    browser.wait("document.getElementById('node').hidden && !document.getElementById('fleet').hidden")


def test_a_search_for_a_pod_shows_its_devices_and_leads_to_its_node(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(4)))
    browser.press("/")
    assert browser.run("document.activeElement.id") == "search"
    browser.write("train-worker-3-1-0")
    browser.wait("!document.getElementById('results').hidden")
    keep(browser, "search")
    assert texts(browser, "#results a") == ["pod ml/train-worker-3-1-0 worker-3"]
    hits = browser.run("[...document.querySelectorAll('.device.hit')].map((e) => e.querySelector('.name').textContent)")
    assert hits == ["cpudevnuma000", "gpu-1", "mlx5-1"]
    assert texts(browser, ".card.near .title .name") == ["worker-3"]
    browser.press("Enter")
    browser.wait("!document.getElementById('node').hidden")
    assert "worker-3" in browser.run("document.getElementById('node-title').textContent")
    assert len(texts(browser, "#node .line.hit")) == 3


def test_a_search_finds_a_device_by_an_attribute_that_it_alone_has(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(12)))
    browser.click("#search")
    browser.write("GPU-0000000b-0007")
    browser.wait("!document.getElementById('results').hidden")
    assert texts(browser, "#results a") == ["device worker-11: gpu-7"]


def test_the_keyboard_walks_over_the_map(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(12)))
    assert browser.run("document.querySelectorAll('.card[tabindex=\"0\"]').length") == 1
    browser.run("document.querySelector('.card[tabindex=\"0\"]').focus()")
    browser.press("ArrowRight")
    assert browser.run("document.activeElement.dataset.node") == "1"
    browser.press("ArrowDown")
    below = int(browser.run("document.activeElement.dataset.node"))
    assert below > 1
    browser.press("ArrowUp")
    assert browser.run("document.activeElement.dataset.node") == "1"
    browser.press("Enter")
    browser.wait("!document.getElementById('node').hidden")
    assert "worker-1" in browser.run("document.getElementById('node-title').textContent")


def test_the_pointer_over_a_device_says_who_holds_it(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(4)))
    browser.hover(".card:nth-of-type(2) .device:nth-of-type(2)")
    browser.wait("!document.getElementById('tip').hidden")
    tip = browser.run("document.getElementById('tip').textContent")
    assert tip.startswith("gpu-0: held")
    assert "held by ml/train-worker-1-0, pod ml/train-worker-1-0-0" in tip


def test_before_and_after_have_the_same_layout(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(4, compared=True)), width=1600)
    keep(browser, "compared")
    places = browser.run(
        "[...document.querySelectorAll('.pane')].map((pane) => { const top = pane.getBoundingClientRect(); "
        "return [...pane.querySelectorAll('.device')].map((e) => { const r = e.getBoundingClientRect(); "
        "return [e.dataset.device, ...[r.x - top.x, r.y - top.y, r.width, r.height].map(Math.round)]; }); })"
    )
    assert len(places) == 2
    assert len(places[0]) == 80
    assert places[0] == places[1]
    browser.click("#moments label:nth-of-type(2)")
    browser.wait("document.querySelectorAll('.pane').length === 1")
    browser.open(tmp_path / "page.html", "#/node=worker-1", width=1600)
    keep(browser, "compared-node")
    rows = browser.run(
        "[...document.querySelectorAll('#node .pane')].map((pane) => [...pane.querySelectorAll('.line')].map((e) => "
        "[e.dataset.device, Math.round(e.getBoundingClientRect().y - pane.getBoundingClientRect().y)]))"
    )
    assert rows[0] == rows[1]


def test_waiting_pods_are_listed_with_every_reason(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(4)), "#/waiting")
    keep(browser, "waiting")
    (waiting,) = texts(browser, "#waiting-list article")
    assert "ml/big-0" in waiting
    assert "Closest: worker-0. 3 of 8 GPUs fit" in waiting
    assert "no Event was read" in browser.run("document.getElementById('notes').textContent")


def test_pods_that_wait_for_the_same_reasons_are_grouped(browser: Browser, tmp_path: Path) -> None:
    picture = training_fleet(1)
    pods = [WaitingPod(f"ml/p-{number}", (f"ml/c-{number}",), ("short of GPUs",)) for number in range(12)]
    browser.open(
        written(tmp_path, replace(picture, waiting=(*pods, WaitingPod("ml/q", (), ("cordoned",))))), "#/waiting"
    )
    assert texts(browser, "#waiting-list h3") == ["ml/p-0 and 11 more", "ml/q"]
    browser.click("#waiting-list summary")
    assert "ml/p-11" in browser.run("document.querySelector('#waiting-list details p').textContent")


def test_filters_show_the_nodes_that_they_name(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(12)))
    browser.click("#filters label:nth-of-type(5)")
    browser.wait("document.querySelectorAll('.card').length === 1")
    assert texts(browser, ".card .title .name") == ["worker-3"]
    assert browser.run("document.querySelectorAll('.card .device.tainted').length") == 1
    browser.click("#filters label:nth-of-type(6)")
    browser.wait("document.querySelector('.card .title .name').textContent === 'worker-2'")


def test_a_url_opens_the_nodes_that_change(browser: Browser, tmp_path: Path) -> None:
    page = written(tmp_path, training_fleet(4, compared=True))
    before, after = training_fleet(4, compared=True).moments
    assert before.claims != after.claims
    browser.open(page)
    browser.click("#filters input[value=changed]")
    address = browser.run("location.hash")
    assert address == "#/fleet&changed"
    changed = texts(browser, ".pane:first-child .card .title .name")
    assert changed
    browser.run("location.hash = '#/claims'")
    browser.run(f"location.hash = '{address}'")
    browser.wait("!document.getElementById('fleet').hidden")
    assert texts(browser, ".pane:first-child .card .title .name") == changed
    assert browser.run("document.querySelector('#filters input:checked').value") == "changed"


def test_a_shared_device_shows_how_much_of_it_is_free(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(4)))
    assert "cpu 12 of 16 free" in texts(browser, ".card .device.wide")[0]


def test_a_node_says_how_near_its_gpus_are_to_its_nics(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(4)))
    browser.click(".card:nth-of-type(2)")
    browser.wait("!document.getElementById('node').hidden")
    browser.click("#distances summary")
    keep(browser, "distances")
    rows = browser.run("[...document.querySelectorAll('#distances tbody tr')].map((row) => row.textContent)")
    assert len(rows) == 8
    assert rows[0].startswith("gpu-0same ")
    assert rows[0].endswith("other NUMA node")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_the_page_is_readable_in_every_scheme_and_width(
    browser: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    browser.media(prefers_color_scheme=scheme)
    browser.open(written(tmp_path, training_fleet(4, compared=True)), width=width)
    keep(browser, f"{scheme}-{width}")
    assert browser.run("document.documentElement.dataset.theme") == scheme
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    ratio = browser.run(
        """(() => {
          const linear = (n) => (n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
          const light = (color) => {
            const [r, g, b] = color.match(/[\\d.]+/g).map((n) => linear(n / 255));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const contrast = (a, b) => {
            const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
            return (x + 0.05) / (y + 0.05);
          };
          const style = (selector) => getComputedStyle(document.querySelector(selector));
          const back = style("body").backgroundColor;
          const card = style(".card").backgroundColor;
          return [[style("body").color, back], [style(".muted").color, back], [style(".badge.bad").color, card]]
            .map((pair) => contrast(...pair));
        })()"""
    )
    assert min(ratio) >= 4.5
    browser.click("#theme")
    assert browser.run("document.documentElement.dataset.theme") != scheme


def test_states_differ_without_their_colors(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, training_fleet(4)))
    # WCAG 2.2, 1.4.1: color must not be the only means.
    looks = browser.run(
        "['free', 'held', 'tainted', 'blocked', 'held, not published'].map((word) => { const e = "
        "[...document.querySelectorAll('#legend span')]"
        ".find((each) => each.textContent.startsWith(word)).firstChild; const s = getComputedStyle(e); "
        "return [s.borderStyle, s.getPropertyValue('--used'), getComputedStyle(e, '::after').content].join(' '); })"
    )
    assert len(set(looks)) == 5


def test_a_printed_page_has_all_parts_and_no_controls(browser: Browser, tmp_path: Path) -> None:
    browser.media("print")
    browser.open(written(tmp_path, training_fleet(4)))
    keep(browser, "print")
    for part in ("fleet", "waiting", "claims"):
        assert browser.run(f"document.getElementById('{part}').offsetHeight") > 0
    assert browser.run("document.querySelector('.tools').offsetHeight") == 0
    browser.media()
    pdf = browser.printed()
    assert pdf.startswith(b"%PDF-")
    if os.environ.get("SCREENSHOTS"):
        (Path(os.environ["SCREENSHOTS"]) / "page.pdf").write_bytes(pdf)


def test_every_control_has_an_accessible_name(browser: Browser, tmp_path: Path) -> None:
    page = written(tmp_path, training_fleet(4, compared=True))
    for fragment in ("", "#/waiting", "#/claims", "#/node=worker-1"):
        browser.open(page, fragment)
        seen = browser.accessible()
        assert [role for role, name in seen if role in INTERACTIVE and not name.strip()] == []
        assert ("searchbox", "Find a pod, claim, node or device") in seen
    browser.open(page)
    links = [name for role, name in browser.accessible() if role == "link"]
    assert any(name.startswith("node worker-2; free dra.cpu") and "not Ready" in name for name in links)


def test_hostile_names_are_shown_as_plain_text(browser: Browser, tmp_path: Path) -> None:
    device = Device(name=HOSTILE, attributes={HOSTILE: DeviceAttribute(string=HOSTILE)})
    spec = ResourceSliceSpec(driver=HOSTILE, pool=ResourcePool(name=HOSTILE), node_name=HOSTILE, devices=(device,))
    claim = FleetClaim(f"ns/{HOSTILE}", (f"ns/{HOSTILE}",), (DeviceShare(DeviceKey(HOSTILE, HOSTILE, HOSTILE)),))
    picture = fleet_picture(
        HOSTILE,
        [ResourceSlice(spec=spec)],
        [("now", (claim,))],
        known={HOSTILE: (HOSTILE,), "other": ()},
        waiting=(WaitingPod(HOSTILE, (HOSTILE,), (HOSTILE,)),),
        notes=(HOSTILE,),
        facts=(HOSTILE,),
        taken=HOSTILE,
    )
    page = written(tmp_path, picture)
    for fragment in ("", "#/waiting", "#/claims"):
        browser.open(page, fragment)
        assert browser.run("document.querySelectorAll('img').length") == 0
        assert browser.run("document.scripts.length") == 2
        assert browser.run("document.getElementById('title').textContent") == HOSTILE
        assert browser.run("document.title") == HOSTILE.replace("\u2028", " ") or browser.run("document.title")
    browser.open(page)
    browser.click(".card")
    browser.wait("!document.getElementById('node').hidden")
    assert browser.run("document.getElementById('node-title').textContent") == f"Node {HOSTILE}"
    browser.hover("#node .line")
    assert browser.run("document.querySelectorAll('img').length") == 0


def test_a_thousand_nodes_open_and_are_searched(browser: Browser, tmp_path: Path) -> None:
    page = written(tmp_path, training_fleet(1000))
    assert page.stat().st_size <= 1_000_000
    browser.open(page)
    keep(browser, "thousand")
    assert browser.run("document.querySelectorAll('.device[data-device]').length") == 20_000
    browser.click("#search")
    browser.write("train-worker-777-")
    browser.wait("document.querySelectorAll('.card.near').length === 1")
    assert texts(browser, ".card.near .title .name") == ["worker-777"]


def test_a_nodes_cpus_are_drawn_core_by_core(browser: Browser, tmp_path: Path) -> None:
    layout = cpu_layout(read_topology(open_machine("sockets=2,numa=2,l3=2,cores=4,threads=2")))
    held = tuple(
        Holding(ClaimRef("ns", name, name), cpus=CPUSet.parse(cpus)) for name, cpus in (("a", "0-3,32-35"), ("b", "4"))
    )
    moments = [
        (name, [DriverView("d", Inventory(()), layout, each)]) for name, each in (("before", ()), ("after", held))
    ]
    browser.open(written(tmp_path, views_picture("Node", "n", moments)), width=1600)
    keep(browser, "cores")
    assert texts(browser, "#node .pane:nth-of-type(2) .core")[:6] == [
        "0,32A",
        "1,33A",
        "2,34A",
        "3,35A",
        "4,36B·",
        "5,37",
    ]
    before, after = browser.run(
        "[...document.querySelectorAll('#node .pane')].map((pane) => [...pane.querySelectorAll('.core, .frame')].map("
        "(each) => { const r = each.getBoundingClientRect(), top = pane.getBoundingClientRect(); "
        "return [r.x - top.x, r.y - top.y, r.width, r.height].map(Math.round); }))"
    )
    assert before == after
    captions = texts(browser, "#node .pane:nth-of-type(1) .caption")
    assert captions == ["package 0", "NUMA 0", "NUMA 1", "package 1", "NUMA 2", "NUMA 3"]
    browser.hover("#node .pane:nth-of-type(2) .core.held")
    browser.wait("!document.getElementById('tip').hidden")
    assert browser.run("document.getElementById('tip').textContent") == "CPU 0,32: ns/a"
    browser.click("#nav a")
    browser.wait("!document.getElementById('fleet').hidden")
    assert "after: 55 of 64 free" in browser.run("document.getElementById('totals').textContent")


def test_memory_and_huge_pages_are_not_added_up(browser: Browser, tmp_path: Path) -> None:
    def device(name: str, size: str, unit: str) -> FleetDevice:
        key, amount = DeviceKey("dra.memory", "worker", name), {"size": Quantity(size)}
        return FleetDevice(key, capacity=amount, units={"size": unit}, shared=True)

    devices = (
        device("memory-0", "14Gi", "memory"),
        device("memory-1", "14Gi", "memory"),
        device("pages-0", "1Gi", "hugepages-2Mi"),
    )
    cpu = FleetDevice(DeviceKey("dra.cpu", "worker", "cpus"), capacity={"dra.cpu/cpu": Quantity("8")}, shared=True)
    node = FleetNode("worker", (*devices, cpu))
    browser.open(written(tmp_path, replace(training_fleet(1), nodes=(node,), moments=(FleetMoment("now"),))))
    assert texts(browser, "#totals .total") == [
        "memory28Gi of 28Gi free",
        "hugepages-2Mi1Gi of 1Gi free",
        "dra.cpu8 of 8 free",
    ]


def test_no_device_is_free_if_the_claims_are_unknown(browser: Browser, tmp_path: Path) -> None:
    picture = training_fleet(2)
    moment = FleetMoment("now", unknown=frozenset({CPUS, GPUS, NICS}))
    browser.open(written(tmp_path, replace(picture, moments=(moment,))))
    keep(browser, "unknown")
    assert browser.run("document.querySelectorAll('.card .device.unknown').length") == 40
    assert set(texts(browser, ".card .device .state")) == {"holder unknown"}
    assert "0 of 128 free, 128 not known" in browser.run("document.getElementById('totals').textContent")
    assert "full 0" in texts(browser, "#filters label")
    browser.click(".card")
    browser.wait("!document.getElementById('node').hidden")
    assert set(texts(browser, "#node .bar")) == {"not known"}
