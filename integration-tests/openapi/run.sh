#!/usr/bin/env bash
# Asks a real server whatever its OpenAPI document allows, and what it does not allow, and compares answers with the document.
#
#   integration-tests/openapi/run.sh [SECONDS] [OPTION ...]     one minute, if nothing else is said
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

seconds=${1:-60}
python=$(environment requirements.txt)
start_server --device mock --max-total-tokens 64
config=$PWD/schemathesis.toml
# It writes what it remembers into the folder where it runs.
cd "$(mktemp -d)"
"$python/bin/schemathesis" --config-file "$config" run "$url/api-doc/openapi.json" --max-time "$seconds" "${@:2}"
