#!/bin/bash
# Copyright 2026 The s3rdma Authors
# SPDX-License-Identifier: Apache-2.0
#
# guest.sh COMMAND... - runs in the VM: each shell command in turn, with the temporary
# folder on the VM's disk (/dev/vda), where files can be opened with O_DIRECT. Exit status:
# that of the last command that failed.
set -euo pipefail
mkfs.ext4 -q /dev/vda
mkdir -p /run/drives
mount /dev/vda /run/drives
export TMPDIR=/run/drives
status=0
for command in "$@"; do
	bash -c "$command" || status=$?
done
exit "$status"
