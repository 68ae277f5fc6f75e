"""What holds for every page."""

import re
from html.parser import HTMLParser


class Balanced(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_self_contained(html: str) -> None:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not re.search(r"https?:|<script|<link|@import|url\(", html), "no request leaves the page"
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in re.findall(r'(?:href|src)="([^"]*)', html))
    assert "nan" not in re.sub(r"base64,[^\"]*", "", html)
