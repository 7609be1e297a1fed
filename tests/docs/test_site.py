"""The site of docs/ builds, strictly: every link and anchor leads somewhere, and nothing is fetched from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from reading import PAGES, ROOT


class _Page(HTMLParser):
    """What a page links to and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values["id"]} if values.get("id") else set()
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loads += [values[n] for n in ("src", "href") if tag in {"script", "img", "link"} and values.get(n)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_of_the_repository_is_a_page_of_the_site(site: Path) -> None:
    named = {"README.md": "index", "README.ko.md": "ko"}
    expected = {named.get(p.name, p.stem.lower()) for p in PAGES}
    assert expected <= {p.stem for p in site.glob("*.html")}


def test_every_link_leads_somewhere(site: Path) -> None:
    pages = {p: _Page(p.read_text()) for p in site.glob("*.html") if p.name != "404.html"}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link) or target == ".":
                continue
            file = path if not target else (path.parent / target).resolve()
            if not file.exists() or (anchor and file in pages and anchor not in pages[file].ids):
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    loads = {load for p in site.glob("*.html") for load in _Page(p.read_text()).loads}
    assert [load for load in loads if re.match(r"(https?:)?//", load)] == []
