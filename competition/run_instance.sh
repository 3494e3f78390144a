#!/bin/bash
# run_instance.sh v1 CATEGORY ONNX VNNLIB OUT TIMEOUT: decide one query; OUT gets the verdict, then the witness.
# ONNX is a file, or "[('f', 'a.onnx'), ('g', 'b.onnx')]" for a query about several networks.
set -u
[ "${1:-}" = "v1" ] || { echo "run_instance.sh: the first argument must be v1" >&2; exit 1; }
[ "$#" -eq 6 ] || { echo "run_instance.sh v1 CATEGORY ONNX VNNLIB OUT TIMEOUT" >&2; exit 1; }
root=$(cd "$(dirname "$0")/.." && pwd)
command=${SUREBOUND:-$root/.venv/bin/surebound}
rm -f "$5"
$command verify --onnx "$3" --vnnlib "$4" --result-file "$5" --timeout "$6"
# Whatever is refused, or ended by the system, is no verdict.
[ -s "$5" ] || echo unknown > "$5"
exit 0
