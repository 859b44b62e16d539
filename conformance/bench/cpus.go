// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import "fmt"

// Pinning is who has which CPUs.
type Pinning struct {
	// Server and Client have no CPU in common, where there are two.
	Server []int `json:"server"`
	Client []int `json:"client"`
}

// split gives half of the CPUs to each, those that lie side by side to the same.
func split(cpus []int) (Pinning, error) {
	if len(cpus) < 2 {
		return Pinning{}, fmt.Errorf("%w: server and client cannot be kept apart on %d CPU: this needs two", ErrUnsupported, len(cpus))
	}
	half := len(cpus) / 2
	return Pinning{Server: cpus[:half], Client: cpus[half:]}, nil
}

// String is for people.
func (p Pinning) String() string {
	return fmt.Sprintf("server on CPUs %v, client on CPUs %v", p.Server, p.Client)
}
