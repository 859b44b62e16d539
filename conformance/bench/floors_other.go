// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

// floor is not known how to be measured here.
type floor struct{ base Floors }

func newFloor(int, []string, []byte, string) (*floor, error) { return nil, ErrUnsupported }

func (*floor) measure() (floorParts, error) { return floorParts{}, ErrUnsupported }

func (*floor) close() {}
