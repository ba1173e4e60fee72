#!/usr/bin/env bash
# Tests of KV cache events with other people's programs: libzmq and msgspec as in vLLM, and the subscriber, index and
# router of NVIDIA Dynamo. Each test starts the real executable with the demo model.
#
#   integration-tests/kv_events/run.sh [NAME ...]     of dynamo and zmq; the default is both
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

export DYN_LOG=off
python=$(environment requirements.txt)
[ -z "${HILO_PREPARE:-}" ] || exit 0
executable=$(executable)
[ $# != 0 ] || set -- dynamo zmq
for name in "$@"; do
    begin=$SECONDS
    "$python/bin/python" "${name}_test.py" "$executable"
    echo "${name}_test.py: $((SECONDS - begin)) s"
done
