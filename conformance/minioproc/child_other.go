// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package minioproc

import "syscall"

func childAttributes() *syscall.SysProcAttr { return nil }
