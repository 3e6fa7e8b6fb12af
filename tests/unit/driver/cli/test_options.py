"""Options that drivers declare: flags, variables, sections of the file, and what a broken declaration does."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from dranode.api.errors import UsageError
from dranode.driver.claims.options import FRAMEWORK_FLAGS, FRAMEWORK_KEYS
from dranode.driver.cli.commands import cli
from dranode.driver.cli.options import config_file
from dranode.driver.cli.serve import command as serve
from dranode.driver.plugins import declared
from tests.fakes.program import run_program

PROGRAM = Path(sys.executable).with_name("dranode")
PARAMETERS = {option.name or "": option for option in serve.params}
CLAIM = Path(__file__).parents[4] / "examples" / "cpu-numa.yaml"
MACHINE = "sockets=2,cores=2,threads=2"

SOUND = """
from dranode.driver.claims.options import Option
OPTIONS = (Option("count", "How many.", default=2), Option("dim", "Dark.", default=False))
"""
PLUGIN = """
from dranode.api.errors import UsageError
from dranode.api.resource import Device
from dranode.driver.claims.grant import ClaimGrant
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.plugin import Plugin

class Wall(Plugin):
    driver = "wall.example.com"
    def __init__(self, options): self.options = options
    def discover(self):
        assert not {"group_by", "threads", "gpu_sharing"} & set(self.options), self.options
        name = "dim" if self.options["dim"] else "bright"
        return Inventory(tuple(Device(name=f"{name}-{n}") for n in range(self.options["count"])))
    def grant(self, claim, held, inventory): return ClaimGrant(())

def plugin(root, options):
    if options["count"] > 8:
        raise UsageError(f"--wall-count is 8 at most, not {options['count']}")
    return Wall(options)
"""


def install(folder: Path, options: str = SOUND, name: str = "wall") -> Path:
    """A third party's package as an installer leaves it."""
    (folder / "wall_options.py").write_text(options)
    (folder / "wall.py").write_text(PLUGIN)
    info = folder / "wall-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wall\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[dranode.plugins]\n{name} = wall:plugin\n[dranode.options]\n{name} = wall_options:OPTIONS\n"
        f"[dranode.default]\n{name} = wall:plugin\n"
    )
    return folder


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(
        [PROGRAM, *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False
    )


def names(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert (done.returncode, done.stderr) == (0, "")
    return [device["name"] for each in json.loads(done.stdout)["items"] for device in each["spec"]["devices"]]


WALL = ("slices", "--machine", "cores=2", "--drivers", "wall", "-o", "json")


def test_a_driver_has_flags_variables_and_a_section_of_its_own(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "config.yaml").write_text(
        "drivers: [wall]\norder: reference\nplugins:\n  wall: {count: 1, dim: true}\n  cpu: {hostRoot: /host}\n"
    )
    assert names(run(tmp_path, *WALL)) == ["bright-0", "bright-1"]
    assert names(run(tmp_path, *WALL, "--wall-count", "3", DRANODE_WALL_COUNT="5")) == [
        "bright-0",
        "bright-1",
        "bright-2",
    ]
    assert names(run(tmp_path, *WALL, DRANODE_WALL_DIM="true", DRANODE_WALL_COUNT="1")) == ["dim-0"]
    assert names(run(tmp_path, "slices", "--config", "config.yaml", "-o", "json")) == ["dim-0"]
    assert names(run(tmp_path, "slices", "--config", "config.yaml", "-o", "json", "--no-wall-dim")) == ["bright-0"]
    shown = run(tmp_path, "serve", "--help").stdout
    assert "--wall-count INTEGER" in shown
    assert "--wall-dim / --no-wall-dim" in shown
    assert "(default cpu)" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("written", "instead", "sentence"),
    [
        ("def plugin(", "def plug_in(", "AttributeError: module 'wall' has no attribute 'plugin'"),
        ("import Device", "import Devise", "ImportError: cannot import name 'Devise' from 'dranode.api.resource'"),
        ("import Device", "import Device; import absent_module", "No module named 'absent_module'"),
    ],
)
def test_a_driver_that_cannot_be_imported_is_reported_in_one_sentence(
    tmp_path: Path, written: str, instead: str, sentence: str
) -> None:
    (install(tmp_path) / "wall.py").write_text(PLUGIN.replace(written, instead))
    done = run(tmp_path, *WALL)
    assert done.returncode == 2
    assert done.stderr.startswith('dranode: the driver "wall" cannot be loaded (wall:plugin): ')
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["slices", "bundle"])
def test_a_file_that_a_driver_cannot_read_is_reported_in_one_sentence(tmp_path: Path, command: str) -> None:
    broken = PLUGIN.replace("        name = ", '        open("/absent/register")\n        name = ')
    (install(tmp_path) / "wall.py").write_text(broken)
    done = run(tmp_path, command, "--machine", "cores=2", "--drivers", "wall")
    assert (done.returncode, done.stderr) == (1, "dranode: /absent/register: No such file or directory\n")


@pytest.mark.parametrize("command", ["slices", "doctor", "local", "drain"])
def test_every_command_that_uses_hardware_has_the_drivers_options(tmp_path: Path, command: str) -> None:
    install(tmp_path)
    done = run(tmp_path, command, "--drivers", "wall", DRANODE_WALL_COUNT="9", DRANODE_KUBELET_ROOT=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "dranode: --wall-count is 8 at most, not 9\n")


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("--drivers", "cpu,memory"), {}),
        (("--drivers=cpu, memory",), {}),
        (("--drivers", "cpu", "--drivers", "memory"), {}),
        ((), {"DRANODE_DRIVERS": "cpu,memory"}),
        ((), {"DRANODE_DRIVERS": "cpu memory"}),
    ],
    ids=str,
)
def test_several_drivers_are_given_with_commas_or_several_flags(
    tmp_path: Path, words: tuple[str, ...], environment: dict[str, str]
) -> None:
    devices = names(run_program("slices", "--machine", MACHINE, *words, "-o", "json", cwd=tmp_path, **environment))
    assert {name.rstrip("0123456789") for name in devices} >= {"cpudevnuma", "memory-numa"}


@pytest.mark.parametrize("value", ["cpu,", ",cpu", "cpu,,memory", ""])
def test_an_empty_name_among_drivers_is_refused(tmp_path: Path, value: str) -> None:
    done = run_program("slices", "--machine", MACHINE, f"--drivers={value}", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f'dranode: --drivers is "{value}", which has an empty name; give it as in cpu,memory,gpu\n'


def test_a_misspelt_variable_or_key_of_a_driver_is_refused(tmp_path: Path) -> None:
    install(tmp_path)
    done = run(tmp_path, *WALL, DRANODE_WALL_COUNTS="5")
    assert (done.returncode, done.stdout) == (2, "")
    assert "DRANODE_WALL_COUNTS is unknown: did you mean DRANODE_WALL_COUNT?" in done.stderr
    (tmp_path / "config.yaml").write_text("plugins: {wall: {Count: 1}}\n")
    assert (
        'the key "Count" under plugins.wall is spelled "count" here'
        in run(tmp_path, *WALL, "--config", "config.yaml").stderr
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("import no_such_module", 'the options of the driver "wall" cannot be loaded: ModuleNotFoundError'),
        (
            SOUND.replace('"Dark."', '"Dark.", flag="--threads"'),
            'the flag --threads is declared by the driver "wall" and by the driver "cpu"',
        ),
    ],
    ids=["broken", "colliding"],
)
def test_a_broken_declaration_is_a_warning_until_its_driver_is_used(
    tmp_path: Path, options: str, sentence: str
) -> None:
    install(tmp_path, options)
    (tmp_path / "config.yaml").write_text("plugins: {wall: {count: 1}}\n")
    others = run(
        tmp_path, "slices", "--machine", MACHINE, "--config", "config.yaml", "-o", "json", DRANODE_WALL_COUNT="3"
    )
    assert others.returncode == 0
    assert len(json.loads(others.stdout)["items"]) == 1
    (line,) = others.stderr.splitlines()
    assert sentence in line
    asked = run(tmp_path, *WALL)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr.startswith("dranode: ")
    assert sentence in asked.stderr


@pytest.mark.parametrize("options", [SOUND, "import no_such_module"], ids=["sound", "broken"])
def test_another_package_cannot_replace_a_driver_of_ours(tmp_path: Path, options: str) -> None:
    install(tmp_path, options, name="cpu")
    for words in (["--drivers", "cpu"], []):
        found = names(run(tmp_path, "slices", "--machine", MACHINE, *words, "--group-by", "machine", "-o", "json"))
        assert found == ["cpudevmachine"]


@pytest.mark.parametrize("broken", ["options", "plugin"])
def test_commands_that_load_all_drivers_continue_without_a_broken_one(tmp_path: Path, broken: str) -> None:
    install(tmp_path, "import no_such_module" if broken == "options" else SOUND)
    if broken == "plugin":
        (tmp_path / "wall.py").write_text("import no_such_module")
    (tmp_path / "plugins/dra.cpu").mkdir(parents=True)
    for words in (["check", str(CLAIM)], ["forget-lost", "--drivers", "dra.cpu", "--kubelet-root", str(tmp_path)]):
        done = run(tmp_path, *words)
        (warning, *others) = done.stderr.splitlines()
        assert "driver=wall is left out: " in warning
        assert "no_such_module" in warning
        assert others == [] if words[0] == "check" else "has no ledger" in others[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("plugins: {fpga: {}}", 'plugins has "fpga", but the installed drivers are cpu, gpu'),
        ("- groupBy: socket", "config.yaml is not a map of options"),
        ("plugins: [cpu]", "plugins must be a map of drivers"),
        ("plugins: {cpu: socket}", "plugins.cpu must be a map of options, not 'socket'"),
        ("plugins: {memory: {groupBy: l3}}", 'plugins.memory.groupBy must be one of numa, socket, machine, not "l3"'),
        ("plugins: {cpu: {sharing: shared}}", 'the key "sharing" under plugins.cpu is unknown; there are hostRoot'),
        (
            "plugins: {cpu: {groupBy: socket}}",
            'the key "groupBy" under plugins.cpu is unknown; "groupBy" belongs at the top level',
        ),
        ("reservedMemory: 0:1Gi", 'the key "reservedMemory" is unknown; "reservedMemory" belongs under plugins.memory'),
    ],
)
def test_an_invalid_section_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UsageError) as refused:
        config_file(str(tmp_path / "config.yaml"), PARAMETERS)
    assert sentence in str(refused.value)


# Each option of our own drivers: its only flag, its only key in the file, and a value.
NAMES = {
    "--cpu-device-mode": ("cpuDeviceMode", "individual"),
    "--group-by": ("groupBy", "socket"),
    "--reserved-cpus": ("reservedCPUs", "0-1"),
    "--threads": ("threads", "full-core"),
    "--order": ("order", "reference"),
    "--max-isolation": ("maxIsolation", "quiet"),
    "--cpu-host-root": ("plugins.cpu.hostRoot", "/host"),
    "--expose-pcie-roots": ("exposePCIeRoots", True),
    "--compat-attributes": ("compatAttributes", True),
    "--node-allocatable-mapping": ("publishNodeAllocatableResourceMapping", True),
    "--gpu-sharing": ("gpuSharing", "shared"),
    "--memory-group-by": ("plugins.memory.groupBy", "socket"),
    "--reserved-memory": ("plugins.memory.reservedMemory", "0:1Gi"),
    "--hugepages-exclusive": ("plugins.memory.hugepagesExclusive", True),
    "--memory-numa-node-list": ("plugins.memory.numaNodeList", True),
    "--memory-compat-attributes": ("plugins.memory.compatAttributes", True),
    "--memory-node-allocatable-mapping": ("plugins.memory.nodeAllocatableMapping", True),
}


@pytest.mark.parametrize("flag", NAMES)
def test_an_option_of_our_drivers_has_one_flag_one_variable_and_one_key(flag: str, tmp_path: Path) -> None:
    key, value = NAMES[flag]
    name = flag.removeprefix("--").replace("-", "_")
    document: Any = value
    for word in reversed(key.split(".")):
        document = {word: document}
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    assert config_file(str(tmp_path / "config.yaml"), PARAMETERS) == {name: value}
    words = [flag] if value is True else [flag, str(value)]
    assert serve.make_context("serve", words, resilient_parsing=False).params[name] == value
    assert PARAMETERS[name].envvar == [f"DRANODE_{name.upper()}"]


def test_every_option_of_serve_has_one_flag() -> None:
    ours = {each.parameter for each in declared().options if each.driver in ("cpu", "gpu", "memory")}
    assert ours == {flag.removeprefix("--").replace("-", "_") for flag in NAMES}
    assert {name: option.opts for name, option in PARAMETERS.items() if len(option.opts) > 1} == {}
    assert {name: option.envvar for name, option in PARAMETERS.items() if len(option.envvar or ()) > 1} == {
        "config": "DRANODE_CONFIG"
    }


@pytest.mark.parametrize(
    ("words", "environment", "config", "sentence"),
    [
        (("--driver", "cpu"), {}, "", "--driver"),
        (("--cpu-group-by", "socket"), {}, "", "--cpu-group-by"),
        (("--no-cpu-compat-attributes",), {}, "", "--no-cpu-compat-attributes"),
        ((), {"DRANODE_DRIVER": "cpu"}, "", "DRANODE_DRIVER is unknown: did you mean DRANODE_DRIVERS?"),
        ((), {"DRANODE_CPU_GROUP_BY": "socket"}, "", "DRANODE_CPU_GROUP_BY is unknown: did you mean DRANODE_GROUP_BY?"),
        ((), {}, "plugins: {cpu: {deviceMode: individual}}", 'the key "deviceMode" under plugins.cpu is unknown'),
        ((), {}, "plugins: {gpu: {sharing: shared}}", 'the key "sharing" under plugins.gpu is unknown; there are none'),
    ],
    ids=str,
)
def test_an_unknown_option_name_is_refused_everywhere(
    tmp_path: Path, words: tuple[str, ...], environment: dict[str, str], config: str, sentence: str
) -> None:
    (tmp_path / "config.yaml").write_text(config)
    for command in ("slices", "local", "doctor", "drain") if words else ("slices", "local", "bundle", "explain"):
        given = ["--config", "config.yaml"] if config else []
        done = run_program(command, *words, *given, cwd=tmp_path, **environment)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert sentence in done.stderr
        assert not words or "No such option" in done.stderr


def test_the_uid_of_the_pod_comes_from_the_downward_api_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_UID", "downward")
    assert serve.make_context("serve", []).params["pod_uid"] == "downward"
    assert serve.make_context("serve", ["--pod-uid", "given"]).params["pod_uid"] == "given"
    monkeypatch.setenv("DRANODE_POD_UID", "set")
    assert serve.make_context("serve", []).params["pod_uid"] == "set"


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        found = cli.get_command(context, name)
        if found is not None and any(each.name == "group_by" for each in found.params):
            yield name, found


def test_the_list_of_the_frameworks_own_flags_and_keys_is_complete() -> None:
    drivers = {name for each in declared().options for name in each.names}
    found = dict(commands())
    assert set(found) == {"serve", "slices", "doctor", "explain", "local", "drain", "bundle", "fit"}
    flags = {
        flag
        for each in found.values()
        for parameter in each.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--")
    }
    assert flags - drivers | {"--help"} == FRAMEWORK_FLAGS


# Options that a node's file cannot have, and why.
WITHOUT_A_KEY = {
    "config": "it names the file",
    "root": "it puts another machine in the node's place, for trying",
    "store": "it puts a folder in the API server's place, for a node without a cluster",
}


def test_every_option_of_serve_has_a_key_in_the_file_or_a_reason_to_have_none() -> None:
    drivers = {each.parameter for each in declared().options}
    assert set(PARAMETERS) - set(FRAMEWORK_KEYS.values()) - drivers == set(WITHOUT_A_KEY)
    assert set(FRAMEWORK_KEYS.values()) < set(PARAMETERS)


def test_the_metrics_address_can_be_in_the_file_like_the_probes_address(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("bindAddress: 127.0.0.1:8080\nmetricsAddress: 127.0.0.1:8081\n")
    assert config_file(str(tmp_path / "config.yaml"), PARAMETERS) == {
        "http_address": "127.0.0.1:8080",
        "metrics_address": "127.0.0.1:8081",
    }
