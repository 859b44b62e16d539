// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

import "os/exec"

func allowedCPUs() ([]int, error) { return nil, ErrUnsupported }

func launchOn([]int) func(*exec.Cmd) error { return func(*exec.Cmd) error { return ErrUnsupported } }

func pinSelf([]int) (func() error, error) { return nil, ErrUnsupported }

func apart(*exec.Cmd) {}
