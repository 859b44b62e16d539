// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

import (
	"context"
	"os"
)

type wire struct {
	server, client string
	ns             *os.File
}

func newWire(context.Context, Network) (*wire, error) { return nil, ErrUnsupported }
func (*wire) close() error                            { return nil }
func (*wire) shape(context.Context, string) error     { return ErrUnsupported }
func (*wire) clear(context.Context) error             { return nil }
func (*wire) bytes() (int64, error)                   { return 0, ErrUnsupported }
func launchIn(_ *os.File, start launcher) launcher    { return start }
