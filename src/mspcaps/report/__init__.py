"""Pages and tables for people, every figure in them measured."""

from mspcaps.report.page import Page, write_page
from mspcaps.report.quickstart import quickstart
from mspcaps.report.write import write_report

__all__ = ["Page", "quickstart", "write_page", "write_report"]
