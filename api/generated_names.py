"""Names that the API server generates: a beginning that somebody wrote and five more characters.

Source: `SimpleNameGenerator` of k8s.io/apiserver. There the characters are random; here they come from a seed, so that
the same documents have the same names again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from dranode.api.headers import object_key
from dranode.api.source_document import SourceDocument

# What a name may consist of that spells no words (`rand.String`).
_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE: Final = 58
_RANDOM: Final = 5


def generated_name(base: str, seed: str, taken: Callable[[str], bool] = lambda _: False) -> str:
    """Return `base`, cut to 58 characters, with five more that depend on `seed`, so that the name is not `taken`."""
    attempt = 0
    while taken(name := base[:_LONGEST_BASE] + _characters(f"{seed} {attempt}")):
        attempt += 1
    return name


def template_hash(text: str) -> str:
    """Return up to ten characters that stand for a text, as a Deployment has them for its pod template."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(number))


def with_generated_names(
    documents: Iterable[SourceDocument], around: Iterable[SourceDocument] = ()
) -> Iterator[SourceDocument]:
    """Yield the documents; one that has a `generateName` and no name has the name that the API server would give it.

    No object has it already, neither among the documents nor `around` them.
    """
    documents = tuple(documents)
    known = {object_key(source.document) for source in (*documents, *around)}
    for number, source in enumerate(documents):
        base = (source.document.get("metadata") or {}).get("generateName")
        if not base or object_key(source.document) is not None:
            yield source
            continue

        def named(name: str, document: dict[str, Any] = source.document) -> dict[str, Any]:
            return {**document, "metadata": {**document["metadata"], "name": name}}

        def taken(name: str, named: Callable[[str], dict[str, Any]] = named) -> bool:
            return object_key(named(name)) in known

        document = named(generated_name(base, f"{source.kind} {base} {number}", taken))
        known.add(object_key(document))
        yield SourceDocument(source.file, source.index, document)


def _characters(seed: str) -> str:
    digest = hashlib.sha256(seed.encode(errors="surrogatepass")).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:_RANDOM])
