// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "errors"

func freeBytes(string) (int64, error) { return 0, errors.ErrUnsupported }
