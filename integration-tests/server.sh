# Functions for scripts that need a real server. To be sourced.
#
#   executable                 prints HILO_TEST_EXECUTABLE, or the path of a new build if it is not set
#   start_server [FLAG ...]    starts the executable on a free port with these flags, and sets `url`; the server ends
#                              with the script
#   environment FILE           makes a Python environment with the requirements in FILE and prints its folder
#
# With HILO_PREPARE=1 a script only downloads packages and makes environments, which its next run finds.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

executable() {
    # This selects the same features of dependencies as `cargo test --workspace`, so the two share all artifacts.
    [ -n "${HILO_TEST_EXECUTABLE:-}" ] ||
        cargo build --locked --workspace --bin text-generation-launcher --tests --manifest-path "$root/Cargo.toml" >&2 || return
    echo "${HILO_TEST_EXECUTABLE:-${CARGO_TARGET_DIR:-$root/target}/debug/text-generation-launcher}"
}

start_server() {
    local program; program=$(executable)
    local log; log=$(mktemp)
    "$program" --hostname 127.0.0.1 --port 0 --json-output "$@" > "$log" &
    local launcher=$!
    # shellcheck disable=SC2064 # the current values
    trap "kill $launcher 2> /dev/null || true; wait $launcher || true; rm -f '$log'" EXIT
    url=''
    for _ in $(seq 600); do
        url=$(sed -n 's/.*"message":"ready".*"url":"\([^"]*\)".*/\1/p; s/.*"url":"\([^"]*\)".*"message":"ready".*/\1/p' "$log" | head -n 1)
        [ -n "$url" ] && return
        kill -0 "$launcher" || break
        sleep 0.1
    done
    echo "the server did not get ready" >&2
    cat "$log" >&2
    exit 1
}

environment() {
    local folder; folder=$root/target/python/$(basename "$(dirname "$(realpath "$1")")")-$(basename "$1" .txt)
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check -r "$1"
    echo "$folder"
}
