// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package compute

import (
	"errors"
	"os/exec"
)

// Options say what computes.
type Options struct {
	Command, Env []string
	Threads      int
	Launch       func(*exec.Cmd) error
}

// Load is a process that computes; there is none on this system.
type Load struct{}

var errUnsupported = errors.New("compute: needs Linux")

// Start fails.
func Start(Options) (*Load, error) { return nil, errUnsupported }

// Serve fails.
func Serve(int) error { return errUnsupported }

// PID is 0.
func (*Load) PID() int { return 0 }

// Work is 0.
func (*Load) Work() uint64 { return 0 }

// Resume fails.
func (*Load) Resume() error { return errUnsupported }

// Pause fails.
func (*Load) Pause() error { return errUnsupported }

// Stop does nothing.
func (*Load) Stop() {}
