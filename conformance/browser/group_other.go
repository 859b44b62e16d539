// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package browser

import "os/exec"

func inGroup(*exec.Cmd) {}
