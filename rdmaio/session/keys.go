// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// Keys makes the remote keys of one session: 32-bit numbers that look random to
// whoever has not the seed, are never 0, and never repeat. All of it may be called
// at once. The zero value is not usable, see [NewKeys].
//
// A key that came back would revive a withdrawn descriptor, and remembering every
// key ever given would grow for as long as the session lives. So the keys are a
// counter under a secret permutation of the 32-bit numbers (a Feistel network of
// six rounds over 16-bit halves).
type Keys struct {
	seed [32]byte
	mu   sync.Mutex
	next uint64
}

// NewKeys returns a fresh sequence.
func NewKeys() *Keys {
	k := new(Keys)
	rand.Read(k.seed[:]) // never fails: crypto/rand ends the process instead
	return k
}

// Next returns a key that this sequence has not returned before. After 2^32 - 1
// keys there is none left, and the error is rdmaio.ErrTooMany: the target should
// connect again.
func (k *Keys) Next() (uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.next < 1<<32 {
		key := k.permute(uint32(k.next))
		k.next++
		if key != 0 {
			return key, nil
		}
	}
	return 0, fmt.Errorf("all 2^32 keys of this session are used up, connect again: %w", rdmaio.ErrTooMany)
}

const keyRounds = 6

func (k *Keys) permute(v uint32) uint32 {
	l, r := uint16(v>>16), uint16(v)
	for n := range byte(keyRounds) {
		l, r = r, l^k.round(n, r)
	}
	return uint32(l)<<16 | uint32(r)
}

// round is the network's round function: 16 bits that depend on seed, round and
// half.
func (k *Keys) round(n byte, half uint16) uint16 {
	var in [len(k.seed) + 3]byte
	copy(in[:], k.seed[:])
	in[len(k.seed)] = n
	binary.LittleEndian.PutUint16(in[len(k.seed)+1:], half)
	sum := sha256.Sum256(in[:])
	return binary.LittleEndian.Uint16(sum[:])
}
