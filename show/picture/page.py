"""A fleet as one HTML page that needs nothing else: no server, no other file, no request to anywhere.

Names are hostile input. They reach the page as JSON in a script that is none, without a character that could end it,
and the page's script writes them as text alone. The page's policy lets that one script run, known by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files

from dranode.show.picture.compact import compact
from dranode.show.picture.fleet import FleetPicture


def fleet_page(picture: FleetPicture) -> str:
    """Return the page as the text of an HTML file."""
    style, script, page = (_asset(name) for name in ("page.css", "page.js", "page.html"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _filled(
        page,
        {
            "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
            # A file's name may have bytes that are no UTF-8.
            "TITLE": escape(picture.title).encode(errors="replace").decode(),
            "STYLE": style,
            "DATA": embedded(compact(picture)),
            "SCRIPT": script,
        },
    )


def _filled(page: str, parts: Mapping[str, str]) -> str:
    """Put each part where its name stands between two `@@`; what is put in is not looked at again."""
    pieces = page.split("@@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def embedded(document: object) -> str:
    """Return a document as JSON that is safe inside of a script element: ASCII, without `<`, `>` and `&`."""
    text = json.dumps(document, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
