#!/usr/bin/env bash
# Builds the images of Dockerfile and runs them as a user would. If the base images cannot be pulled, it makes stand-ins
# with the same names from Debian's packages and this machine's toolchain, which needs root. Without a Docker engine it
# prints that it is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

MAX_CPU_IMAGE_BYTES=120000000
MODEL=$PWD/integration-tests/fixtures/tiny-llama-bf16
# A copy of the executable of the image, for tests without a container.
EXECUTABLE=${CARGO_TARGET_DIR:-target}/image/text-generation-launcher
rm -f "$EXECUTABLE"

run=hilo-test-$$
work=$(mktemp -d)
clean_up() {
    docker ps --all --quiet --filter "label=$run" | xargs --no-run-if-empty docker rm --force > /dev/null
    docker volume ls --quiet --filter "label=$run" | xargs --no-run-if-empty docker volume rm > /dev/null
    rm -rf "$work"
}

say() { printf '  %s\n' "$*"; }
fail() {
    echo "failed: $*"
    exit 1
}
install() { { apt-get update && apt-get install --yes --no-install-recommends "$@"; } > "$work/apt.log" 2>&1; }

# ------------------------------------------------------------------------------------------------------ engine and base images

[ -S /var/run/docker.sock ] && ! command -v docker > /dev/null && install docker.io
if ! docker info > /dev/null 2>&1; then
    echo "skipped: no Docker engine"
    exit 0
fi
trap clean_up EXIT

# Finds the first client that can build with BuildKit. Newer clients need a plugin for it.
find_builder() {
    local id
    for docker in $(type -ap docker); do
        id=$(printf 'FROM scratch\nLABEL %s=probe\n' "$run" | DOCKER_BUILDKIT=1 "$docker" build --quiet - 2> /dev/null) || continue
        docker rmi "$id" > /dev/null
        return
    done
    return 1
}
find_builder || { install docker-buildx && find_builder; } || { install docker.io && find_builder; } || fail "no client with BuildKit"

argument() { sed -n "s/^ARG $1=//p" Dockerfile; }
rust_image=$(argument RUST_IMAGE)
python_image=$(argument PYTHON_IMAGE)
suite=${python_image##*-}
is_here() { docker image inspect "$1" > /dev/null 2>&1 || docker pull --quiet "$1" > /dev/null 2>&1; }

# Makes a Debian root with the packages that both stand-ins need.
make_root() {
    [ -d "$work/root" ] && return
    command -v debootstrap > /dev/null || install debootstrap || fail "debootstrap cannot be installed: $(tail -n 3 "$work/apt.log")"
    local mirror
    mirror=$(apt-get indextargets --format "\$(ORIGIN) \$(SITE) \$(RELEASE)" 'Created-By: Packages' | awk '$1 == "Debian" && $3 !~ /-/ { print $2; exit }')
    debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev,make,python3-pip "$suite" "$work/root" ${mirror:+"$mirror"} > "$work/debootstrap.log" 2>&1 \
        || fail "debootstrap: $(tail -n 5 "$work/debootstrap.log")"
}
import() {
    local image=$1
    shift
    make_root
    tar --create --exclude='./proc/*' --exclude='./sys/*' --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' \
        --directory "$work/root" . "$@" | docker import --change "LABEL stand-in=true" --change "ENV CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" - "$image" > /dev/null
    say "made a stand-in for $image"
}
is_here "$python_image" || import "$python_image"
if ! is_here "$rust_image"; then
    [[ $rust_image == rust:$(rustc --version | cut -d ' ' -f 2)-* ]] || fail "$rust_image cannot be pulled, and the toolchain is $(rustc --version)"
    import "$rust_image" --directory "$(realpath "$(rustc --print sysroot)")" --transform 'flags=r;s,^\(bin\|lib\)\b,usr/local/cargo/\1,' bin lib
fi
rm -rf "$work/root"

# ------------------------------------------------------------------------------------------------------------------- the images

# This machine's settings for downloading packages are passed as build secrets, which are not stored in images.
secrets=()
secret() { [ ! -f "$2" ] || secrets+=(--secret "id=$1,src=$2"); }
secret ca-certificates /etc/ssl/certs/ca-certificates.crt
secret cargo-config "${CARGO_HOME:-$HOME/.cargo}/config.toml"
secret pip-config /etc/pip.conf

commit=$(git rev-parse HEAD 2> /dev/null) || commit=
[ -z "$commit" ] || git diff --quiet HEAD || commit+=-dirty

for target in cpu xla-cpu tpu; do
    begin=$SECONDS
    DOCKER_BUILDKIT=1 "$docker" build --progress plain --network host "${secrets[@]}" --build-arg "HILO_COMMIT=$commit" --target "$target" --tag "hilo:$target" . > "$work/build.log" 2>&1 \
        || fail "build of $target: $(tail -n 40 "$work/build.log")"
    bytes=$(docker image inspect --format '{{.Size}}' "hilo:$target")
    say "hilo:$target built in $((SECONDS - begin)) s, $((bytes / 1000000)) MB"
    [ "$target" != cpu ] || [ "$bytes" -le "$MAX_CPU_IMAGE_BYTES" ] || fail "the image is larger than $MAX_CPU_IMAGE_BYTES bytes"
done
[ "$(docker image inspect --format '{{.Config.User}}' hilo:cpu)" = 1000:1000 ] || fail "the image runs as root"

# The image and its executable must name the commit, and the executable a build id.
version=$(docker run --rm --label "$run" hilo:cpu --version)
[[ $version =~ build:\ [0-9a-f]{40} && $version == *"commit: ${commit:-unknown}"* ]] || fail "--version says $version"
[ "$(docker image inspect --format '{{index .Config.Labels "org.opencontainers.image.revision"}}' hilo:cpu)" = "$commit" ] || fail "the image names another commit"

# The image must contain the licences of its contents: of the crates, and of Debian's libraries.
id=$(docker create --label "$run" hilo:cpu)
docker cp "$id:/usr/share/doc" "$work/licences" > /dev/null
mkdir -p "$(dirname "$EXECUTABLE")"
docker cp "$id:/usr/local/bin/text-generation-launcher" "$EXECUTABLE" > /dev/null
docker rm "$id" > /dev/null
for text in '^tokio 1[0-9.]*: MIT' '^ring 0[0-9.]*: ' 'Permission is hereby granted' 'TERMS AND CONDITIONS FOR USE'; do
    grep --quiet "$text" "$work/licences/hilo/THIRD_PARTY_NOTICES" || fail "the notices of the image lack $text"
done
for text in hilo/LICENSE libc6/copyright libgcc-s1/copyright ca-certificates/copyright; do
    [ -s "$work/licences/$text" ] || fail "the image lacks $text"
done

# ---------------------------------------------------------------------------------------------------------------------- helpers

# Starts a container. Arguments: its name, then arguments of `docker run`.
start() {
    local name=$run-$1
    shift
    docker run --detach --label "$run" --name "$name" --publish "127.0.0.1::${port:-80}" "$@" > /dev/null
}
volume() { docker volume create --label "$run" "$run-$1"; }
url() { echo "http://$(docker port "$run-$1" "${port:-80}" | head -n 1)"; }
logs() { docker logs "$run-$1" 2>&1; }
state() { docker inspect --format "{{.State.$2}}" "$run-$1"; }

# Repeats a command until it succeeds, as long as the container runs, for about two minutes.
until_ok() {
    local name=$1
    shift
    for _ in $(seq 6000); do
        "$@" > /dev/null 2>&1 && return
        [ "$(state "$name" Running)" = true ] || fail "$name ended with status $(state "$name" ExitCode): $(logs "$name" | tail -n 20)"
        sleep 0.02
    done
    fail "$name: $* did not succeed: $(logs "$name" | tail -n 20)"
}
ready() { until_ok "$1" curl --silent --fail "$(url "$1")/health"; }
healthy() { until_ok "$1" docker exec "$run-$1" text-generation-launcher health --pid 1; }
is_status() { [ "$(state "$1" Health.Status)" = "$2" ]; }
# Sends a request to a container. Arguments: its name, the route, the number of tokens, more parameters.
generate() {
    curl --silent --show-error --max-time 60 "$(url "$1")/$2" --header 'Content-Type: application/json' \
        --data "{\"inputs\": \"Once upon a time\", \"parameters\": {\"max_new_tokens\": $3${4:-}}}"
}
answers() { generate "$1" generate 8 | grep '"generated_text":"' > /dev/null || fail "$1 does not answer: $(logs "$1" | tail -n 20)"; }
stop() {
    docker stop --time 60 "$run-$1" > /dev/null
    [ "$(state "$1" ExitCode)" = 0 ] || fail "$1 stopped with status $(state "$1" ExitCode): $(logs "$1" | tail -n 20)"
}
# Runs Python as root in the process namespace of a container.
beside() { docker run --rm --label "$run" --user root --pid "container:$run-$1" --entrypoint python3 "$python_image" -c "$2"; }
step() { printf '%s\n' "$*"; }

# ------------------------------------------------------------------------------------------------------------------------ tests

step "no arguments: the demo answers on the mapped port, and its health goes from starting to healthy"
begin=$(date +%s%N)
start demo --health-interval 1s --health-retries 1 hilo:cpu
is_status demo starting || fail "health is $(state demo Health.Status) at the start"
ready demo
generate demo generate_stream 8 | grep --max-count 1 '^data:' > "$work/first" || true
say "docker run to first token: $((($(date +%s%N) - begin) / 1000000)) ms"
generate demo generate 20 | grep 'a girl named Kate' > /dev/null || fail "the demo does not say what it says elsewhere"
until_ok demo is_status demo healthy
# The warning about a server without keys names the flag of that name.
logs demo | grep -v 'no API key is set' | grep -i hostname && fail "the container's HOSTNAME confuses the server"

step "orphans in the container are reaped"
docker exec --detach --env PORT=0 "$run-demo" text-generation-launcher --device mock
beside demo '
import glob, os, signal, sys, time

def processes():
    found = {}
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            stat, argv = open(folder + "/stat").read(), open(folder + "/cmdline", "rb").read().split(b"\0")
        except OSError:
            continue
        found[int(folder[6:])] = (stat.rsplit(") ", 1)[1][0], argv)
    return found

def wait(what, condition):
    for _ in range(3000):
        now = processes()
        if result := condition(now):
            return result
        time.sleep(0.02)
    sys.exit(f"{what}: {processes()}")

is_launcher = lambda argv: b"mock" in argv and argv[1] == b"--device"
shards = lambda now: [pid for pid, (_, argv) in now.items() if b"mock" in argv and b"shard" in argv]
wait("no second server", shards)
[launcher] = [pid for pid, (_, argv) in processes().items() if is_launcher(argv)]
os.kill(launcher, signal.SIGKILL)
wait("zombies or orphans", lambda now: not any(state == "Z" or b"mock" in argv for state, argv in now.values()))
' || fail "PID 1 leaves orphans behind"
answers demo

step "a shard that is stopped makes the container unhealthy, and ends it with status 17"
beside demo '
import glob, os, signal
for path in glob.glob("/proc/[0-9]*/cmdline"):
    if b"\0shard\0" in open(path, "rb").read():
        os.kill(int(path.split("/")[2]), signal.SIGSTOP)
'
generate demo generate 8 > "$work/stopped" &
for _ in $(seq 1200); do is_status demo unhealthy && break; sleep 0.05; done
is_status demo unhealthy || fail "health is $(state demo Health.Status)"
wait $!
grep --quiet '"error"' "$work/stopped" || fail "the request ended with $(cat "$work/stopped")"
[ "$(docker wait "$run-demo")" = 17 ] || fail "status $(state demo ExitCode)"
docker start "$run-demo" > /dev/null
until_ok demo is_status demo healthy

step "docker stop lets ten streams finish, and the status is 0"
# The streams ignore the end of sequence, and with half a CPU some have not finished when all have started.
docker update --cpus 0.5 "$run-demo" > /dev/null
for n in $(seq 10); do generate demo generate_stream 900 ', "ignore_eos_token": true' > "$work/stream-$n" & done
for n in $(seq 10); do until_ok demo grep --quiet '^data:' "$work/stream-$n"; done
unfinished=$({ grep --files-without-match '"generated_text":"' "$work"/stream-* || true; } | wc -l)
stop demo
wait
for n in $(seq 10); do
    grep --quiet '"generated_text":"' "$work/stream-$n" || fail "stream $n ends with $(tail -n 2 "$work/stream-$n")"
done
say "$unfinished of 10 streams were under way"
[ "$unfinished" -gt 0 ] || fail "all streams had ended before the stop"

step "a mounted checkpoint, hardened: read-only, no capabilities, any user"
start hardened --read-only --cap-drop ALL --security-opt no-new-privileges --user 4711:4711 --memory 2g --pids-limit 200 \
    --volume "$MODEL:/model:ro" hilo:cpu --model-id /model
ready hardened
answers hardened
stop hardened

step "TGI's environment variables"
port=8000 start variables --env PORT=8000 --env MODEL_ID=/model --env NUM_SHARD=2 --env MAX_TOTAL_TOKENS=100 --volume "$MODEL:/model:ro" hilo:cpu
port=8000 ready variables
port=8000 answers variables
info=$(curl --silent "$(port=8000 url variables)/info")
[[ $info == *'"model_id":"/model"'* && $info == *'"max_total_tokens":100'* ]] || fail "/info says $info"
[ "$(beside variables 'import glob; print(sum(b"\0shard\0" in open(path, "rb").read() for path in glob.glob("/proc/[0-9]*/cmdline")))')" = 2 ] || fail "no two shards"
healthy variables
stop variables

step "health follows flags: a port, and a socket on a volume that a killed server leaves behind"
port=9000 start port hilo:cpu --port 9000
healthy port
data=$(volume socket)
start socket --read-only --volume "$data:/data" hilo:cpu --uds /data/http
healthy socket
docker kill "$run-socket" > /dev/null
docker start "$run-socket" > /dev/null
healthy socket
stop socket

step "exit statuses pass through PID 1, and a signal ends a command that does not serve"
status=0
docker run --rm --label "$run" hilo:cpu --model-id /nowhere > /dev/null 2>&1 || status=$?
[ "$status" = 2 ] || fail "status $status for a model that is not there"
start compile --volume "$MODEL:/model:ro" hilo:tpu compile --model-id /model --topology v5e:2x2 --output /data/programs
until_ok compile eval 'docker top "$run-compile" | grep compile-programs > /dev/null'
docker stop --time 60 "$run-compile" > /dev/null
[ "$(state compile ExitCode)" = 143 ] || fail "status $(state compile ExitCode) after SIGTERM"

step "XLA's CPU code: docker kill while it compiles, and while it serves, breaks no later start from the same volume"
data=$(volume programs)
start xla --read-only --cap-drop ALL --volume "$data:/data" --volume "$MODEL:/model:ro" hilo:xla-cpu --model-id /model --max-batch-size 2 --max-total-tokens 64
until_ok xla eval 'logs xla | grep from=compiler > /dev/null'
docker kill "$run-xla" > /dev/null
for _ in 1 2; do
    docker start "$run-xla" > /dev/null
    ready xla
    answers xla
    compiled=$(curl --silent "$(url xla)/metrics" | sed -n 's/^hilo_programs_compiled_total{phase="warmup"} //p')
    docker kill "$run-xla" > /dev/null
done
[ "$compiled" = 0 ] || fail "$compiled programs were compiled again"

step "the TPU image without a TPU: fit and compile work, and serving says what is missing, with status 3"
docker run --rm --label "$run" hilo:tpu plugin list | grep '/usr/local/bin/libtpu.so' > /dev/null || fail "the plugin is not found"
docker run --rm --label "$run" --read-only --cap-drop ALL --volume "$MODEL:/model:ro" hilo:tpu fit --model-id /model --topology v5e:2x2 > "$work/fit" 2>&1 \
    || fail "fit: $(tail -n 5 "$work/fit")"
grep --quiet '^fits' "$work/fit" || fail "fit says $(tail -n 5 "$work/fit")"
docker run --rm --label "$run" --volume "$MODEL:/model:ro" hilo:tpu compile --model-id /model --topology v5e:2x2 --max-batch-size 1 --max-total-tokens 64 \
    --output /data/programs > "$work/compile" 2>&1 || fail "compile: $(tail -n 5 "$work/compile")"
begin=$(date +%s%N)
status=0
docker run --rm --label "$run" hilo:tpu --device tpu > "$work/no-tpu" 2>&1 || status=$?
say "without a TPU: status $status after $((($(date +%s%N) - begin) / 1000000)) ms: $(tail -n 1 "$work/no-tpu")"
[ "$status" = 3 ] && grep --quiet 'no TPU chip' "$work/no-tpu" || fail "status $status: $(cat "$work/no-tpu")"

step "compose.yaml"
if docker compose version > /dev/null 2>&1; then
    docker compose config --quiet
elif command -v docker-compose > /dev/null; then
    docker-compose config --quiet
else
    say "skipped: no Compose"
fi
