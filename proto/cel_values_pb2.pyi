from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Quantity(_message.Message):
    __slots__ = ("canonical_text",)
    CANONICAL_TEXT_FIELD_NUMBER: _ClassVar[int]
    canonical_text: str
    def __init__(self, canonical_text: _Optional[str] = ...) -> None: ...

class Semver(_message.Message):
    __slots__ = ("canonical_text",)
    CANONICAL_TEXT_FIELD_NUMBER: _ClassVar[int]
    canonical_text: str
    def __init__(self, canonical_text: _Optional[str] = ...) -> None: ...

class IP(_message.Message):
    __slots__ = ("canonical_text",)
    CANONICAL_TEXT_FIELD_NUMBER: _ClassVar[int]
    canonical_text: str
    def __init__(self, canonical_text: _Optional[str] = ...) -> None: ...

class CIDR(_message.Message):
    __slots__ = ("canonical_text",)
    CANONICAL_TEXT_FIELD_NUMBER: _ClassVar[int]
    canonical_text: str
    def __init__(self, canonical_text: _Optional[str] = ...) -> None: ...
