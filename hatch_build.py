"""Run by hatchling when the wheel is built: its description is README, whose images and links are relative.

Once `project.urls` in pyproject.toml has `Source`, they become addresses there; package indexes show no others.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

TARGET = r"(\[[^]]*\]\()(?!\w+:|#)"  # of an image or a link, unless it has an address or stays on the page


class Description(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if source := metadata["urls"].get("Source"):
            text = re.sub("!" + TARGET, rf"!\g<1>{source}/raw/HEAD/", text)
            text = re.sub("(?<!!)" + TARGET, rf"\g<1>{source}/blob/HEAD/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
