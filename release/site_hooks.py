"""What mkdocs checks of every page while it builds the site: a warning ends the build, since mkdocs.yml says `strict`.

The site's Markdown is not GitHub's. A fence that it does not open becomes text, the prose behind it becomes code, and
nothing reports that. So a page is read by GitHub's rules too, and the two are compared. mkdocs loads this file alone,
in an environment without this package.
"""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

# mkdocs counts the warnings of loggers below its own.
_LOG: Final = logging.getLogger("mkdocs.hooks.site")
_FENCE: Final = re.compile(r" *(?P<mark>`{3,}|~{3,})(?P<info>.*)")
_HEADING: Final = re.compile(r"#{1,6} +(?P<title>.+?)(?: +\{[^}]*\})?$")
_BLOCK: Final = re.compile(r"<pre\b.*?</pre>", re.DOTALL)
_CODE: Final = re.compile(r"<(pre|code)\b.*?</\1>", re.DOTALL)
_TAG: Final = re.compile(r"<[^>]+>")
_TARGET: Final = re.compile(r"\]\([^)]*\)")


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Warn of what the page lost on its way to HTML, and return the HTML as it is."""
    for problem in problems(page.markdown, content, list(_titles(page.toc))):
        _LOG.warning("%s: %s", page.file.src_uri, problem)
    return content


def problems(text: str, content: str, titles: Sequence[str]) -> Iterator[str]:
    """Yield what a page's HTML and table of contents lack of its Markdown, a sentence each."""
    blocks, headings = _read(text)
    shown = {_pressed(html.unescape(_TAG.sub("", block))) for block in _BLOCK.findall(content)}
    for fence, code in blocks:
        if _pressed(code) not in shown:
            yield f'"{fence}" opens no block of code on the site; write a block\'s name as ```yaml title="NAME"'
    if any(mark in _CODE.sub("", content) for mark in ("```", "~~~")):
        yield "the text shows a fence"
    # mkdocstrings adds a heading for each name where a page says `::: dranode.driver.Plugin`.
    if "\n::: " not in text and list(map(_plain, headings)) != list(map(_plain, titles)):
        yield f"its headings are {', '.join(headings)}, but the table of contents has {', '.join(titles)}"


def _read(text: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the fences of a page, each with its code, and the page's headings, by the rules of CommonMark."""
    blocks, headings = list[tuple[str, str]](), list[str]()
    mark = ""
    for line in text.splitlines():
        fence, heading = _FENCE.fullmatch(line), _HEADING.fullmatch(line)
        if mark and fence and fence["mark"].startswith(mark) and not fence["info"].strip():
            mark = ""
        elif mark:
            blocks[-1] = (blocks[-1][0], f"{blocks[-1][1]}\n{line}")
        elif fence and "`" not in fence["info"]:
            mark = fence["mark"]
            blocks.append((line.strip(), ""))
        elif heading:
            headings.append(heading["title"])
    return blocks, headings


def _titles(entries: Iterable[Any]) -> Iterator[str]:
    for entry in entries:
        yield entry.title
        yield from _titles(entry.children)


def _plain(title: str) -> str:
    """Return the letters of a heading, without what Markdown and HTML put around them."""
    return re.sub(r"\W|_", "", html.unescape(_TAG.sub("", _TARGET.sub("", title))))


def _pressed(code: str) -> str:
    return "".join(code.split())
