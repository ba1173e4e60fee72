#!/usr/bin/env bash
# Runs the kernels' tests under the address sanitizer: `kernels/sanitize.sh [TEST]`. It takes ten minutes on two cores,
# and fifteen where AMX is emulated.
#
# The sanitizer is an unstable feature of the compiler, so this run allows unstable options. The tests are optimised:
# without optimisation each intrinsic is a call, and the tests would take too long. `machine_code` is skipped, because
# the sanitizer changes the machine code that it checks.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/sanitizer"
exec cargo test -p kernels --locked --lib --target "$target" --config 'profile.dev.package.kernels.opt-level=1' \
    --config 'profile.dev.package.kernels.overflow-checks=true' \
    --config 'profile.dev.package.numbers.overflow-checks=true' -- --skip machine_code "$@"
