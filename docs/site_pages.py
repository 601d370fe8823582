"""The hook of `make site`: links of the pages into the repository lead to pages of the site.

Pages are written for readers of the repository. What they link to outside docs/ becomes a page too: the README is the
first page, other files are below `repository/`, source code among them. So the site needs no other host, and MkDocs
reports each link that leads nowhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
FIRST: Final = "README.md"
OTHERS: Final = "repository/"
_LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each file of the repository that a page links to, beginning with the README."""
    waiting = [FIRST, *(_repository_path(file.src_uri) for file in files.documentation_pages())]
    while waiting:
        path = waiting.pop()
        uri = _site_uri(path)
        if uri not in files.src_uris:
            files.append(File.generated(config, uri, content=_content(path)))
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            found = {_linked_file(path, link) for link in _LINK.findall(text)}
            waiting += sorted(link for link in found if link and _site_uri(link) not in files.src_uris)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page with the links of the site instead of those of the repository."""
    del config, files
    uri = page.file.src_uri
    path = _repository_path(uri)

    def link_of_site(found: re.Match[str]) -> str:
        linked = _linked_file(path, found[1])
        return found[1] if linked is None else os.path.relpath(_site_uri(linked), PurePosixPath(uri).parent)

    return _LINK.sub(link_of_site, markdown) if path.endswith(".md") else markdown


def _site_uri(path: str) -> str:
    """The page of a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == FIRST:
        return "index.md"
    return OTHERS + (path if path.endswith(".md") else f"{path}.md")


def _repository_path(uri: str) -> str:
    """The file of the repository that a page shows."""
    if uri == "index.md":
        return FIRST
    path = uri.removeprefix(OTHERS)
    if path == uri:
        return f"docs/{uri}"
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def _linked_file(path: str, link: str) -> str | None:
    """The file that a link in the file `path` leads to, from the root of the repository; None if there is none."""
    target = Path(os.path.normpath(ROOT / PurePosixPath(path).parent / link))
    if target.is_dir():
        target /= "README.md"
    return target.relative_to(ROOT).as_posix() if target.is_file() and target.is_relative_to(ROOT) else None


def _content(path: str) -> str:
    """A page as it is; any other file as a block of code that is not searched."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = PurePosixPath(path).suffix.removeprefix(".")
    return f"---\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n``````{language}\n{text}``````\n"
