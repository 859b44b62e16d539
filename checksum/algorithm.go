// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"errors"
	"fmt"
	"strings"
)

// Algorithm names a checksum algorithm. The zero value names none: it has no
// size and no header, and [New] refuses it.
type Algorithm uint8

// The algorithms. Names, sizes and header names are those of the S3 API
// (https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html).
const (
	// CRC32 is the CRC of ISO 3309, Ethernet and zlib: 32 bits.
	CRC32 Algorithm = iota + 1
	// CRC32C is the CRC with Castagnoli's polynomial (iSCSI, RFC 3720): 32 bits.
	CRC32C
	// CRC64NVME is the CRC of the NVM Express command set (Rocksoft): 64 bits.
	CRC64NVME
	// SHA1 is SHA-1 (FIPS 180-4): 160 bits.
	SHA1
	// SHA256 is SHA-256 (FIPS 180-4): 256 bits.
	SHA256
	// MD5 is MD5 (RFC 1321): 128 bits.
	MD5
	// XXH64 is xxHash64 with seed 0: 64 bits. S3 calls it XXHASH64.
	XXH64

	algorithmEnd
)

// maxSize is the size of the longest checksum, in bytes.
const maxSize = 32

const (
	headerPrefix     = "x-amz-checksum-"
	headerContentMD5 = "content-md5"
)

// ErrUnknownAlgorithm is the error for an algorithm, or a checksum header, that
// this package does not implement.
var ErrUnknownAlgorithm = errors.New("unknown checksum algorithm")

type algorithmInfo struct {
	name   string
	size   int
	header string
	// empty is the checksum of no bytes. It is written out, and not computed at
	// init, because an MD5 computed at init ends a process in Go's strict FIPS
	// mode that never asked for one.
	empty [maxSize]byte
}

// The header of XXH64 is x-amz-checksum-xxhash64: S3 added it in 2026 together
// with -md5, -sha512, -xxhash3 and -xxhash128 (aws-sdk-go-v2 change log,
// "five additional checksum algorithms"), and minio-go 7.4 sends the same.
var algorithms = [algorithmEnd]algorithmInfo{
	CRC32:     {name: "CRC32", size: 4, header: headerPrefix + "crc32"},
	CRC32C:    {name: "CRC32C", size: 4, header: headerPrefix + "crc32c"},
	CRC64NVME: {name: "CRC64NVME", size: 8, header: headerPrefix + "crc64nvme"},
	SHA1: {name: "SHA1", size: 20, header: headerPrefix + "sha1", empty: [maxSize]byte{
		0xda, 0x39, 0xa3, 0xee, 0x5e, 0x6b, 0x4b, 0x0d, 0x32, 0x55,
		0xbf, 0xef, 0x95, 0x60, 0x18, 0x90, 0xaf, 0xd8, 0x07, 0x09}},
	SHA256: {name: "SHA256", size: 32, header: headerPrefix + "sha256", empty: [maxSize]byte{
		0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
		0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55}},
	MD5: {name: "MD5", size: 16, header: headerContentMD5, empty: [maxSize]byte{
		0xd4, 0x1d, 0x8c, 0xd9, 0x8f, 0x00, 0xb2, 0x04, 0xe9, 0x80, 0x09, 0x98, 0xec, 0xf8, 0x42, 0x7e}},
	XXH64: {name: "XXHASH64", size: 8, header: headerPrefix + "xxhash64", empty: [maxSize]byte{
		0xef, 0x46, 0xdb, 0x37, 0x51, 0xd8, 0xe9, 0x99}},
}

// Algorithms returns every algorithm, in ascending order. The slice is the
// caller's.
func Algorithms() []Algorithm {
	all := make([]Algorithm, 0, algorithmEnd-1)
	for a := CRC32; a < algorithmEnd; a++ {
		all = append(all, a)
	}
	return all
}

// ParseAlgorithm returns the algorithm of the given name, in any case: the
// values of x-amz-checksum-algorithm ("CRC32C", "XXHASH64", ...), and "XXH64".
// The error wraps [ErrUnknownAlgorithm].
func ParseAlgorithm(name string) (Algorithm, error) {
	for a := CRC32; a < algorithmEnd; a++ {
		if strings.EqualFold(name, algorithms[a].name) {
			return a, nil
		}
	}
	if strings.EqualFold(name, "XXH64") {
		return XXH64, nil
	}
	return 0, fmt.Errorf("%w %q: the choices are %s",
		ErrUnknownAlgorithm, clip(name), strings.Join(algorithmNames(), ", "))
}

func algorithmNames() []string {
	names := make([]string, 0, algorithmEnd-1)
	for a := CRC32; a < algorithmEnd; a++ {
		names = append(names, algorithms[a].name)
	}
	return names
}

// Valid reports whether a is one of the algorithms of this package.
func (a Algorithm) Valid() bool { return a > 0 && a < algorithmEnd }

// String returns the name that S3 uses as the value of
// x-amz-checksum-algorithm, or "Algorithm(n)" for an invalid one.
func (a Algorithm) String() string {
	if !a.Valid() {
		return fmt.Sprintf("Algorithm(%d)", uint8(a))
	}
	return algorithms[a].name
}

// Size returns the length of a checksum in bytes, before base64; 0 for an
// invalid algorithm.
func (a Algorithm) Size() int {
	if !a.Valid() {
		return 0
	}
	return algorithms[a].size
}

// Header returns the lower-case name of the HTTP header that carries a value,
// "x-amz-checksum-crc32c" and so on; "" for an invalid algorithm. For MD5 it is
// "content-md5", which every S3 server knows; [FromHeader] also reads S3's
// newer x-amz-checksum-md5.
func (a Algorithm) Header() string {
	if !a.Valid() {
		return ""
	}
	return algorithms[a].header
}

// Combinable reports whether [Combine] works for a: whether it is a CRC.
func (a Algorithm) Combinable() bool {
	return a == CRC32 || a == CRC32C || a == CRC64NVME
}

// clip bounds the part of a foreign value that an error repeats.
func clip(s string) string {
	const most = 96
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
