#!/usr/bin/env bash
# Runs real clients, unmodified, against the real executable with the demo model.
set -euo pipefail
cd "$(dirname "$0")"

environment=../../target/clients
python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt

# The playground needs a browser; without one its check says that it is skipped.
if ! command -v chromium && ! command -v google-chrome; then
    { apt-get update && apt-get install --yes chromium; } || echo "no Chromium can be installed"
fi > "$environment/browser.log" 2>&1

cargo build --locked --package launcher --manifest-path ../../Cargo.toml
log=$(mktemp)
"${CARGO_TARGET_DIR:-../../target}/debug/text-generation-launcher" --hostname 127.0.0.1 --port 0 --json-output > "$log" &
launcher=$!
trap 'kill "$launcher" 2> /dev/null || true; wait "$launcher" || true; rm -f "$log"' EXIT

for _ in $(seq 600); do
    url=$(sed -n 's/.*"message":"ready".*"url":"\([^"]*\)".*/\1/p; s/.*"url":"\([^"]*\)".*"message":"ready".*/\1/p' "$log" | head -n 1)
    [ -n "$url" ] && break
    kill -0 "$launcher" || { cat "$log"; exit 1; }
    sleep 0.1
done
[ -n "$url" ] || { echo "the server did not get ready"; cat "$log"; exit 1; }

for client in *_client.py; do
    echo "$client"
    "$environment/bin/python" "$client" "$url"
done
