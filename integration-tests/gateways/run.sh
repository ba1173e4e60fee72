#!/usr/bin/env bash
# Puts gateways made by others, unmodified, in front of several servers with the demo model.
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

executable=$(executable)
for check in *_test.py; do
    echo "$check"
    python=$(environment "${check%_test.py}_requirements.txt")
    "$python/bin/python" "$check" "$executable"
done
