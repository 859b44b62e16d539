// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package staging

import (
	"errors"
	"fmt"
)

type mapping struct {
	bytes  []byte
	pages  PageKind
	locked bool
}

func mapMemory(n int, _ HugePages, _ bool) (mapping, error) {
	return mapping{}, fmt.Errorf("staging: map %d bytes: only Linux is supported: %w", n, errors.ErrUnsupported)
}

func (*mapping) unmap() error { return nil }
