#!/usr/bin/env bash
# Runs real, unmodified clients against the real executable with the demo model. A client whose packages conflict with
# others has a separate list of requirements.
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

shared=$(environment requirements.txt)

# The tests of pages need a browser. Without one they print that they are skipped.
if ! command -v chromium && ! command -v google-chrome; then
    { apt-get update && apt-get install --yes chromium; } || echo "no Chromium can be installed"
fi > "$shared/browser.log" 2>&1

# The reference values for lm-eval were computed in float32.
start_server --dtype float32
for client in *_client.py; do
    echo "$client"
    own=${client%_client.py}_requirements.txt
    python=$shared
    [ ! -f "$own" ] || python=$(environment "$own")
    "$python/bin/python" "$client" "$url"
done
