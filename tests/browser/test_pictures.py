"""The manual's hand-drawn pictures in a browser: no text leaves its box or the picture.

`SCREENSHOTS=DIR` keeps screenshots.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.fakes.browser import PROGRAM, Browser

ROOT = Path(__file__).parents[2]
# The program draws the demo's picture; its own tests check that one.
PICTURES = sorted(set((ROOT / "docs").glob("*.svg")) - {ROOT / "docs" / "demo.svg"})
OUTSIDE = """(() => {
  const svg = document.documentElement, whole = svg.viewBox.baseVal, left = [];
  for (const text of svg.querySelectorAll("text")) {
    const box = text.getBBox(), rect = text.parentNode === svg ? null : text.parentNode.querySelector("rect");
    const room = rect === null ? whole : rect.getBBox();
    if (box.x < room.x || box.y < room.y || box.x + box.width > room.x + room.width + 0.5
        || box.y + box.height > room.y + room.height) left.push(text.textContent);
  }
  return left;
})()"""
COLOR = 'getComputedStyle(document.querySelector("rect.paper")).fill'


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip("no chromium is installed; apt-get install chromium")
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_every_text_stays_in_its_box_and_the_colors_follow_the_reader(browser: Browser, picture: Path) -> None:
    colors = []
    for scheme in ("light", "dark"):
        browser.media(prefers_color_scheme=scheme)
        browser.open(picture, width=520, height=800)
        assert browser.run(OUTSIDE) == []
        colors.append(browser.run(COLOR))
        if folder := os.environ.get("SCREENSHOTS"):
            browser.screenshot(Path(folder) / f"{picture.stem}-{scheme}.png")
    assert len(set(colors)) == len(colors)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_has_a_title_and_a_description_and_loads_nothing(picture: Path) -> None:
    root = ET.parse(picture).getroot()  # noqa: S314 - a file of ours
    said: dict[str, Any] = {child.tag.rpartition("}")[2]: child.text for child in root}
    assert said["title"]
    assert said["desc"]
    text = picture.read_text()
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "url(" not in text.replace("url(#", "")
