#!/usr/bin/env bash
# Runs the kernels' tests under the address sanitizer: `kernels/sanitize.sh [TEST]`, ten minutes on two cores, fifteen where AMX is emulated.
#
# The sanitizer is not stable in the compiler, so unstable options are allowed for this run. Without optimisation each of the
# intrinsics would be a call: the tests would not end. Their machine code is another one then, and not looked at.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/sanitizer"
exec cargo test -p kernels --locked --lib --target "$target" --config 'profile.dev.package.kernels.opt-level=1' \
    --config 'profile.dev.package.kernels.overflow-checks=true' \
    --config 'profile.dev.package.numbers.overflow-checks=true' -- --skip machine_code "$@"
