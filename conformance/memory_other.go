// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package conformance

import (
	"errors"
	"fmt"
)

// mapMemory is not written for this system; targets that make their own memory
// don't need it.
func mapMemory(n int) ([]byte, error) {
	return nil, fmt.Errorf("map %d bytes: %w", n, errors.ErrUnsupported)
}

func unmapMemory([]byte) {}
