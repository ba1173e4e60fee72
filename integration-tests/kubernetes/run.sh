#!/usr/bin/env bash
# Checks the manifests of deploy/kubernetes: without a cluster, and with the real executable in place of each container.
#
#   integration-tests/kubernetes/run.sh [NAME ...]     of manifests and pods; the default is both
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

python=$(environment requirements.txt)
[ -z "${HILO_PREPARE:-}" ] || exit 0
executable=$(executable)
[ $# != 0 ] || set -- manifests pods
for name in "$@"; do
    begin=$SECONDS
    "$python/bin/python" "${name}_test.py" "$executable"
    echo "${name}_test.py: $((SECONDS - begin)) s"
done
