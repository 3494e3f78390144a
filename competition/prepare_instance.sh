#!/bin/bash
# prepare_instance.sh v1 CATEGORY ONNX VNNLIB: nothing is computed before the clock runs; the query must be there.
set -u
[ "${1:-}" = "v1" ] || { echo "prepare_instance.sh: the first argument must be v1" >&2; exit 1; }
[ "$#" -eq 4 ] || { echo "prepare_instance.sh v1 CATEGORY ONNX VNNLIB" >&2; exit 1; }
[ -e "$4" ] || { echo "prepare_instance.sh: $4 is missing" >&2; exit 1; }
exit 0
