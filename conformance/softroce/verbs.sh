#!/usr/bin/env bash
# Copyright 2026 The s3rdma Authors
# SPDX-License-Identifier: Apache-2.0
#
# verbs.sh - run the tests of package rdmaio/verbs on Soft-RoCE, in the VM of softroce.sh: all
# of them on one device, and the suite that every fabric passes between two devices whose
# packets are lost now and then. Its last line counts them. Exit status 0: all passed.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd -- "$here/../.." && pwd -P)
loss=${VERBS_LOSS:-0.5%}
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT

cd -- "$root"
# Without cgo, as the product is built.
CGO_ENABLED=0 "${GO:-go}" test -c -o "$tmp/verbs.test" ./rdmaio/verbs
CGO_ENABLED=0 "${GO:-go}" test -c -o "$tmp/ibv.test" ./rdmaio/verbs/internal/ibv

status=0
vm() { # NAME SOFTROCE-OPTION... -- COMMAND...: output to the terminal and to a file
	local name=$1
	shift
	"$here/softroce.sh" --timeout 600 --dir "$tmp" "$@" 2>&1 | tee "$tmp/$name.out" || status=1
}
vm clean -- bash -c './ibv.test -test.v && ./verbs.test -test.v -test.timeout 500s'
vm lossy --netem "loss $loss" -- ./verbs.test -test.v -test.timeout 500s -test.run '^TestFabric$'

count() { grep -c -E "^ *--- $2: Test" "$tmp/$1.out" || true; }
echo "verbs: passed=$(count clean PASS) failed=$(count clean FAIL) skipped=$(count clean SKIP)" \
	"lossy_passed=$(count lossy PASS) lossy_failed=$(count lossy FAIL)"
exit "$status"
