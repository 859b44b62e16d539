// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Errors of a checksum value's text or bytes.
var (
	// ErrMalformed is the error for a value that is not the canonical base64
	// of a checksum of its algorithm's length.
	ErrMalformed = errors.New("malformed checksum")
	// ErrComposite is the error for a composite value ("value-N") where the
	// checksum of the bytes themselves is needed. It comes with ErrMalformed.
	ErrComposite = errors.New("composite checksum of a multipart object")
)

// maxParts is the most parts that a multipart object has in S3.
const maxParts = 10000

// Sum is a checksum together with its algorithm. Sums are values: they are
// copied, compared with ==, and used as map keys. The zero Sum is no checksum;
// see [Sum.IsZero].
type Sum struct {
	alg Algorithm
	// raw holds alg.Size() bytes, the first is the most significant; the rest
	// is zero, or == would not mean equality.
	raw [maxSize]byte
}

// NewSum returns the sum with the given bytes, most significant first. raw is
// copied. It fails if raw is not alg.Size() bytes long (ErrMalformed) or alg is
// not valid (ErrUnknownAlgorithm).
func NewSum(alg Algorithm, raw []byte) (Sum, error) {
	if !alg.Valid() {
		return Sum{}, fmt.Errorf("%w %v", ErrUnknownAlgorithm, alg)
	}
	if len(raw) != alg.Size() {
		return Sum{}, fmt.Errorf("%w: %v has %d bytes, not %d", ErrMalformed, alg, alg.Size(), len(raw))
	}
	s := Sum{alg: alg}
	copy(s.raw[:], raw)
	return s, nil
}

func sum32(alg Algorithm, v uint32) Sum {
	s := Sum{alg: alg}
	binary.BigEndian.PutUint32(s.raw[:], v)
	return s
}

func sum64(alg Algorithm, v uint64) Sum {
	s := Sum{alg: alg}
	binary.BigEndian.PutUint64(s.raw[:], v)
	return s
}

// Empty returns the checksum of the empty string; the zero Sum for an invalid
// algorithm. On a PUT of at least one byte a declared checksum with this value
// was taken over the empty HTTP body instead of the object's bytes.
func Empty(alg Algorithm) Sum {
	if !alg.Valid() {
		return Sum{}
	}
	return Sum{alg: alg, raw: algorithms[alg].empty}
}

// Decode reads the text form of S3 headers: padded standard base64 of the
// checksum's bytes, most significant first. It takes exactly what
// [Sum.Base64] writes; wrong lengths, the URL alphabet, missing padding, set
// padding bits, white space and line breaks are ErrMalformed. A composite value
// is ErrMalformed and ErrComposite.
func Decode(alg Algorithm, text string) (Sum, error) {
	s, err := decode(alg, text)
	if err == nil {
		return s, nil
	}
	if c, cerr := ParseComposite(alg, text); cerr == nil {
		return Sum{}, fmt.Errorf("%w: %w over %d parts where the checksum of the bytes is needed",
			ErrMalformed, ErrComposite, c.Parts)
	}
	return Sum{}, err
}

func decode(alg Algorithm, text string) (Sum, error) {
	if !alg.Valid() {
		return Sum{}, fmt.Errorf("%w %v", ErrUnknownAlgorithm, alg)
	}
	size := alg.Size()
	if want := base64.StdEncoding.EncodedLen(size); len(text) != want {
		return Sum{}, fmt.Errorf("%w: the base64 of %v has %d characters, not %d", ErrMalformed, alg, want, len(text))
	}
	// The length fits, hence so does the buffer: base64 of maxSize bytes, rounded
	// up to whole groups.
	var buf [maxSize + 3]byte
	n, err := base64.StdEncoding.Decode(buf[:], []byte(text))
	if err != nil || n != size {
		return Sum{}, fmt.Errorf("%w: not base64 of the %d bytes of %v", ErrMalformed, size, alg)
	}
	s := Sum{alg: alg}
	copy(s.raw[:], buf[:size])
	// The decoder ignores padding bits and line breaks; two texts for one value
	// would let a signed header and a stored one differ.
	if s.Base64() != text {
		return Sum{}, fmt.Errorf("%w: not the canonical base64 of %v", ErrMalformed, alg)
	}
	return s, nil
}

// IsZero reports whether s is the zero Sum, which is no checksum at all. (A CRC
// with the value 0 is not zero in this sense.)
func (s Sum) IsZero() bool { return s == Sum{} }

// Algorithm returns the algorithm; 0 for the zero Sum.
func (s Sum) Algorithm() Algorithm { return s.alg }

// IsEmpty reports whether s is the checksum of the empty string.
func (s Sum) IsEmpty() bool { return s.alg.Valid() && s == Empty(s.alg) }

// Append appends the checksum's bytes, most significant first, and returns the
// extended slice.
func (s Sum) Append(dst []byte) []byte { return append(dst, s.raw[:s.alg.Size()]...) }

// AppendBase64 appends the text form that S3 headers carry.
func (s Sum) AppendBase64(dst []byte) []byte {
	return base64.StdEncoding.AppendEncode(dst, s.raw[:s.alg.Size()])
}

// Base64 returns the text form that S3 headers carry; "" for the zero Sum.
func (s Sum) Base64() string { return base64.StdEncoding.EncodeToString(s.raw[:s.alg.Size()]) }

// Hex returns the bytes as lower-case hexadecimal digits, the form that MD5 has
// in an ETag and SHA-256 in x-amz-content-sha256.
func (s Sum) Hex() string { return hex.EncodeToString(s.raw[:s.alg.Size()]) }

// String returns "ALGORITHM:base64", for people to read.
func (s Sum) String() string {
	if s.IsZero() {
		return "none"
	}
	return s.alg.String() + ":" + s.Base64()
}

// CompositeSum is the checksum of a multipart object that was taken over its
// parts' checksums, not over its bytes. Servers answer with such values
// (x-amz-checksum-type: COMPOSITE); the bytes of the object alone neither prove
// nor refute one.
type CompositeSum struct {
	// Sum is the checksum of the concatenated checksums of the parts.
	Sum Sum
	// Parts is their number, 1 to 10000.
	Parts int
}

// ParseComposite reads the text form of a composite checksum: base64, a hyphen,
// and the number of parts in decimal digits. The error wraps ErrMalformed or
// ErrUnknownAlgorithm.
func ParseComposite(alg Algorithm, text string) (CompositeSum, error) {
	value, count, ok := strings.Cut(text, "-")
	if !ok {
		return CompositeSum{}, fmt.Errorf("%w: a composite value ends in a hyphen and the number of parts", ErrMalformed)
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || n > maxParts || strconv.Itoa(n) != count {
		return CompositeSum{}, fmt.Errorf("%w: number of parts %q is not one of 1 to %d", ErrMalformed, clip(count), maxParts)
	}
	s, err := decode(alg, value)
	if err != nil {
		return CompositeSum{}, err
	}
	return CompositeSum{Sum: s, Parts: n}, nil
}

// String returns the text form that S3 headers carry.
func (c CompositeSum) String() string { return c.Sum.Base64() + "-" + strconv.Itoa(c.Parts) }
