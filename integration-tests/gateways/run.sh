#!/usr/bin/env bash
# Puts gateways made by others, unmodified, in front of several servers with the demo model.
#
#   integration-tests/gateways/run.sh [NAME ...]     of routers, prefixes and picker; the default is all of them
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

[ $# != 0 ] || set -- routers prefixes picker
declare -A environments
for name in "$@"; do
    # The test of prefixes has no requirements of its own.
    environments[$name]=$(environment "${name/prefixes/picker}_requirements.txt")
done
[ -z "${HILO_PREPARE:-}" ] || exit 0

executable=$(executable)
for name in "$@"; do
    begin=$SECONDS
    "${environments[$name]}/bin/python" "${name}_test.py" "$executable"
    echo "${name}_test.py: $((SECONDS - begin)) s"
done
