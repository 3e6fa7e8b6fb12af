"""Long names in a real browser: nothing leaves its box, however many claims share a device."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dranode.show.picture.fleet import DeviceKey, DeviceShare, FleetClaim, FleetPicture
from dranode.show.picture.page import fleet_page
from tests.fakes.browser import PROGRAM, Browser
from tests.fakes.fleets import CPUS, training_fleet

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium is installed; apt-get install chromium")

# Everything that sticks out of its card to the right.
OUTSIDE = """[...document.querySelectorAll('.card')].flatMap((card) =>
  [...card.querySelectorAll('*')].filter((each) =>
    each.getBoundingClientRect().right > card.getBoundingClientRect().right + 1).map((each) => each.className))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def crowded() -> FleetPicture:
    """A fleet whose first NUMA boxes are shared by many claims with long names."""
    fleet = training_fleet(2)
    key = DeviceKey(CPUS, "worker-0", "cpudevnuma000")
    more = tuple(
        FleetClaim(f"team-{number}/recommendation-service-{'x' * 40}-{number}", ("a/pod",), (DeviceShare(key),))
        for number in range(6)
    )
    (moment,) = fleet.moments
    return replace(fleet, moments=(replace(moment, claims=(*moment.claims, *more)),))


@pytest.mark.parametrize(("media", "width"), [("", 1400), ("", 420), ("print", 800)])
def test_nothing_leaves_its_card(browser: Browser, tmp_path: Path, media: str, width: int) -> None:
    page = tmp_path / "page.html"
    page.write_text(fleet_page(crowded()), encoding="utf-8")
    browser.open(page, width=width)
    browser.media(media)
    assert "recommendation-service" in browser.run("document.querySelector('.card').textContent")
    assert browser.run(OUTSIDE) == []
    browser.media()
