"""Decodes and encodes Kubernetes documents, converts beta versions to v1, and compares API values.

`resource.k8s.io/v1beta1` has the fields of a request beside its name, and those of a device under `basic`. v1beta2 has
the same form as v1. The rest of the program knows only v1.
"""

import contextlib
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from dranode.api.cpuset import CPUSet
from dranode.api.errors import DocumentError
from dranode.api.quantity import Quantity
from dranode.api.resource import Device, DeviceTaint, ExactDeviceRequest
from dranode.api.unknown_fields import field_names, words_at

T = TypeVar("T")

API_GROUP: Final = "resource.k8s.io"
API_VERSION: Final = f"{API_GROUP}/v1"

# The fields of an exact request, which v1beta1 has beside the request's name.
_FLAT_REQUEST: Final = ExactDeviceRequest.__struct_encode_fields__
_SLICE_COUNT: Final = "resourceSliceCount"
_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
# The kinds with other versions (k8s.io/api 0.36.0 to 0.38.0-alpha.2, testdata/HEAD; 1.35 has no pool status).
_SERVED: Final = {"DeviceTaintRule": ("v1", "v1beta2", "v1alpha3"), "ResourcePoolStatusRequest": ("v1alpha3",)}
# The types of msgspec and of Python, for people.
_WORDS: Final = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    **dict.fromkeys(("array", "list"), "a list"),
    **dict.fromkeys(("object", "dict"), "an object"),
    **dict.fromkeys(("null", "NoneType"), "nothing"),
}
_compiled: Final[set[type]] = set()
_compiling: Final = threading.Lock()
# Parts of msgspec's messages: its errors have no attributes that say what is wrong and where.
_NULL: Final = "got `null`"
_UNKNOWN: Final = "contains unknown field "
_NO_WORD: Final = "Invalid enum value "
_EXPECTED: Final = re.compile(r"expected ([\w| ]+), got (\w+)")
_LENGTH: Final = re.compile(r"expected array of length ([<>])= (\d+)")
_ANY_KEY: Final = "{}"
_STEPS: Final = re.compile(r"\.?([^.\[\]]+)|\[([^\]]*)\]")
_AT: Final = r" - at `(?:key in )?\$?\.?(?P<path>[^`]*)`$"


def without_tuples(document: Any) -> Any:
    """Return a plain document with lists instead of tuples, which PyYAML's safe dumpers refuse."""
    if isinstance(document, dict):
        return {key: without_tuples(inner) for key, inner in document.items()}
    return [without_tuples(inner) for inner in document] if isinstance(document, (list, tuple)) else document


def kind_of(value: Any) -> str:
    """Return what a plain value is, in words: `a list`, `a whole number`."""
    name = type(value).__name__
    return _WORDS.get(name, name)


def _decode_hook(kind: type, raw: Any) -> Any:
    if kind is Quantity:
        if raw is None:  # as in Go; `cpu:` without a value is null
            return Quantity("0")
        # A bool is an int in Python.
        if isinstance(raw, (str, int)) and not isinstance(raw, bool):
            return Quantity(raw)
        # YAML and JSON may have 1.5 without quotes. repr() gives the shortest text for it.
        if isinstance(raw, float):
            return Quantity(repr(raw))
        raise ValueError(f"{raw!r} is not a quantity such as 4, 500m or 16Gi")
    if kind is CPUSet:
        if isinstance(raw, str):
            return CPUSet.parse(raw)
        raise ValueError(f"{raw!r} is not a cpu-list such as 0-3,8")
    raise NotImplementedError(kind)


def _encode_hook(value: Any) -> Any:
    if isinstance(value, Quantity):
        return value.text
    if isinstance(value, CPUSet):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


def _compile(kind: type) -> None:
    """Compile msgspec's decoder of a type, in one thread at a time.

    msgspec compiles a type when it first decodes one, and crashes the process if two threads do so at once.
    """
    # Read without the lock: a type is added only after it was compiled.
    if kind not in _compiled:
        with _compiling:
            msgspec.json.Decoder(kind)
            _compiled.add(kind)


def decode(kind: type[T], document: Any, path: str = "") -> T:
    """Decode a plain document to a value of `kind`; `path` is that of the document, if it is a part of another one.

    Raises:
        DocumentError: the document does not fit; the error has the path of the wrong field.
    """
    _compile(kind)
    try:
        return _convert(kind, document, path)
    except DocumentError as error:
        # The API server prints a required list that is empty as null, such as `requests: null` of a claim.
        if _NULL in str(error.__cause__):
            return _convert(kind, without_nulls(document), path)
        raise


def decode_json(kind: type[T], text: bytes | str) -> T:
    """Decode JSON text to a value of `kind`.

    Raises:
        DocumentError: the text is not JSON, or the document does not fit.
    """
    _compile(kind)
    try:
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.json.decode(text, type=kind, dec_hook=_decode_hook)
        # Only few documents have nulls or errors, so only they are decoded in two steps. The text after the first error
        # was not read yet and may not be JSON.
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise _error(kind, error) from error
    except UnicodeDecodeError as error:
        raise DocumentError(f"a string in it is not UTF-8: {error.reason} at its byte {error.start}") from error
    except RecursionError as error:
        raise DocumentError("it is nested too deeply") from error
    return decode(kind, document)


def _convert(kind: type[T], document: Any, path: str = "") -> T:
    try:
        return msgspec.convert(document, kind, dec_hook=_decode_hook)
    except msgspec.ValidationError as error:
        problem = _error(kind, error)
        where = _with_keys(kind, document, problem.path)
        raise DocumentError(problem.problem, where).below(path) from error


def _with_keys(kind: type[Any], document: Any, path: str) -> str:
    """Return the path of an error with the keys of mappings, for which msgspec has `{}`: the first that fails alone."""
    raw = path
    while _ANY_KEY in path:
        head, _, tail = path.partition(_ANY_KEY)
        steps, mapping = _walk(document, head)
        alone = {key: _with(document, steps, {key: value}) for key, value in mapping.items()}
        key = next((key for key, reduced in alone.items() if _fails_at(kind, reduced, raw)), None)
        if key is None:
            break
        path = f"{head}[{key}]{tail}"
    return path


def _walk(document: Any, path: str) -> tuple[list[str | int], Any]:
    """Return the steps of a path, and the value there."""
    steps: list[str | int] = []
    for name, item in _STEPS.findall(path):
        steps.append(int(item) if isinstance(document, list) else name or item)
        document = document[steps[-1]]
    return steps, document


def _with(document: Any, steps: Sequence[str | int], value: Any) -> Any:
    """Return a copy of the document with another value after these steps."""
    if not steps:
        return value
    copied: Any = list(document) if isinstance(document, list) else dict(document)
    copied[steps[0]] = _with(document[steps[0]], steps[1:], value)
    return copied


def _fails_at(kind: type[Any], document: Any, path: str) -> bool:
    try:
        msgspec.convert(document, kind, dec_hook=_decode_hook)
    except msgspec.ValidationError as error:
        return _error(kind, error).path == path
    return False


def without_nulls(value: Any) -> Any:
    """Return a plain document without members that are null, which Go writes for absent ones."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def encode(value: Any) -> Any:
    """Return the plain document of a value: dictionaries, sequences, strings, numbers."""
    return msgspec.to_builtins(value, enc_hook=_encode_hook)


def encode_json(value: Any) -> bytes:
    """Return the compact JSON text of a value."""
    return msgspec.json.encode(value, enc_hook=_encode_hook)


def _error(kind: Any, error: msgspec.DecodeError) -> DocumentError:
    """Convert an error of msgspec: the message begins with the path, and lists the known fields or values."""
    text = str(error)
    match = re.search(_AT, text)
    path = match["path"] if match else ""
    sentence = _plain(text[: match.start()] if match else text)
    # msgspec does not say which fields or values are allowed.
    if sentence.startswith(_UNKNOWN):
        names = ", ".join(field_names(kind, path))
        sentence += f"; there are {names}" if names else ""
    elif sentence.startswith(_NO_WORD) and (words := words_at(kind, path)):
        sentence = f"{sentence.removeprefix(_NO_WORD)} is not {' or '.join(filter(None, words))}"
    return DocumentError(sentence, path.replace("[...]", _ANY_KEY))


def _plain(text: str) -> str:
    sentence = text.replace("`", "").replace("Expected", "expected", 1).replace("Object ", "", 1)
    if (length := _LENGTH.fullmatch(sentence)) is not None:
        bound = "needs at least" if length[1] == ">" else "may have at most"
        return f"the list {bound} {length[2]} {'entry' if length[2] == '1' else 'entries'}"
    types = _EXPECTED.fullmatch(sentence)
    if types is None:
        return sentence
    expected = (_WORDS.get(name, name) for name in types[1].split(" | ") if name != "null")
    return f"{' or '.join(expected)} is expected, not {_WORDS.get(types[2], types[2])}"


def to_v1(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a claim, template, class or slice in the form of `resource.k8s.io/v1`.

    A document of another group is returned unchanged. A pool without a number of slices gets 0, as in Go.

    Raises:
        DocumentError: the API version does not exist, or a v1beta1 document has the form of another version.
    """
    version = str(document.get("apiVersion", ""))
    group, _, short = version.rpartition("/")
    if group != API_GROUP:
        return dict(document)
    served = _SERVED.get(str(document.get("kind")), _VERSIONS)
    if short not in served:
        known = " and ".join(filter(None, (", ".join(served[:-1]), served[-1])))
        raise DocumentError(f'{API_GROUP} has {known}, not "{short}"', "apiVersion")
    converted = dict(document, apiVersion=API_VERSION)
    # v1beta2 has the form of v1.
    if short == "v1beta1":
        spec = document.get("spec")
        if isinstance(spec, Mapping):
            converted["spec"] = _SPEC_FROM_V1BETA1.get(str(document.get("kind")), dict)(spec)
    return _with_slice_count(converted) if document.get("kind") == "ResourceSlice" else converted


def _with_slice_count(document: dict[str, Any]) -> dict[str, Any]:
    spec = document.get("spec")
    pool = spec.get("pool") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(pool, Mapping) or pool.get(_SLICE_COUNT) is not None:
        return document
    return {**document, "spec": {**spec, "pool": {**pool, _SLICE_COUNT: 0}}}


def _claim_spec(spec: Mapping[str, Any], path: str = "spec") -> dict[str, Any]:
    devices = spec.get("devices")
    if not isinstance(devices, Mapping) or not isinstance(devices.get("requests"), list):
        return dict(spec)
    requests = [
        _request(request, f"{path}.devices.requests[{index}]") for index, request in enumerate(devices["requests"])
    ]
    return dict(spec, devices=dict(devices, requests=requests))


def _request(request: Any, path: str) -> Any:
    if not isinstance(request, Mapping):
        return request
    if "exactly" in request:
        raise DocumentError(
            f"v1beta1 has no exactly: write its fields beside the name, or apiVersion: {API_VERSION}", path
        )
    flat = {key: request[key] for key in _FLAT_REQUEST if key in request}
    rest = {key: value for key, value in request.items() if key not in _FLAT_REQUEST}
    if flat and "firstAvailable" in request:
        # The error should be about having both forms, and not about a missing class.
        flat = {"deviceClassName": "", **flat}
    return {**rest, "exactly": flat} if flat else rest


def _template_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    inner = spec.get("spec")
    return dict(spec, spec=_claim_spec(inner, "spec.spec")) if isinstance(inner, Mapping) else dict(spec)


def _slice_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    devices = spec.get("devices")
    if not isinstance(devices, list):
        return dict(spec)
    return dict(spec, devices=[_device(device) for device in devices])


def _device(device: Any) -> Any:
    if not isinstance(device, Mapping) or not isinstance(device.get("basic"), Mapping):
        return device
    return {"name": device.get("name"), **device["basic"]}


_SPEC_FROM_V1BETA1: Final = {
    "ResourceClaim": _claim_spec,
    "ResourceClaimTemplate": _template_spec,
    "ResourceSlice": _slice_spec,
}


# Equality of API values follows Kubernetes (apimachinery `equality.Semantic`): empty and absent lists and maps are
# equal, and quantities are equal by value. A desired taint without `timeAdded` matches any time; otherwise the times
# match within a second, because the server keeps whole seconds.

_TOLERANCE: Final = timedelta(seconds=1)


def same(first: Any, second: Any) -> bool:
    """Return whether two API values are equal."""
    return bool(first == second) or _comparable(first) == _comparable(second)


def same_devices(desired: Sequence[Device], published: Sequence[Device]) -> bool:
    """Return whether the published devices are the desired ones, in the same order."""
    return len(desired) == len(published) and all(map(_same_device, desired, published))


def parse_time(text: str) -> datetime:
    """Parse a time of Kubernetes (RFC 3339).

    Raises:
        ValueError: the text is not such a time.
    """
    return datetime.fromisoformat(text)


def is_time(text: str) -> bool:
    """Return whether the text is a time of Kubernetes; RFC 3339 requires an offset from UTC."""
    try:
        return parse_time(text).tzinfo is not None
    except ValueError:
        return False


def _same_device(desired: Device, published: Device) -> bool:
    # Usually nothing has changed, and plain equality is the fastest comparison.
    if desired == published:
        return True
    return same(_timeless(desired), _timeless(published)) and all(map(_same_time, desired.taints, published.taints))


def _timeless(device: Device) -> Device:
    taints = tuple(msgspec.structs.replace(taint, time_added=None) for taint in device.taints)
    return msgspec.structs.replace(device, taints=taints)


def _same_time(desired: DeviceTaint, published: DeviceTaint) -> bool:
    if desired.time_added is None:
        return True
    if published.time_added is None:
        return False
    return abs(parse_time(desired.time_added) - parse_time(published.time_added)) <= _TOLERANCE


def _comparable(value: Any) -> Any:
    # An empty structure is not the same as an absent one: `requestPolicy: {}` is a policy.
    if isinstance(value, msgspec.Struct):
        # Fields that are empty or absent are dropped, so that both compare equal.
        fields = {name: _comparable(getattr(value, name)) for name in value.__struct_fields__}
        return {name: field for name, field in fields.items() if field is not None}
    if isinstance(value, Quantity):
        return value.value
    if isinstance(value, Mapping):
        return {key: _comparable(item) for key, item in value.items()} or None
    if isinstance(value, (tuple, list)):
        return [_comparable(item) for item in value] or None
    return value


def basic_device(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device of a ResourceSlice in its form of v1beta1."""
    return {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}
