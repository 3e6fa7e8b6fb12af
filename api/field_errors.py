"""The errors of a document's fields, and the rules that all documents of Kubernetes share."""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import force_setattr

from dranode.api.errors import one_sentence
from dranode.api.names import is_dns_label, is_dns_subdomain, is_label_name, is_label_value
from dranode.api.resource import ObjectMeta


class FieldError(msgspec.Struct, frozen=True):
    """An error of one field of a document.

    Attributes:
        path: the field, in JSON notation without the root (`spec.devices.requests[0].name`).
        message: the error as a clause, with the value.
    """

    path: str
    message: str

    def __post_init__(self) -> None:
        # Both contain text of the document, which may have line breaks or control characters of a terminal.
        force_setattr(self, "path", one_sentence(self.path))
        force_setattr(self, "message", one_sentence(self.message))


def metadata_errors(metadata: ObjectMeta) -> Iterator[FieldError]:
    """Yield every error of `metadata`."""
    if metadata.namespace and not is_dns_label(metadata.namespace):
        yield FieldError("metadata.namespace", f'"{metadata.namespace}" is not a DNS label')
    if metadata.name:
        if not is_dns_subdomain(metadata.name):
            yield FieldError("metadata.name", f'"{metadata.name}" is not a DNS subdomain')
    elif not metadata.generate_name:
        yield FieldError("metadata.name", "a name or generateName is required")
    # The API server appends characters, so the prefix may end with a hyphen.
    elif not is_dns_subdomain(f"{metadata.generate_name}x"):
        yield FieldError("metadata.generateName", f'"{metadata.generate_name}" is not the beginning of a DNS subdomain')
    yield from description_errors(metadata, "metadata")


def description_errors(metadata: ObjectMeta, path: str) -> Iterator[FieldError]:
    """Yield every error of labels and annotations, the only metadata that objects made from a template get."""
    for name, value in metadata.labels.items():
        if not is_label_name(name):
            yield FieldError(f"{path}.labels[{name}]", f'"{name}" is not a label name')
        elif not is_label_value(value):
            yield FieldError(f"{path}.labels[{name}]", f'"{value}" is not a label value')
    for name in metadata.annotations:
        if not is_label_name(name.lower()):
            yield FieldError(f"{path}.annotations[{name}]", f'"{name}" is not the name of an annotation')


def label_errors(name: str, path: str) -> Iterator[FieldError]:
    """Yield the error of a name that is not a DNS label."""
    if not is_dns_label(name):
        yield FieldError(path, f'"{name}" is not a DNS label of at most 63 characters')


def count_errors(items: Sequence[object], most: int, path: str) -> Iterator[FieldError]:
    """Yield the error of a list with more than `most` entries."""
    if len(items) > most:
        yield FieldError(path, f"{len(items)} entries are more than {most}")
