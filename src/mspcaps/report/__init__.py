"""Any ledger as tables and curves."""

from mspcaps.report.write import write_report

__all__ = ["write_report"]
