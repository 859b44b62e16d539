// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

import "time"

// ProcessCPU is not known how to be measured here: ErrUnsupported.
func ProcessCPU(int) (time.Duration, error) { return 0, ErrUnsupported }

func machineCPU() (time.Duration, error) { return 0, ErrUnsupported }

func fileSystem(string) string { return "unknown" }
