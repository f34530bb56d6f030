#!/usr/bin/env bash
# Generate the Python classes and their type stubs from ext_proc.proto.
#
# usage: proto/generate.sh [OUT]     OUT: default ext_proc/_pb
# PYTHON names the interpreter that has grpcio-tools (default: python).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/../ext_proc/_pb}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The mapped include path registers the file as forebay/_pb/ext_proc.proto, a name that no other
# package in the process can have taken.
"${PYTHON:-python}" -m grpc_tools.protoc -I "forebay/_pb=$here" \
  --python_out="$scratch" --pyi_out="$scratch" "$here/ext_proc.proto"
mkdir -p "$out"
cp "$scratch"/forebay/_pb/ext_proc_pb2.py "$scratch"/forebay/_pb/ext_proc_pb2.pyi "$out"/
