#!/usr/bin/env bash
# Runs real, unmodified clients against the real executable with the demo model. A client whose packages conflict with
# others has a separate list of requirements.
#
#   integration-tests/clients/run.sh [NAME ...]     NAME_client.py is a client; the default is all of them
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

shared=$(environment requirements.txt)

# The tests of pages need a browser. Without one they print that they are skipped.
if ! command -v chromium && ! command -v google-chrome; then
    { apt-get update && apt-get install --yes chromium; } || echo "no Chromium can be installed"
fi > "$shared/browser.log" 2>&1

[ $# != 0 ] || set -- $(printf '%s\n' *_client.py | sed 's/_client.py//')
declare -A environments
for name in "$@"; do
    environments[$name]=$shared
    [ ! -f "${name}_requirements.txt" ] || environments[$name]=$(environment "${name}_requirements.txt")
done
[ -z "${HILO_PREPARE:-}" ] || exit 0

# The reference values for lm-eval were computed in float32.
start_server --dtype float32
for name in "$@"; do
    client=${name}_client.py
    begin=$SECONDS
    "${environments[$name]}/bin/python" "$client" "$url"
    echo "$client: $((SECONDS - begin)) s"
done
