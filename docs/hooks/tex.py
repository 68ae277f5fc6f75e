"""$inline$ and $$displayed$$ TeX as MathML, written into the page when the site is built: no script, no network.

Browsers draw MathML themselves. TeX that the converter does not understand ends the build.
"""

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.exceptions import PluginError


def on_config(config: Any) -> Any:
    """Called by mkdocs once."""
    config.markdown_extensions.append(Tex())
    return config


class Tex(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        # below `code` (190), in which a dollar is a dollar, and above `escape` (180), which would eat backslashes
        md.inlinePatterns.register(Formula(r"\$\$(.+?)\$\$", md, display="block"), "tex-block", 189)
        md.inlinePatterns.register(Formula(r"\$(?! )([^$]+?)(?<! )\$", md, display="inline"), "tex", 188)


class Formula(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, display: str) -> None:
        super().__init__(pattern, md)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]
        assert self.md is not None
        return self.md.htmlStash.store(mathml(m[1].strip(), self.display)), m.start(0), m.end(0)


def mathml(tex: str, display: str) -> str:
    try:
        found = convert(tex, display=display)
    except Exception as error:  # the library raises many kinds
        raise PluginError(f"this is not TeX that can be shown: {tex} ({type(error).__name__})") from error
    if unknown := re.search(r"\\\w+", found):
        raise PluginError(f"{unknown[0]} is not known, in {tex}")
    found = re.sub(r"<mi>(?:exp|log)</mi>", r'\g<0><mspace width="thinmathspace" />', found)
    found = found.replace('"thinmathspace"', '".17em"')  # browsers know only lengths
    found = re.sub(r"<mo(?=[^>]*>&#x0007C;<)", '<mo lspace="0" rspace="0"', found)  # |s| is no operation on two
    # a norm would else grow to the height of a sum beside it
    return found.replace("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')
