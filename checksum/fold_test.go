// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"hash/crc32"
	"testing"

	"github.com/minio/crc64nvme"
)

// TestFold compares the CRCs with the ones that other people wrote, at every length and
// alignment around the folded blocks, from any state.
const alignments = 64

func TestFold(t *testing.T) {
	if !canFold {
		t.Log("this processor does not fold: the comparison is of others with themselves")
	}
	data := randomBytes(foldLeast + 3*foldBlock + alignments)
	check := func(p []byte, at, n int, state uint64) {
		t.Helper()
		if got, want := update64(state, p), crc64nvme.Update(state, p); got != want {
			t.Fatalf("CRC64NVME of %d bytes at %d from %#x: %#x, want %#x", n, at, state, got, want)
		}
		for _, table := range []*crc32.Table{crc32.IEEETable, castagnoli} {
			if got, want := update32(uint32(state), table, p), crc32.Update(uint32(state), table, p); got != want {
				t.Fatalf("CRC32 of %d bytes at %d from %#x: %#x, want %#x (IEEE: %v)", n, at, uint32(state), got, want, table == crc32.IEEETable)
			}
		}
	}
	for _, state := range []uint64{0, 1, 0x0123456789abcdef, ^uint64(0)} {
		for at := range alignments {
			for n := 0; n <= len(data)-at; n += 1 + n/foldLeast*7 {
				check(data[at:at+n], at, n, state)
			}
		}
	}
	// One bit at a time, each of which must reach the sum, and by its own way.
	one := make([]byte, foldLeast+foldBlock+1)
	for bit := range 8 * len(one) {
		one[bit/8] = 1 << (bit % 8)
		check(one, 0, len(one), 0)
		one[bit/8] = 0
	}
}
