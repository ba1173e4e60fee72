#!/usr/bin/env bash
# Runs real clients, unmodified, against the real executable with the demo model. A client whose packages get on with no
# others has a list of its own beside it.
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

shared=$(environment requirements.txt)

# Pages need a browser; without one their checks say that they are skipped.
if ! command -v chromium && ! command -v google-chrome; then
    { apt-get update && apt-get install --yes chromium; } || echo "no Chromium can be installed"
fi > "$shared/browser.log" 2>&1

# lm-eval's numbers are those of floats.
start_server --dtype float32
for client in *_client.py; do
    echo "$client"
    own=${client%_client.py}_requirements.txt
    python=$shared
    [ ! -f "$own" ] || python=$(environment "$own")
    "$python/bin/python" "$client" "$url"
done
