"""Tables and pages from a ledger of runs."""
