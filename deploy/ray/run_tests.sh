#!/usr/bin/env bash
# Checks the package `hilo_ray` against the real executable with the demo model: types, style, and the fast tests with
# one local Ray Serve instance. With `--cluster` also a Ray cluster of three nodes on this machine, under load.
set -euo pipefail
cd "$(dirname "$0")"
source ../../integration-tests/server.sh

layers=(fast)
case ${1:-} in
    '') ;;
    --cluster) layers+=(cluster) ;;
    *)
        echo "$1 is not an option of run_tests.sh: it takes --cluster or nothing" >&2
        exit 2
        ;;
esac

if [ -z "${HILO_TEST_EXECUTABLE:-}" ]; then
    cargo build --locked --package launcher --manifest-path "$root/Cargo.toml"
    export HILO_TEST_EXECUTABLE=${CARGO_TARGET_DIR:-$root/target}/debug/text-generation-launcher
fi
python=$(environment requirements.txt)
# Workers of Ray import the package from here. Nothing is reported to Ray's makers.
export PYTHONPATH=$PWD RAY_USAGE_STATS_ENABLED=0 PYTHONDONTWRITEBYTECODE=1

"$python/bin/ruff" check --no-cache .
"$python/bin/ruff" format --no-cache --check .
"$python/bin/mypy" --cache-dir "$python/mypy"
# Each layer has its own process, because a process can be connected to one Ray instance only.
for layer in "${layers[@]}"; do
    begin=$SECONDS
    marker=cluster
    [ "$layer" = cluster ] || marker="not cluster"
    "$python/bin/pytest" -p no:cacheprovider --show-capture=no -m "$marker"
    echo "$layer tests: $((SECONDS - begin)) s"
done
