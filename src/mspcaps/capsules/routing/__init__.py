"""One file per routing algorithm; `mspcaps.capsules` has their names."""
