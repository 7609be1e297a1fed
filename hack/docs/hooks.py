"""Makes the site from what GitHub shows: pages from the top of the repository, and links that leave docs/.

A link to a file that is no page (an example, a license) becomes a link to a copy of that file in the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parents[2]
#: page of the repository -> page of the site
TOP: Final = {
    "README.md": "index.md",
    "README.ko.md": "ko.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from the top, and the files that pages link to."""
    for source, page in TOP.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    known = {f.src_uri for f in files}
    for page in [*files.documentation_pages()]:
        for linked in _outside(page.src_uri, page.content_string):
            name = f"files/{linked.relative_to(ROOT).as_posix()}"
            if linked.is_file() and name not in known:
                known.add(name)
                files.append(File.generated(config, _as_file(name), content=linked.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as the site has them."""
    return _LINK.sub(lambda m: f"{m[1]}{_target(page.file.src_uri, m[2])}{m[3]}", markdown)


def _folder(page: str) -> Path:
    """Where the page's source lies in the repository."""
    return ROOT if page in TOP.values() else (ROOT / "docs" / page).parent


def _outside(page: str, text: str) -> list[Path]:
    """Files that the page links to, outside docs/ and not a page of the top."""
    found = []
    for _, link, _ in _LINK.findall(text):
        path = link.partition("#")[0]
        if not path or re.match(r"[a-z]+:", path):
            continue
        target = (_folder(page) / path).resolve()
        if target.is_relative_to(ROOT) and not target.is_relative_to(ROOT / "docs") and not _on_top(target):
            found.append(target)
    return found


def _target(page: str, link: str) -> str:
    path, mark, anchor = link.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return link
    target = (_folder(page) / path).resolve()
    if _on_top(target):
        return f"{TOP[target.name]}{mark}{anchor}"
    if target.is_relative_to(ROOT / "docs"):
        return f"{target.relative_to(ROOT / 'docs').as_posix()}{mark}{anchor}"
    if target.is_file():
        return _as_file(f"files/{target.relative_to(ROOT).as_posix()}") + f"{mark}{anchor}"
    return "index.md#more" if page != "index.md" else "#more"  # a folder of the repository: nothing to show


def _on_top(target: Path) -> bool:
    return target.parent == ROOT and target.name in TOP


def _as_file(name: str) -> str:
    """A Markdown file outside the pages is shown as text: its own links would lead nowhere."""
    return f"{name}.txt" if name.endswith(".md") else name
