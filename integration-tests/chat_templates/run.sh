#!/usr/bin/env bash
# Compares the texts that chat templates of many models render here and in transformers.
set -euo pipefail
cd "$(dirname "$0")"

work=$(realpath ../..)/target/chat-templates
python3 -m venv "$work/environment"
pip() { "$work/environment/bin/pip" --quiet --disable-pip-version-check "$@"; }
pip install -r requirements.txt
# These are wheels and a source archive. Only the templates in them are read.
pip download --no-deps --require-hashes --no-binary llama-cpp-python --dest "$work/packages" -r packages.txt

[ -z "${HILO_PREPARE:-}" ] || exit 0

rm -rf "$work/recordings"
mkdir -p "$work/recordings"
PYTHONDONTWRITEBYTECODE=1 "$work/environment/bin/python" record.py "$work/packages" "$work/recordings"
HILO_REQUIRE_CHAT_TEMPLATES=1 HILO_CHAT_TEMPLATES="$work/recordings" \
    cargo test --locked --manifest-path ../../Cargo.toml --workspace --lib -- --nocapture chat_template::recorded
