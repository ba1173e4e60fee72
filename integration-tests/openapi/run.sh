#!/usr/bin/env bash
# Sends a real server requests that its OpenAPI document allows, and some that it does not, and compares the responses
# with the document.
#
#   integration-tests/openapi/run.sh [SECONDS] [OPTION ...]     the default is 60 seconds
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

seconds=${1:-60}
python=$(environment requirements.txt)
[ -z "${HILO_PREPARE:-}" ] || exit 0
start_server --device mock --max-total-tokens 64
config=$PWD/schemathesis.toml
# schemathesis stores its state in the current folder.
cd "$(mktemp -d)"
"$python/bin/schemathesis" --config-file "$config" run "$url/api-doc/openapi.json" --max-time "$seconds" "${@:2}"
