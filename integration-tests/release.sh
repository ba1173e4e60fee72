#!/usr/bin/env bash
# Prints the path of an executable of the release build: the one of the image, if `docker.sh` has built it, else a new
# build.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
executable=$target/image/text-generation-launcher
is_old() { find . -path ./target -prune -o -name '*.rs' -newer "$executable" -print -quit | grep --quiet .; }
if ! "$executable" --version > /dev/null 2>&1 || is_old; then
    cargo build --release --locked >&2
    executable=$target/release/text-generation-launcher
fi
realpath "$executable"
