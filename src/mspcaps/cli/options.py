"""What the commands have in common."""

from typing import Annotated, TypeVar

import tyro

T = TypeVar("T")
Maybe = Annotated[T | None, tyro.conf.arg(help_behavior_hint="")]  # left out of the help: its "(default: None)"
