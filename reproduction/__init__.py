"""The paper beside our runs: what it prints, what we measured, and the pages of docs/ that compare the two.

Not part of the package. `make regenerate` writes the pages from results/.
"""
