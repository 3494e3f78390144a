#!/bin/bash
# install_tool.sh v1: an environment of its own beside this folder, with the tested versions of everything.
set -eu
[ "${1:-}" = "v1" ] || { echo "install_tool.sh: the first argument must be v1" >&2; exit 1; }
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
"$python" -m venv "$root/.venv"
"$root/.venv/bin/python" -m pip install --quiet --upgrade pip
"$root/.venv/bin/python" -m pip install --quiet --constraint "$root/constraints.txt" "$root[onnx]"
"$root/.venv/bin/surebound" --version
