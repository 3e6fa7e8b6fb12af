"""Device metadata for workloads (KEP-5304): one file for each request, mounted into the containers that ask for it.

A file is a stream of JSON documents: the same object in each version of the API, newest first. Readers take the first
version that they know. Kubernetes' Go package knows only v1alpha1 in 1.36, and also v1beta1 since 1.37, with the same
fields (k8s.io/dynamic-resource-allocation/devicemetadata, 0.36.0 to 0.38.0-alpha.0; 0.35 does not have it). A CDI
device of the claim mounts the file (`metadata_devices`). dra-driver-cpu and earlier versions have a separate CDI spec
for each request instead; kubelet uses its device until the pods that got it end.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dranode.api.documents import encode
from dranode.api.errors import DranodeError
from dranode.api.resource import DeviceAttribute
from dranode.cdi.spec import Mount
from dranode.driver.claims.grant import Grant, main_request
from dranode.driver.claims.plugin import Inventory
from dranode.driver.claims.record import Record, claim_device, request_device

POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that was created from a template: the claim's name in the pod's spec."""

CONTAINER_FOLDER: Final = "/var/run/kubernetes.io/dra-device-attributes"
MAX_ATTRIBUTES: Final = 32
_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")


class RequestMetadata(msgspec.Struct, frozen=True):
    """The metadata of one request.

    Attributes:
        request: the main request's name.
        file: the file's name in the driver's metadata folder.
        text: the file's content.
        device: the name of the claim's CDI device that mounts it.
        mount: the mount.
    """

    request: str
    file: str
    text: bytes
    device: str
    mount: Mount


def older_kind(driver: str) -> str:
    """Return the kind of the CDI devices that mounted metadata in earlier versions: `<kind>=<claim UID>_<request>`."""
    return f"{driver}/metadata"


def older_spec_prefix(driver: str) -> str:
    """Return the prefix of the names of their CDI specs: `<prefix><claim UID>_<request>.json`."""
    return f"{driver}_metadata_"


def metadata_file(uid: str, request: str) -> str:
    """Return the name of a request's metadata file on the host. KEP-5304 defines only the path in containers.

    Raises:
        DranodeError: a name is not valid in Kubernetes and would lead to another folder.
    """
    return f"{_part(uid)}_{_part(request)}"


def metadata_owner(file: str) -> str:
    """Return the UID of the claim in the name of a file; the name of a request has no `_`."""
    return file.rpartition("_")[0]


def requests_of(record: Record) -> tuple[str, ...]:
    """Return the main requests of a claim, each once, in the order of the results."""
    return tuple(dict.fromkeys(main_request(grant.request) for grant in record.grants))


def metadata_devices(record: Record) -> dict[str, str]:
    """Return the claim's CDI devices that mount the metadata of its requests, by main request.

    For a claim with one request, it is the device that every container with the claim gets. With several requests, each
    has the device of its first result, which kubelet gives to containers that name the request or the whole claim.
    """
    devices: dict[str, str] = {}
    for index, grant in enumerate(record.grants):
        devices.setdefault(main_request(grant.request), request_device(record.uid, index))
    return devices if len(devices) > 1 else dict.fromkeys(devices, claim_device(record.uid))


def device_metadata(driver: str, folder: str, record: Record, inventory: Inventory) -> tuple[RequestMetadata, ...]:
    """Return the metadata of every request of a claim; none if the claim's name is not known.

    Args:
        driver: the driver.
        folder: the driver's metadata folder on the host.
        record: the claim.
        inventory: the devices with their published attributes; a device that is gone has only those of its grant.

    Raises:
        DranodeError: a name of the claim or of a request cannot be part of a path.
    """
    if not record.name:
        return ()
    return tuple(
        RequestMetadata(
            request=request,
            file=metadata_file(record.uid, request),
            text=_text(driver, record, inventory, request),
            device=device,
            mount=_mount(driver, folder, record, request),
        )
        for request, device in metadata_devices(record).items()
    )


def _mount(driver: str, folder: str, record: Record, request: str) -> Mount:
    # The name of a claim from a template is generated, so a workload only knows the name in its pod's spec.
    claim_folder = (
        f"resourceclaimtemplates/{_part(record.pod_claim_name)}"
        if record.pod_claim_name
        else f"resourceclaims/{_part(record.name)}"
    )
    return Mount(
        host_path=f"{folder}/{metadata_file(record.uid, request)}",
        container_path=f"{CONTAINER_FOLDER}/{claim_folder}/{request}/{driver}-metadata.json",
        # OCI runtimes take a mount with the option `bind` for a bind mount, whatever its type is.
        options=("ro", "bind"),
    )


def _text(driver: str, record: Record, inventory: Inventory, request: str) -> bytes:
    metadata = {"name": record.name, "namespace": record.namespace, "uid": record.uid, "generation": 1}
    named = {"podClaimName": record.pod_claim_name} if record.pod_claim_name else {}
    requests: dict[str, list[Any]] = {}
    for grant in record.grants:
        if main_request(grant.request) == request:
            requests.setdefault(grant.request, []).append(_device(driver, grant, inventory))
    same = {
        "kind": "DeviceMetadata",
        "metadata": metadata,
        **named,
        "requests": [{"name": name, "devices": devices} for name, devices in requests.items()],
    }
    documents = (msgspec.json.encode({"apiVersion": version, **same}) for version in _VERSIONS)
    return b"".join(msgspec.json.format(document, indent=2) + b"\n" for document in documents)


def _device(driver: str, grant: Grant, inventory: Inventory) -> dict[str, Any]:
    device = {"driver": driver, "pool": grant.pool, "name": grant.device}
    attributes = _attributes(grant, inventory)
    return {**device, "attributes": encode(attributes)} if attributes else device


def _attributes(grant: Grant, inventory: Inventory) -> Mapping[str, DeviceAttribute]:
    """Return the published attributes and those of the grant, which take precedence, also if there are too many."""
    # A device that is no longer published, because it was removed or renamed, has only those of its grant.
    device = inventory.device(grant.device)
    attributes = {} if device is None else device.attributes
    published = [(key, value) for key, value in attributes.items() if key not in grant.attributes]
    # Published attributes are in the ResourceSlices too, but those of the grant are only here.
    room = max(0, MAX_ATTRIBUTES - len(grant.attributes))
    return {**dict(published[:room]), **grant.attributes}


def _part(name: str) -> str:
    # The names may come from a CDI spec, where nothing has validated them: a slash would lead to another folder.
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise DranodeError(f'"{name}" cannot be part of the path of device metadata')
    return name
