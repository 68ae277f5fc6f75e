#!/usr/bin/env bash
# Takes docs/explain.png from a page of `mspcaps explain`; needs chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
page=${1:?usage: docs/take_explain_screenshots.sh PAGE.html}
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
shoot() {
  chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --hide-scrollbars --user-data-dir="$profile" \
    --window-size="$1" --screenshot="docs/$2" "file://$(realpath "$page")"
}
shoot 1200,2880 explain.png
