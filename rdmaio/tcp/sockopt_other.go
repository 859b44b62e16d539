// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tcp

import "time"

// setUserTimeout does nothing where the option does not exist: the deadlines of
// the lanes find a dead peer too, once a transfer waits for it.
func setUserTimeout(uintptr, time.Duration) error { return nil }
