#!/usr/bin/env bash
# Makes dashboard.png, the figure in operations.md, of a run on this machine. It needs chromium.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
shows=
trap '[ -z "$shows" ] || kill "$shows"; rm -rf "$dir"' EXIT
go build -o "$dir/dsmd" ./cmd/dsmd
go run ./bench run ocean -n 4 --dsmd "$dir/dsmd" --dashboard-file "$dir/state.json"
"$dir/dsmd" dashboard "$dir/state.json" >"$dir/says" &
shows=$!
until url=$(grep -o 'http://[^ ]*' "$dir/says"); do sleep 0.1; done
chromium --headless --no-sandbox --hide-scrollbars --user-data-dir="$dir/chromium" --window-size=1280,1010 \
	--virtual-time-budget=9000 --screenshot="$dir/dashboard.png" "$url"
mv "$dir/dashboard.png" docs/figures/dashboard.png
