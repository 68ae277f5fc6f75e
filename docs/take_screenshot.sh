#!/usr/bin/env bash
# Takes docs/quickstart.png from the page of the last `mspcaps quickstart`; needs chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
page=${1:-runs/quickstart/index.html}
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
  --disable-component-update --disable-sync --hide-scrollbars --user-data-dir="$profile" \
  --window-size=1200,1710 --screenshot=docs/quickstart.png "file://$(realpath "$page")"
