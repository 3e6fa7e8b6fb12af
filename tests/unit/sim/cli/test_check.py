"""`dranode check --kubernetes`: what the API server of a release, with its gates, accepts in a selector."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dranode.sim.cli.check import command

CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: gpu}}
spec: {{selectors: [{{cel: {{expression: '{expression}'}}}}]}}
"""
INCLUDES = 'device.attributes["a.example.com"].nodes.includes(1)'
SHARES = "device.allowMultipleAllocations"


@pytest.mark.parametrize(
    ("expression", "options", "status"),
    [
        (INCLUDES, (), 1),
        (INCLUDES, ("--feature-gates", "DRAListTypeAttributes=true"), 0),
        (SHARES, (), 0),
        (SHARES, ("--kubernetes", "1.36"), 0),
        (SHARES, ("--kubernetes", "1.35"), 1),
        (SHARES, ("--feature-gates", "DRAConsumableCapacity=false,DRAFractionalCapacityRange=false"), 1),
    ],
)
def test_a_selector_is_judged_by_the_release_and_its_gates(
    tmp_path: Path, expression: str, options: tuple[str, ...], status: int
) -> None:
    path = tmp_path / "class.yaml"
    path.write_text(CLASS.format(expression=expression))
    assert CliRunner().invoke(command, [str(path), *options]).exit_code == status


def test_a_document_without_an_api_version_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "class.yaml"
    path.write_text(CLASS.format(expression="true").replace("apiVersion: resource.k8s.io/v1\n", ""))
    result = CliRunner().invoke(command, [str(path)])
    assert result.exit_code == 1
    assert "apiVersion: apiVersion is required" in result.stdout
