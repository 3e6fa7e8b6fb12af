"""A command line of `serve` that is read without click means what click reads in it, whatever it is."""

from __future__ import annotations

import os
from itertools import chain
from typing import Any
from unittest.mock import patch

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dranode.driver.cli.daemon import plain_options
from dranode.driver.cli.serve import command
from dranode.driver.cli.settings import SERVE, STORE, driver_settings
from dranode.driver.core.api.errors import UsageError

SETTINGS = (*driver_settings(), *SERVE, STORE)
FLAGS = [
    *(flag for each in SETTINGS for flag in each.flags),
    "--no-device-taints",
    "--config",
    "--machine=host",
    "--help",
]
FLAGS += [
    "--no-device-taints",
    "--config",
    "--machine=host",
    "--help",
    "--no-group-by",
    "--node",
    "-vv",
    "-x",
    "--",
    "serve",
    "",
]
VALUES = [
    "on",
    "off",
    "cpu",
    "gpu",
    "cpu, gpu",
    "cpu,",
    "0-1",
    "json",
    "true",
    "host",
    "individual",
    "full-core",
    "none",
    "a b",
    "-1",
    "",
    "2",
]
VARIABLES = [*(variable for each in SETTINGS for variable in each.variables), "DRANODE_CONFIG", "DRANODE_NONSENSE"]


def words() -> st.SearchStrategy[list[str]]:
    flag, value = st.sampled_from(FLAGS), st.sampled_from(VALUES)
    pair = st.tuples(flag, value).map(list)
    joined = st.tuples(flag, value).map(lambda both: ["=".join(both)])
    return st.lists(st.one_of(pair, pair, joined, flag.map(lambda each: [each]))).map(lambda parts: [*chain(*parts)])


def by_click(arguments: list[str]) -> dict[str, Any] | None:
    """The parameters as click reads them; None where it refuses."""
    try:
        return command.make_context("serve", list(arguments)).params
    except (click.ClickException, click.exceptions.Exit, SystemExit, UsageError):
        return None


@example(["--machine=host=on"], {})
@given(words(), st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(VALUES), max_size=3))
def test_what_is_read_plainly_is_what_click_reads(arguments: list[str], variables: dict[str, str]) -> None:
    environment = {"NODE_NAME": "node", **variables}
    with patch.dict(os.environ, environment, clear=True), patch("sys.stdout"):
        try:
            plain = plain_options(arguments, environment)
        except UsageError:
            assert by_click(arguments) is None
            return
        if plain is None:
            return
        read = by_click(arguments)
        assert read is not None
    assert type(read.pop("root")) is type(plain.pop("root"))
    assert plain == {name: value or "" if name == "store" else value for name, value in read.items()}


def test_the_command_lines_of_the_manifests_are_plain() -> None:
    environment = {"NODE_NAME": "n", "POD_UID": "u", "POD_IP": "::1", "DRANODE_HTTP_ADDRESS": "[::1]:8080"}
    environment |= {"DRANODE_METRICS_ADDRESS": "[::1]:8081", "DRANODE_LOG_FORMAT": "json", "PATH": "/bin"}
    options = plain_options(["--driver=cpu", "--cpu-device-mode=individual", "--device-taints", "-v"], environment)
    assert options is not None
    chosen = ("drivers", "cpu_device_mode", "device_taints", "verbosity", "log_format", "pod_uid", "cdi_dir")
    assert [options[name] for name in chosen] == [("cpu",), "individual", True, 1, "json", "u", "/var/run/cdi"]


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--config", "f"], {}),
        ([], {"DRANODE_CONFIG": "f"}),
        (["--help"], {}),
        (["--log-format", "yaml"], {}),
        (["--node-name"], {}),
        (["--node-name", "--driver=cpu"], {}),
        (["--device-taints=yes"], {}),
        (["--no"], {}),
        (["cpu"], {}),
        ([], {"DRANODE_LOG_FORMATS": "json"}),
        ([], {"DRANODE_LOG_FORMAT": "yaml"}),
        ([], {"DRANODE_DEVICE_TAINTS": "true"}),
        ([], {"DRANODE_DRIVERS": "cpu,gpu"}),
        ([], {"_DRANODE_COMPLETE": "bash_source"}),
    ],
)
def test_what_is_not_plain_is_left_to_click(arguments: list[str], variables: dict[str, str]) -> None:
    assert plain_options([], {}) is not None
    assert plain_options(arguments, variables) is None
