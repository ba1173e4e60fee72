#!/usr/bin/env bash
# Tests of KV cache events with other people's programs: libzmq and msgspec as in vLLM, and the subscriber, index and
# router of NVIDIA Dynamo. Each test starts the real executable with the demo model.
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

export DYN_LOG=off
python=$(environment requirements.txt)
executable=$(executable)
for test in *_test.py; do
    echo "$test"
    "$python/bin/python" "$test" "$executable"
done
