"""A real containerd: built from its published Go module, configured for a folder of its own, started and killed.

Attributes:
    INTEROP_NRI_PATIENCE: an environment variable: how long it waits for a plug-in's answer before it drops it. What it
        waits by default, two seconds, pass in an emulated machine while nothing runs.
"""

import os
import shutil
import subprocess
from pathlib import Path

from tests.interop.cache import CACHE
from tests.interop.image import IMAGE
from tests.interop.pod import TOOLS
from tests.interop.runtime import Runtime, busybox

MODULE = "github.com/containerd/containerd"
COMMANDS = ("containerd", "containerd-shim-runc-v2", "ctr")
DROPPED_AFTER = "2s"

_CONFIG = """
version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
address = "{folder}/c.sock"

[ttrpc]
address = "{folder}/t.sock"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image}"

[plugins."io.containerd.cri.v1.runtime"]
{cdi}
cdi_spec_dirs = ["{folder}/cdi"]
restrict_oom_score_adj = true
disable_apparmor = true
disable_hugetlb_controller = false
stats_collect_period = "1h"

[plugins."io.containerd.cri.v1.runtime".cni]
{bin_dir}
conf_dir = "{folder}/cni"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false

[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{folder}/nri/nri.sock"
plugin_path = "{folder}/nri-plugins"
plugin_config_path = "{folder}/nri-conf"
plugin_request_timeout = "{patience}"
"""

# The same for containerd 1.7.
_CONFIG_1 = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.tracing.processor.v1.otlp"]

[grpc]
address = "{folder}/c.sock"

[ttrpc]
address = "{folder}/t.sock"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
{cdi}
cdi_spec_dirs = ["{folder}/cdi"]
restrict_oom_score_adj = true
disable_apparmor = true
disable_hugetlb_controller = false

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{folder}/cni"
conf_dir = "{folder}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false

[plugins."io.containerd.nri.v1.nri"]
disable = false
socket_path = "{folder}/nri/nri.sock"
plugin_path = "{folder}/nri-plugins"
plugin_config_path = "{folder}/nri-conf"
plugin_request_timeout = "{patience}"
"""


def why_not(*versions: str) -> str:
    """Return why containerd of these versions cannot run here; empty if it can."""
    if os.geteuid() != 0:
        return "a container runtime needs root"
    if shutil.which("runc") is None:
        return "runc is not installed (Debian's package runc)"
    if shutil.which("go") is None and not all(map(_built, versions)):
        return "go is not installed (a Go toolchain)"
    for tool in TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian's package util-linux)"
    if busybox() is None:
        return "busybox is not installed or not linked statically (Debian's package busybox-static)"
    return ""


def build(version: str) -> Path:
    """Return the folder with the programs of a version, which are built once.

    They are built from a scratch module, because `go install` refuses modules whose go.mod has exclude lines.
    """
    folder = CACHE / version
    programs = folder / "bin"
    if _built(version):
        return programs
    folder.mkdir(parents=True, exist_ok=True)
    go = {**os.environ, "GOTOOLCHAIN": "auto", "GOFLAGS": "-buildvcs=false"}
    if not (folder / "go.mod").exists():
        _run(["go", "mod", "init", "dranode.test/scratch"], folder, go)
    module = MODULE if version.startswith("v1.") else f"{MODULE}/v2"
    packages = [f"{module}/cmd/{command}" for command in COMMANDS]
    _run(["go", "get", *(f"{package}@{version}" for package in packages)], folder, go)
    _run(["go", "build", "-o", f"{programs}/", *packages], folder, go)
    return programs


def _built(version: str) -> bool:
    return all((CACHE / version / "bin" / command).exists() for command in COMMANDS)


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")


class Containerd(Runtime):
    """A containerd in its own folder."""

    def __init__(self, programs: Path, folder: Path, *, cdi: bool = True) -> None:
        super().__init__(folder, (programs / "containerd", "--config", folder / "config.toml"), programs)
        old = programs.parent.name.startswith("v1.")
        # Off by default in 1.7, always on from 2.4.
        option = "enable_cdi = false" if not cdi else "enable_cdi = true" if old else ""
        # 2.0 has an option for one folder. 2.3 warns about that option, and 2.4 ignores it.
        single = programs.parent.name.startswith("v2.0.")
        plugins = f'bin_dir = "{folder}/cni"' if single else f'bin_dirs = ["{folder}/cni"]'
        text = (_CONFIG_1 if old else _CONFIG).format(
            folder=folder,
            image=IMAGE,
            runc=shutil.which("runc"),
            cdi=option,
            bin_dir=plugins,
            patience=os.environ.get("INTEROP_NRI_PATIENCE", DROPPED_AFTER),
        )
        (folder / "config.toml").write_text(text)

    @staticmethod
    def can_switch_cdi_off(programs: Path) -> bool:
        """Whether CDI can be switched off; from 2.4 it is always on."""
        done = subprocess.run([programs / "containerd", "config", "default"], capture_output=True, check=True)
        return b"enable_cdi" in done.stdout

    def load(self, archive: Path) -> None:
        """Import the images of an OCI archive."""
        self.ctr("images", "import", "--local", "--snapshotter", "native", str(archive))

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client."""
        command = [f"{self.programs}/ctr", "--address", f"{self.folder}/c.sock", "--namespace", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
