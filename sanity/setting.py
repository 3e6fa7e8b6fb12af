"""Sets up a bench: folders, API server, the driver's process."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dranode.api.errors import DranodeError, UsageError
from dranode.driver.machine.yaml_files import read_documents, read_yaml
from dranode.sanity.apiserver import ApiServer
from dranode.sanity.bench import Bench
from dranode.sanity.claims import NAMESPACE
from dranode.sanity.driver_link import BenchPlaces, CommandDriver
from dranode.sanity.kinds import KubeDocument

# Every Unix has this folder, and its path is short: a socket's path has at most 107 bytes.
_SHORT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
_ADMIN: Final = "resource.kubernetes.io/admin-access"


@contextlib.contextmanager
def laid_out(command: Sequence[str], options: Mapping[str, Any]) -> Iterator[Bench]:
    """Yield a bench for the options of `dranode sanity`; everything in it ends with the context.

    Raises:
        UsageError: the options contradict each other, or an input is missing.
        DranodeError: a folder cannot be written, or the driver cannot be started.
    """
    if not command and not options["registration_socket"] and not options["socket"]:
        raise UsageError("no driver is named: pass --registration-socket or --socket, or give its command after --")
    with contextlib.ExitStack() as stack:
        folder = _folder(options["state"], stack)
        places = _places(folder, bool(command), options)
        api = None
        if not options["claims"]:
            api = stack.enter_context(ApiServer())
            _fill(api, options["node_name"])
        kubeconfig = Path(options["kubeconfig"] or folder / "kubeconfig").absolute()
        if api is not None:
            _write_kubeconfig(api, kubeconfig)
        process = None
        if command:
            named = {
                "kubeconfig": str(kubeconfig),
                "registry": str(folder / "plugins_registry"),
                "plugins": str(folder / "plugins"),
                "kubelet": str(folder),
                "cdi": str(places.cdi),
                "node": places.node,
            }
            process = CommandDriver(command, named, folder)
            stack.callback(process.close)
        bench = Bench(
            places,
            process,
            api=api,
            given=_claims(options["claims"]),
            configurations=_configurations(options["configurations"]),
            patience=options["patience"],
            quiet=options["quiet"],
        )
        stack.callback(bench.disconnect)
        yield bench


def _folder(state: str | None, stack: contextlib.ExitStack) -> Path:
    try:
        if state is None:
            folder = Path(tempfile.mkdtemp(prefix="sanity-", dir=_SHORT))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        else:
            folder = Path(state).absolute()
        for name in ("plugins_registry", "plugins", "cdi"):
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DranodeError(
            f"{error.filename} cannot be created: {error.strerror}; choose a folder with --state"
        ) from error
    return folder


def _places(folder: Path, started: bool, options: Mapping[str, Any]) -> BenchPlaces:  # noqa: FBT001 - whether COMMAND is there
    registration = options["registration_socket"]
    if registration is None and started:
        registration = folder / "plugins_registry"
    cdi = options["cdi_dir"] or (folder / "cdi" if started else None)
    return BenchPlaces(
        socket=options["socket"],
        registration=Path(registration).absolute() if registration else None,
        cdi=Path(cdi).absolute() if cdi else None,
        node=options["node_name"],
        data=folder / "plugins" if started else None,
    )


def _fill(api: ApiServer, node: str) -> None:
    """Create the objects that every cluster has."""
    labels = {"kubernetes.io/hostname": node, "kubernetes.io/os": "linux"}
    api.put("nodes", {"metadata": {"name": node, "uid": f"uid-of-{node}", "labels": labels}, "spec": {}, "status": {}})
    for namespace in (NAMESPACE, "default"):
        api.put("namespaces", {"metadata": {"name": namespace, "labels": {_ADMIN: "true"}}})


def _write_kubeconfig(api: ApiServer, path: Path) -> None:
    try:
        api.kubeconfig(path)
    except OSError as error:
        raise UsageError(f"the kubeconfig {path} cannot be written: {error.strerror}") from error


def _claims(folder: str | None) -> list[KubeDocument]:
    if folder is None:
        return []
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.suffix in (".yaml", ".yml", ".json"))
    except OSError as error:
        raise UsageError(f"the folder of claims {folder} cannot be read: {error.strerror}") from error
    documents = [source.document for path in files for source in read_documents(path)]
    claims = [dict(document) for document in documents if document.get("kind") == "ResourceClaim"]
    if not claims:
        raise UsageError(f"{folder} holds no ResourceClaim")
    for claim in claims:
        metadata = claim.get("metadata") or {}
        if not metadata.get("uid") or not ((claim.get("status") or {}).get("allocation")):
            raise UsageError(f"claim {metadata.get('name')} of {folder} needs metadata.uid and status.allocation")
    return claims


def _configurations(file: str | None) -> list[Any]:
    if file is None:
        return []
    content = read_yaml(file)
    listed = content if isinstance(content, list) else [content]
    if not all(isinstance(parameters, dict) for parameters in listed):
        raise UsageError(f"{file} is not a list of parameters, each an object")
    return listed
