#!/usr/bin/env bash
# Puts gateways made by others, unmodified, in front of several servers with the demo model.
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

executable=$(executable)
python=$(environment routers_requirements.txt)
echo routers_test.py
"$python/bin/python" routers_test.py "$executable"
python=$(environment picker_requirements.txt)
echo prefixes_test.py
"$python/bin/python" prefixes_test.py
echo picker_test.py
"$python/bin/python" picker_test.py "$executable"
