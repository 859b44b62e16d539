// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package shm

import (
	"context"
	"fmt"

	"github.com/s3rdma/s3rdma/rdmaio"
)

var errNoMemfd = fmt.Errorf("shm: needs memfds, which only Linux has: %w", rdmaio.ErrUnsupported)

// Fabric exists on Linux only.
type Fabric struct {
	rdmaio.Fabric
	rdmaio.Acceptor
}

// Stats are what a fabric holds at a moment.
type Stats struct {
	Sessions int
	Regions  int
	Bytes    int64
}

// New returns rdmaio.ErrUnsupported.
func New(Options) (*Fabric, error) { return nil, errNoMemfd }

// Path is the socket that the fabric listens on.
func (f *Fabric) Path() string { return "" }

// Sessions is 0.
func (f *Fabric) Sessions() int { return 0 }

// Stats returns what the fabric holds on behalf of its peers.
func (f *Fabric) Stats() Stats { return Stats{} }

// Target exists on Linux only; elsewhere all that can fail does.
type Target struct{}

// NewTarget returns a target whose calls fail with rdmaio.ErrUnsupported.
func NewTarget(TargetOptions) *Target { return new(Target) }

// Name is "shm".
func (t *Target) Name() string { return name }

// Hello fails.
func (t *Target) Hello(context.Context) (rdmaio.Hello, error) { return rdmaio.Hello{}, errNoMemfd }

// Connect fails.
func (t *Target) Connect(context.Context, rdmaio.Welcome) error { return errNoMemfd }

// Register fails.
func (t *Target) Register([]byte, rdmaio.Access) (rdmaio.Exposed, error) { return nil, errNoMemfd }

// Alloc fails.
func (t *Target) Alloc(int, rdmaio.Access) (rdmaio.Exposed, error) { return nil, errNoMemfd }

// Close does nothing.
func (t *Target) Close() error { return nil }
