#!/usr/bin/env bash
# Checks the manifests of deploy/kubernetes: without a cluster, and with the real executable in place of each container.
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

python=$(environment requirements.txt)
executable=$(executable)
echo manifests_test.py
"$python/bin/python" manifests_test.py
echo pods_test.py
"$python/bin/python" pods_test.py "$executable"
