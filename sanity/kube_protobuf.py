"""Decodes the Kubernetes protobuf that drivers send: ResourceSlices and DeleteOptions (`proto/kube_resource.proto`)."""

from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from dranode.proto import kube_resource_pb2 as kube
from dranode.sanity.kinds import KubeDocument
from dranode.sanity.objects import StatusError

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_PREFIX: Final = b"k8s\x00"


def decode_body(raw: bytes) -> KubeDocument:
    """Decode a body; returns the document.

    Raises:
        StatusError: the body is damaged (400), or of a kind that is not supported here (415).
    """
    if not raw.startswith(_PREFIX):
        raise StatusError(400, "BadRequest", "the body is not Kubernetes' protobuf")
    try:
        envelope = kube.Unknown.FromString(raw[len(_PREFIX) :])
        of = envelope.typeMeta
        message: Message
        match of.kind:
            case "ResourceSlice" if of.apiVersion.endswith("/v1beta1"):
                message = kube.ResourceSliceV1Beta1.FromString(envelope.raw)
            case "ResourceSlice":
                message = kube.ResourceSlice.FromString(envelope.raw)
            case "DeleteOptions":
                message = kube.DeleteOptions.FromString(envelope.raw)
            case other:
                raise StatusError(415, "UnsupportedMediaType", f'this server does not read "{other}" in protobuf')
        return {"apiVersion": of.apiVersion, "kind": of.kind, **_document(message)}
    except (DecodeError, ValueError) as error:
        raise StatusError(400, "BadRequest", f"the body is damaged: {error}") from error


def _document(message: Message) -> KubeDocument:
    document: KubeDocument = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            document[field.name] = {key: _plain(item) for key, item in value.items()}
        elif field.is_repeated:
            document[field.name] = [_plain(item) for item in value]
        else:
            plain = _plain(value)
            # Go also writes empty strings, times that are zero and, in v1beta1, allNodes: false. In JSON only an
            # attribute has an empty string.
            old_slice = isinstance(message, kube.ResourceSliceSpecV1Beta1)
            unset = plain == "" or (old_slice and field.name == "allNodes" and not plain)
            if not unset or isinstance(message, kube.DeviceAttribute):
                document[field.name] = plain
    return document


def _plain(value: Any) -> Any:
    if isinstance(value, kube.Quantity):
        return value.string or "0"
    if isinstance(value, kube.Time):
        moment = datetime.fromtimestamp(value.seconds, UTC) if value.seconds else None
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else ""
    return _document(value) if isinstance(value, Message) else value
