#!/usr/bin/env bash
# Compares what chat templates of many models give here with what they give in transformers.
set -euo pipefail
cd "$(dirname "$0")"

work=$(realpath ../..)/target/chat-templates
python3 -m venv "$work/environment"
pip() { "$work/environment/bin/pip" --quiet --disable-pip-version-check "$@"; }
pip install -r requirements.txt
# A wheel, and an archive of sources, of which only the templates are read.
pip download --no-deps --require-hashes --no-binary llama-cpp-python --dest "$work/packages" -r packages.txt

rm -rf "$work/recordings"
mkdir -p "$work/recordings"
PYTHONDONTWRITEBYTECODE=1 "$work/environment/bin/python" record.py "$work/packages" "$work/recordings"
HILO_REQUIRE_CHAT_TEMPLATES=1 HILO_CHAT_TEMPLATES="$work/recordings" \
    cargo test --locked --manifest-path ../../Cargo.toml --workspace --lib -- --nocapture chat_template::recorded
