import re
import xml.etree.ElementTree as ET

import pytest
from msgspec.structs import replace

from dranode.api.cpuset import CPUSet
from dranode.api.resource import Device
from dranode.cpu.layout import cpu_layout
from dranode.cpu.sysfs import read_topology
from dranode.driver.claims.held import ClaimRef, Holding
from dranode.driver.claims.plugin import Inventory
from dranode.show.picture.fleet import FleetMoment, FleetNode, FleetPicture
from dranode.show.picture.node import DriverView
from dranode.show.picture.pictures import views_picture
from dranode.show.picture.svg import fleet_svg
from dranode.sim.machines.forms import open_machine
from tests.fakes.fleets import training_fleet

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: FleetPicture) -> list[str]:
    root = ET.fromstring(fleet_svg(picture))  # noqa: S314 - our own text
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def node(description: str, **holders: str) -> FleetPicture:
    layout = cpu_layout(read_topology(open_machine(description)))
    held = tuple(Holding(ClaimRef("ns", name, name), cpus=CPUSet.parse(cpus)) for name, cpus in holders.items())
    views = [[DriverView("d", Inventory(()), layout, holdings)] for holdings in ((), held)]
    return views_picture("Node", "n", [("before", views[0]), ("after", views[1])])


def test_every_name_is_in_the_picture() -> None:
    shown = texts(training_fleet(2))
    assert {"worker-0", "worker-1", "NUMA 3", "Cluster prod"} <= set(shown)
    assert sum("gpu-7 NVIDIA H100" in words for words in shown) == 2
    assert any("A ml/train-worker-0-1" in words for words in shown)
    assert any("ml/big-0 waits: kube-scheduler" in words for words in shown)


def test_cores_have_the_letters_of_their_holders() -> None:
    shown = texts(node("numa=2,cores=2,threads=2", a="0,4", b="1"))
    assert {"0,4", "0,4 A", "1,5", "1,5 B·", "package 0", "NUMA 1"} <= set(shown)
    assert "ns/a  CPUs 0,4" in shown


@pytest.mark.parametrize("description", ["cores=8", "sockets=2,numa=2,l3=2,cores=4,threads=2"])
def test_before_and_after_have_the_same_layout(description: str) -> None:
    places = [
        re.findall(r'<rect x="[^"]*" y="[^"]*" width="[^"]*" height="[^"]*"', part)
        for part in fleet_svg(node(description, a="0-3", b="4")).split(">before<")[1].split(">after<")
    ]
    assert len(places[0]) > 8
    assert places[0] == places[1]


@pytest.mark.parametrize("description", ["cores=2", "sockets=2,numa=4,cores=4,threads=2"])
def test_a_picture_is_no_wider_than_a_page(description: str) -> None:
    picture = replace(node(description, a="0-1"), notes=("a word " * 60 + "and an end.",))
    drawn = fleet_svg(picture)
    assert float(re.findall(r'^<svg [^>]*width="([^"]+)"', drawn)[0]) <= 1220
    # Nothing is cut off: all words are there, and they are broken into several lines.
    lines = [words for words in texts(picture) if "word" in words or "end" in words]
    assert " ".join(lines) == picture.notes[0]
    assert len(lines) > 1


def test_names_are_never_markup() -> None:
    name = "<script>alert(1)</script>&\x00\x1b\ufffe"
    shown = texts(FleetPicture(name, (FleetNode(name),), (FleetMoment("now"),)))
    assert shown[0].startswith("<script>alert(1)</script>&")


def test_nothing_is_free_if_the_holders_are_unknown() -> None:
    layout = cpu_layout(read_topology(open_machine("cores=2")))
    gpus = Inventory((Device(name="gpu-0"),))
    views = [
        DriverView("cpus", Inventory(()), layout, holders_known=False),
        DriverView("gpus", gpus, holders_known=False),
    ]
    shown = texts(views_picture("Node", "n", [("now", views)]))
    assert {"0 ?", "1 ?", "gpu-0", "holder unknown"} <= set(shown)
    assert shown.count("free") == 1  # in the legend
