"""Tables and curves of any ledger, and a page about every run and every evaluation."""

from mspcaps.report.evaluation import Page, write_page
from mspcaps.report.run import evaluation_page, run_page
from mspcaps.report.write import write_report

__all__ = ["Page", "evaluation_page", "run_page", "write_page", "write_report"]
