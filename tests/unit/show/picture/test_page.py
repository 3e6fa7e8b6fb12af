import base64
import hashlib
import json
import re

import pytest

from dranode.show.picture.fleet import FleetMoment, FleetNode, FleetPicture
from dranode.show.picture.page import embedded, fleet_page
from dranode.show.picture.svg import fleet_svg
from tests.fakes.fleets import training_fleet

HOSTILE = "</script><!--<script>alert(1)</script>&\u2028@@SCRIPT@@"


def test_the_page_loads_nothing_else() -> None:
    page = fleet_page(training_fleet(3))
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", page) == []
    assert re.findall(r"url\(|@import|https?://", page) == []


def test_the_policy_allows_only_the_pages_script_and_no_downloads() -> None:
    page = fleet_page(training_fleet(1))
    (script,) = re.findall(r"<script>(.*)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_names_cannot_end_the_element_around_them() -> None:
    page = fleet_page(FleetPicture(HOSTILE, (FleetNode(HOSTILE),), (FleetMoment("now"),)))
    assert page.count("</script>") == 2
    assert "<!--" not in page
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["nodes"][0][0] == HOSTILE
    assert "<title>&lt;/script&gt;" in page


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "\u2028\u2029", "&lt;", "\ud800"])
def test_embedded_json_is_harmless_and_reads_back_the_same(text: str) -> None:
    written = embedded([text])
    assert written.isascii()
    assert not set("<>&") & set(written)
    assert json.loads(written) == [text]


def test_a_page_of_a_thousand_nodes_is_at_most_a_megabyte() -> None:
    assert len(fleet_page(training_fleet(1000)).encode()) <= 1_000_000


def test_a_name_that_utf8_cannot_encode_can_be_written() -> None:
    picture = FleetPicture("cluster \udcff.yaml", (FleetNode("n"),), (FleetMoment("now"),))
    assert b"<title>cluster ?.yaml</title>" in fleet_page(picture).encode()
    assert "cluster \ufffd.yaml" in fleet_svg(picture).encode().decode()
