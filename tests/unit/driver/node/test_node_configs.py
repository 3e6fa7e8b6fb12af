"""Which of a claim's configurations reach the driver, and in which order."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dranode.api.documents import decode
from dranode.api.resource import ResourceClaimSpec
from dranode.driver.claims import prepare as deciding
from dranode.driver.claims.grant import AllocatedClaim, ClaimGrant, Config
from dranode.driver.claims.held import Held
from dranode.driver.claims.plugin import Inventory, Plugin
from dranode.driver.claims.record import fingerprint
from dranode.sim.cluster.undecoded import parameter_errors
from tests.fakes.drivers import Lamps, allocated_claim, reference
from tests.fakes.node import LAMPS, given, opened, prepare, specs


def test_repeated_equal_configurations_count_once(tmp_path: Path) -> None:
    class Listening(Lamps):
        heard: tuple[Any, ...] = ()

        def grant(self, claim: AllocatedClaim, held: Held, inventory: Inventory) -> ClaimGrant:
            self.heard = tuple(config.parameters for each in claim.results for config in each.configs)
            return super().grant(claim, held, inventory)

    def config(colour: str, *requests: str) -> dict[str, Any]:
        opaque = {"driver": LAMPS, "parameters": {"colour": colour}}
        return {"source": "FromClaim", "requests": list(requests), "opaque": opaque}

    red, blue, other = config("red", "r", "s"), config("blue", "r"), config("red", "r")
    for number, (configs, heard) in enumerate(
        (([red, red], 1), ([red, red, blue, blue], 2), ([red, blue, red], 2), ([red, other], 2))
    ):
        lamps = Listening()
        folder = tmp_path / str(number)
        folder.mkdir()
        node = opened(folder, lamps)
        claim = allocated_claim("a", LAMPS, ["lamp-0"], config=configs)
        prepare(node, claim)
        assert len(lamps.heard) == heard
        # The last one wins, as it does without the repeated entries.
        assert lamps.heard[-1] == lamps.parse_config(Config("FromClaim", configs[-1]["opaque"]["parameters"], ""))
        assert isinstance(prepare(node, claim)["a"], tuple)


def test_a_fingerprint_includes_repeated_entries_as_in_older_versions() -> None:
    opaque = {"driver": LAMPS, "parameters": {"colour": "red"}}
    twice = allocated_claim("a", LAMPS, ["lamp-0"], config=[{"source": "FromClaim", "opaque": opaque}] * 2)
    asked = deciding.allocated_claim(reference(twice), twice, Lamps())
    assert fingerprint(asked) == "fe0afd780a66f76f"


def test_a_configuration_for_a_driver_without_any_is_refused_with_its_path(tmp_path: Path) -> None:
    class Plain(Lamps):
        parse_config = Plugin.parse_config

    entry = {"source": "FromClaim", "opaque": {"driver": LAMPS, "parameters": {"colour": "red"}}}
    claim = allocated_claim("a", LAMPS, ["lamp-0"], config=[entry])
    said = "lamps.example.com takes no configuration; remove this one"
    answer = prepare(opened(tmp_path, Plain()), claim)["a"]
    assert str(answer) == f"status.allocation.devices.config[0].opaque.parameters: {said}"
    (error,) = parameter_errors(Plain(), "FromClaim", {"colour": "red"}, "spec.config[0]")
    assert (error.path, error.message) == ("spec.config[0]", said)


def test_other_drivers_results_and_configurations_are_not_read(tmp_path: Path) -> None:
    node = opened(tmp_path)
    claim = allocated_claim(
        "a",
        "other.example.com",
        ["x"],
        config=[{"source": "FromClaim", "opaque": {"driver": "other.example.com", "parameters": {"broken": 1}}}],
    )
    assert prepare(node, claim)["a"] == ()
    assert node.records() == ()
    assert specs(tmp_path) == {} if (tmp_path / "cdi").exists() else True


def test_a_configuration_that_names_the_main_request_reaches_its_alternatives(tmp_path: Path) -> None:
    def config(source: str, requests: list[str], colour: str) -> dict[str, Any]:
        return {"source": source, "requests": requests, "opaque": {"driver": LAMPS, "parameters": {"colour": colour}}}

    claim = allocated_claim(
        "a",
        LAMPS,
        {"r/big": "lamp-0", "s/small": "lamp-1", "t": "lamp-2"},
        config=[
            config("FromClass", [], "white"),
            config("FromClaim", ["r"], "red"),
            config("FromClaim", ["s/small"], "green"),
            config("FromClaim", ["s/big"], "blue"),
        ],
    )
    prepare(opened(tmp_path), claim)
    (spec,) = specs(tmp_path).values()
    assert [colour for _, colour in given(spec)] == ["COLOR=red", "COLOR=green", "COLOR=white"]


def test_a_class_never_overrides_a_claim_whatever_the_order_in_the_allocation(tmp_path: Path) -> None:
    config = [
        {"source": source, "opaque": {"driver": LAMPS, "parameters": {"colour": colour}}}
        for source, colour in (("FromClaim", "red"), ("FromClaim", "green"), ("FromClass", "white"))
    ]
    prepare(opened(tmp_path), allocated_claim("a", LAMPS, ["lamp-0"], config=config))
    (spec,) = specs(tmp_path).values()
    assert spec["devices"][0]["containerEdits"]["env"][1] == "COLOR=green"


def written(*entries: dict[str, Any], requests: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """The part of a claim's spec that its author wrote."""
    plain = {"name": "r", "exactly": {"deviceClassName": "bright"}}
    return {"devices": {"requests": list(requests or (plain,)), "config": list(entries)}}


def opaque(colour: str, driver: str = LAMPS) -> dict[str, Any]:
    return {"opaque": {"driver": driver, "parameters": {"colour": colour}}}


WRONG = {"opaque": {"driver": LAMPS, "parameters": {"loud": True}}}


def refusal(tmp_path: Path, spec: dict[str, Any], config: list[dict[str, Any]], request: str = "r") -> str:
    claim = allocated_claim("a", LAMPS, {request: "lamp-0"}, config=config)
    claim = msgspec.structs.replace(claim, spec=decode(ResourceClaimSpec, spec))
    return str(prepare(opened(tmp_path), claim)["a"])


@pytest.mark.parametrize("copies", [1, 2])
def test_an_error_in_a_claims_configuration_has_its_path_in_the_spec(tmp_path: Path, copies: int) -> None:
    # Entries of other requests are not copied; up to 1.36 an entry is copied once for each request that it names.
    entries = [opaque("red") | {"requests": ["other"]}, opaque("red", "other.example.com"), WRONG]
    config: list[dict[str, Any]] = [{"source": "FromClass", "requests": ["r"], **opaque("red")}]
    config += [{"source": "FromClaim", **entries[1]}, *([{"source": "FromClaim", **entries[2]}] * copies)]
    said = refusal(tmp_path, written(*entries), config)
    assert said.startswith("spec.devices.config[2].opaque.parameters")
    assert "status.allocation" not in said


def test_an_error_in_a_classs_configuration_names_the_class(tmp_path: Path) -> None:
    alternatives = [{"name": "a", "deviceClassName": "dim"}, {"name": "b", "deviceClassName": "bright"}]
    prioritized = ({"name": "q", "exactly": {"deviceClassName": "dim"}}, {"name": "r", "firstAvailable": alternatives})
    of_class = [opaque("red", "other.example.com"), opaque("red"), WRONG]
    config: list[dict[str, Any]] = [{"source": "FromClass", "requests": ["q"], **opaque("red")}]
    config += [{"source": "FromClass", "requests": ["r/b"], **each} for each in of_class]
    said = refusal(tmp_path, written(requests=prioritized), config, "r/b")
    assert said.startswith("DeviceClass bright: spec.config[2].opaque.parameters")


@pytest.mark.parametrize("source", ["FromClaim", "FromClass"])
def test_a_configuration_of_unknown_origin_has_its_path_in_the_allocation(tmp_path: Path, source: str) -> None:
    config: list[dict[str, Any]] = [{"source": source, "requests": ["r"] if source == "FromClaim" else [], **WRONG}]
    said = refusal(tmp_path, written(WRONG | {"requests": ["other"]}), config)
    assert said.startswith("status.allocation.devices.config[0].opaque.parameters")
