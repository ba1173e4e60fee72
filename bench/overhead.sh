#!/usr/bin/env bash
# Measures what the server costs without a model, see "What the server itself costs" in README.md.
#
#   bench/overhead.sh streams|step|first-token|metrics|memory|many|idle|all
#
# Needs release builds of launcher and bench, jq, curl, and two CPUs: one for the router, one for everything else.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=${CARGO_TARGET_DIR:-target}/release
router_cpu=${ROUTER_CPU:-0}
other_cpus=${OTHER_CPUS:-1}
directory=$(mktemp -d)
launcher='' url='' router='' shard=''
trap 'stop; rm -rf "$directory"' EXIT

# Starts a server with these flags and sets `url`, `router` and `shard`. The router has one CPU to itself; all other
# processes share another CPU.
start() {
    stop
    taskset -c "$other_cpus" "$bin/text-generation-launcher" --hostname 127.0.0.1 --port 0 --json-output "$@" \
        >"$directory/log" 2>&1 &
    launcher=$!
    for _ in $(seq 600); do
        url=$(grep '"ready"' "$directory/log" | grep -o 'http://[0-9.:]*' || true)
        [ -z "$url" ] || break
        kill -0 "$launcher" || { cat "$directory/log"; exit 1; }
        sleep 0.1
    done
    router=$(child router) shard=$(child shard)
    taskset -acp "$router_cpu" "$router" >"$directory/taskset"
}

stop() {
    [ -z "$launcher" ] || { kill "$launcher"; wait "$launcher" || true; } 2>"$directory/stop"
    launcher=''
}

child() { pgrep -P "$launcher" -f "text-generation-launcher $1"; }

load() { taskset -c "$other_cpus" "$bin/text-generation-bench" --url "$url" --json "$@" >"$directory/report"; }
report() { jq -r "$1" "$directory/report"; }

# Prints the value of a metric of /metrics. The name may include labels.
metric() { curl -s "$url/metrics" | awk -v name="$1" '$1 == name { print $2 }'; }

# Prints the CPU time that the router has used so far, in nanoseconds.
processor_ns() { cat "/proc/$router/task"/*/schedstat | awk '{ sum += $1 } END { printf "%.0f", sum }'; }
resident_kib() { awk '/^VmRSS/ { print $2 }' "/proc/$router/status"; }

calculate() { awk "BEGIN { printf \"%.${2:-1}f\", $1 }"; }
row() { printf '%-60s%s\n' "$1" "$2"; }

# Prints the median of a histogram in microseconds, interpolated linearly between the bounds of its bucket.
median_us() {
    curl -s "$url/metrics" | awk -v name="$1_bucket" '
        index($1, name) == 1 && match($1, /le="[^"]*"/) {
            bound = substr($1, RSTART + 4, RLENGTH - 5)
            bounds[++n] = bound == "+Inf" ? bounds[n - 1] : bound; counts[n] = $2
        }
        END {
            for (i = 1; i <= n && counts[i] * 2 < counts[n]; i++) {}
            low = counts[i - 1] + 0
            printf "%.1f", 1e6 * (bounds[i - 1] + (bounds[i] - bounds[i - 1]) * (counts[n] / 2 - low) / (counts[i] - low))
        }'
}

streams() {
    start --device mock --max-concurrent-requests 512 --max-batch-size 256
    load --concurrency 256 --num-requests 256 --prompt-tokens 16 --output-tokens 20
    local before; before=$(processor_ns)
    load --seed 1 --concurrency 256 --num-requests 1024 --prompt-tokens 16 --output-tokens 480
    local used=$(($(processor_ns) - before)) tokens elapsed
    tokens=$(report .num_output_tokens) elapsed=$(report .elapsed_s)
    row "256 streams: requests that succeeded" "$(report .num_succeeded) of 1024"
    row "tokens per second of the router's CPU time" "$(calculate "$tokens / $used * 1e9" 0)"
    row "CPU time of the router per token" "$(calculate "$used / $tokens / 1000" 2) µs"
    row "tokens per second, with the client on the other CPU" "$(calculate "$tokens / $elapsed" 0)"
    row "share of its CPU that the router used" "$(calculate "$used / $elapsed / 1e7" 0) %"
}

step() {
    local window
    for window in 2 1; do
        # In longer steps the CPUs would fall asleep, and the result would include the time to wake them.
        start --device mock --mock-step-us 1000 --max-batch-size 64 --step-window "$window"
        load --concurrency 64 --num-requests 128 --prompt-tokens 16 --output-tokens 480
        local took forward count
        took=$(metric 'tgi_batch_inference_duration_sum{method="decode"}')
        forward=$(metric 'tgi_batch_forward_duration_sum{method="decode"}')
        count=$(metric 'tgi_batch_inference_count{method="decode"}')
        row "64 rows, window $window: shard's time per step, mean" "$(calculate "$forward / $count * 1e6") µs"
        row "  time that the server adds per step, mean" "$(calculate "($took - $forward) / $count * 1e6") µs"
        row "  device idle before a step, median" "$(median_us hilo_device_idle_duration) µs"
    done
}

first_token() {
    start --device mock
    scrape health 200 "/health, which runs no model, at 200 requests/s"
    load --concurrency 1 --num-requests 200 --prompt-tokens 16 --output-tokens 8
    load --seed 1 --concurrency 1 --num-requests 3000 --prompt-tokens 16 --output-tokens 8
    first_token_rows "one request after the other"
    load --seed 2 --rate 200 --duration 20 --prompt-tokens 16 --output-tokens 8
    first_token_rows "200 requests/s"
    row "  latest start of a request" "$(report '.latest_start_ms * 1000 | round') µs"
    local forward count
    forward=$(metric 'tgi_batch_forward_duration_sum{method="prefill"}')
    count=$(metric 'tgi_batch_inference_count{method="prefill"}')
    row "  of which the shard's forward, mean" "$(calculate "$forward / $count * 1e6") µs"
}

first_token_rows() {
    row "$1: requests that succeeded" "$(report '"\(.num_succeeded) of \(.num_succeeded + .num_failed)"')"
    row "  time to first token, p50" "$(report '.time_to_first_token_ms.p50 * 1000 | round') µs"
    row "  p99" "$(report '.time_to_first_token_ms.p99 * 1000 | round') µs"
}

metrics() {
    start --device mock --max-concurrent-requests 512 --max-batch-size 256
    load --concurrency 64 --num-requests 256 --prompt-tokens 16 --output-tokens 100
    scrape metrics 9 "/metrics, idle"
    load --concurrency 64 --num-requests 2000 --prompt-tokens 16 --output-tokens 480 &
    sleep 1
    scrape metrics 9 "/metrics, 64 streams"
    kill -INT $! && wait $! || true
}

# Requests a page 200 times over one connection, at a rate per second. A page of metrics that is requested within 100 ms
# after another one waits.
scrape() {
    taskset -c "$other_cpus" curl -s --rate "$2/s" -w '%{stderr}%{time_total}\n' "$url/$1?[1-200]" \
        2>&1 >"$directory/page" | sort -n >"$directory/times"
    row "$3: p50" "$(awk 'NR == 100 { print $1 * 1e6 }' "$directory/times") µs"
    row "  p99" "$(awk 'NR == 198 { print $1 * 1e6 }' "$directory/times") µs"
}

memory() {
    local streams=2000 before
    start --device mock --mock-step-us 500000 --max-concurrent-requests 4096 --max-batch-size "$streams"
    load --concurrency 1 --num-requests 4 --prompt-tokens 16 --output-tokens 2
    before=$(resident_kib)
    load --concurrency "$streams" --num-requests "$streams" --prompt-tokens 16 --output-tokens 200 &
    until [ "$(metric vllm:num_requests_running)" = "$streams" ]; do sleep 0.1; done
    sleep 2
    row "$streams streams that wait: memory of the router per stream" "$(calculate "($(resident_kib) - $before) / $streams") KiB"
    kill -INT $! && wait $! || true
}

many() {
    start --device mock --max-concurrent-requests 8000 --max-batch-size 256
    load --concurrency 5000 --num-requests 10000 --prompt-tokens 16 --output-tokens 50
    row "5000 streams at a time: requests that succeeded" "$(report .num_succeeded) of 10000"
    row "  failures" "$(report '.failures | to_entries | map("\(.value.count) \(.key)") | join(", ")')"
    row "  tokens" "$(report .num_output_tokens) of 500000"
}

idle() {
    start --device cpu --max-batch-size 32
    taskset -acp "$router_cpu,$other_cpus" "$router" >"$directory/taskset"
    taskset -acp "$router_cpu,$other_cpus" "$shard" >"$directory/taskset"
    load --concurrency 32 --num-requests 400 --prompt-tokens uniform:20..60 --output-tokens 200
    local idle forward
    idle=$(metric hilo_device_idle_duration_sum)
    forward=$(metric 'tgi_batch_forward_duration_sum{method="decode"}')
    row "demo model on the CPU, 32 rows: time of a step, mean" \
        "$(calculate "$forward / $(metric 'tgi_batch_inference_count{method="decode"}') * 1e6") µs"
    row "  device idle between decode steps, share" "$(calculate "100 * $idle / ($idle + $forward)" 2) %"
    row "  device idle between decode steps, median" "$(median_us hilo_device_idle_duration) µs"
}

case ${1:-} in
streams | step | metrics | memory | many | idle) "$1" ;;
first-token) first_token ;;
all) for part in streams step first_token metrics memory many idle; do "$part"; done ;;
*) sed -n '2,6s/^# \?//p' "$0"; exit 2 ;;
esac
