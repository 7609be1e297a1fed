"""A page as a browser's parser sees it, for tests."""

from __future__ import annotations

from html.parser import HTMLParser

#: elements without an end
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """tags: (name, attributes) in order; text: what is shown; open_: what was never closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.open_: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open_.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open_ and self.open_[-1] == tag, f"</{tag}> closes {self.open_[-3:]}"
        self.open_.pop()
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, attribute: str) -> list[str]:
        return [attrs[attribute] for _, attrs in self.tags if attribute in attrs]

    @property
    def levels(self) -> list[int]:
        return [int(tag[1]) for tag, _ in self.tags if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit()]
