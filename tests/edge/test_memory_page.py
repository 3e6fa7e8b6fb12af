"""The manual's page of the memory driver: its configuration, pod, options and kernel files."""

from __future__ import annotations

import re
from pathlib import Path

import click
import yaml

from dranode.driver import Config
from dranode.driver.cli.commands import cli
from dranode.memory.config import MemoryConfig, parse_memory_config
from tests.kubernetes_schemas import problems

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "memory.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
# Options of numactl, and of commands other than serve.
OTHERS = {"--interleave", "--verify", "--usage", "--nodes"}


def test_its_configuration_is_valid() -> None:
    (document,) = [yaml.safe_load(block) for block in BLOCKS if "MemoryConfig" in block]
    assert isinstance(parse_memory_config(Config("FromClaim", document, "the manual")), MemoryConfig)


def test_its_container_is_valid() -> None:
    (resources,) = [yaml.safe_load(block) for block in BLOCKS if "MemoryConfig" not in block]
    container = {"name": "main", "image": "app", **resources}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    assert problems(pod) == []


def test_its_options_exist_in_serve() -> None:
    serve = cli.get_command(click.Context(cli), "serve")
    assert serve is not None
    known = {option for each in serve.params for option in (*each.opts, *each.secondary_opts)}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named
    assert named - known - OTHERS == set()
