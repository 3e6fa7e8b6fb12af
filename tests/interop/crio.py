"""A real CRI-O in its own folder, taken from PATH because its module cannot be built by its name."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.interop.cache import CACHE
from tests.interop.image import IMAGE
from tests.interop.runtime import Runtime

# CRI-O from its sources, conmon from Debian's package of that name; buildah fills CRI-O's store.
_PROGRAMS = ("crio", "pinns", "conmon", "runc", "buildah")
_PATH = f"{CACHE / 'bin'}:{os.environ['PATH']}"

_CONFIG = """
[crio]
root = "{folder}/root"
runroot = "{folder}/run"
storage_driver = "vfs"
log_dir = "{folder}/pods"
version_file = "{folder}/version"
internal_wipe = false
clean_shutdown_file = "{folder}/clean"

[crio.api]
listen = "{folder}/c.sock"

[crio.runtime]
apparmor_profile = "unconfined"
cgroup_manager = "cgroupfs"
cdi_spec_dirs = ["{folder}/cdi"]
container_exits_dir = "{folder}/exits"
container_attach_socket_dir = "{folder}/attach"
namespaces_dir = "{folder}/namespaces"
pinns_path = "{pinns}"
default_runtime = "runc"

[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
runtime_root = "{folder}/runc"
monitor_path = "{conmon}"
monitor_cgroup = "pod"

[crio.image]
pause_image = "{image}"
pause_command = ""
signature_policy = "{folder}/policy.json"

[crio.network]
network_dir = "{folder}/cni"
plugin_dirs = ["{folder}/cni"]

[crio.nri]
enable_nri = true
nri_listen = "{folder}/nri/nri.sock"
nri_plugin_dir = "{folder}/nri-plugins"
nri_plugin_config_dir = "{folder}/nri-conf"
"""


# A machine may forbid OOM scores below the process's own, such as CRI-O sets for sandboxes; containerd has an option.
_RUNC = """#!/bin/sh
own=$(cat /proc/self/oom_score_adj)
previous=
for word in "$@"; do
    [ "$previous" != --bundle ] || sed -i 's/"oomScoreAdj": *-*[0-9]*/"oomScoreAdj":'"$own/" "$word/config.json"
    previous=$word
done
exec {runc} "$@"
"""


def why_no_crio() -> str:
    """Return why CRI-O cannot run here; empty if it can."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    return f"{', '.join(missing)} of CRI-O and its helpers are not on PATH" if missing else ""


class CRIO(Runtime):
    """A CRI-O in its own folder."""

    def __init__(self, folder: Path) -> None:
        found = {name: shutil.which(name, path=_PATH) for name in _PROGRAMS}
        super().__init__(folder, (str(found["crio"]), "--config", folder / "crio.conf", "--config-dir", ""), folder)
        (folder / "runc-of-crio").write_text(_RUNC.format(**found))
        (folder / "runc-of-crio").chmod(0o755)
        found["runc"] = str(folder / "runc-of-crio")
        (folder / "crio.conf").write_text(_CONFIG.format(folder=folder, image=IMAGE, **found))
        (folder / "policy.json").write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))

    def load(self, archive: Path) -> None:
        store = ["buildah", "--root", f"{self.folder}/root", "--runroot", f"{self.folder}/run"]
        pulled = subprocess.run(
            [*store, "--storage-driver", "vfs", "pull", "--quiet", f"oci-archive:{archive}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert pulled.returncode == 0, pulled.stderr
        subprocess.run([*store, "--storage-driver", "vfs", "tag", pulled.stdout.strip(), IMAGE], check=True)
