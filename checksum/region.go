// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// The headers by which a client and a server speak about checksums over the memory
// region. They are no x-amz-checksum-* headers, because SDKs compare those of an
// answer with its body, which is empty here. The first four are names of requests and
// answers alike; the checksum itself is in [Algorithm.RegionHeader].
const (
	HeaderPolicy    = "x-amz-rdma-checksum-policy"
	HeaderAlgorithm = "x-amz-rdma-checksum-algorithm"
	HeaderBlock     = "x-amz-rdma-checksum-block"
	HeaderBlocks    = "x-amz-rdma-checksum-blocks"

	// RegionPrefix begins all of them.
	RegionPrefix = "x-amz-rdma-checksum-"
)

// RegionHeader returns the lower-case name of the header that carries the checksum of
// the region, "x-amz-rdma-checksum-crc64nvme" and so on: the algorithm's S3 name; ""
// for an invalid algorithm.
func (a Algorithm) RegionHeader() string {
	if !a.Valid() {
		return ""
	}
	return RegionPrefix + strings.ToLower(algorithms[a].name)
}

// ErrRegionRequest is the error for headers of a request that contradict each other
// or cannot be read. It is not about an algorithm that is not implemented, which is
// ErrUnknownAlgorithm.
var ErrRegionRequest = errors.New("checksum request cannot be understood")

// RegionRequest is what a request asks for. The zero value would ask for the region;
// one that asks for nothing has PolicyNone and no more.
type RegionRequest struct {
	// Policy is the least that is to be done; PolicyNone asks for no more than the
	// server does by itself.
	Policy Policy
	// Algorithm is of the checksum that the server computes; 0 leaves it to the
	// server.
	Algorithm Algorithm
	// Block, if not 0, asks for the block-wise form with blocks of so many bytes.
	Block int64
	// Blocks, on a PUT, are the blocks' checksums, in the text form of a List of
	// Algorithm and Block; "" declares none.
	Blocks string
}

// ParseRegionRequest reads a request's headers. One that is there twice, a size that
// is no plain decimal number in MinBlock to MaxBlock, a list without its block size
// or algorithm are ErrRegionRequest; an algorithm that is not implemented, or no CRC
// where blocks are asked for, is ErrUnknownAlgorithm. Whoever names an algorithm or a
// block asks for the region, whether or not there is a policy.
func ParseRegionRequest(h http.Header) (RegionRequest, error) {
	q := RegionRequest{Policy: PolicyNone}
	value := func(name string) (string, error) {
		switch v := h.Values(name); len(v) {
		case 0:
			return "", nil
		case 1:
			if v[0] == "" {
				return "", fmt.Errorf("%w: header %s is empty", ErrRegionRequest, name)
			}
			return v[0], nil
		default:
			return "", fmt.Errorf("%w: %d headers %s", ErrRegionRequest, len(v), name)
		}
	}
	policy, err1 := value(HeaderPolicy)
	alg, err2 := value(HeaderAlgorithm)
	block, err3 := value(HeaderBlock)
	var err4 error
	q.Blocks, err4 = value(HeaderBlocks)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return RegionRequest{}, err
	}
	var err error
	if policy != "" {
		if q.Policy, err = ParsePolicy(policy); err != nil {
			return RegionRequest{}, fmt.Errorf("%w: header %s: %w", ErrRegionRequest, HeaderPolicy, err)
		}
	}
	if alg != "" {
		if q.Algorithm, err = ParseAlgorithm(alg); err != nil {
			return RegionRequest{}, fmt.Errorf("header %s: %w", HeaderAlgorithm, err)
		}
	}
	if block != "" {
		if q.Block, err = parseBlock(block, MaxBlock); err != nil {
			return RegionRequest{}, err
		}
		if q.Algorithm.Valid() && !q.Algorithm.Combinable() {
			return RegionRequest{}, fmt.Errorf("header %s: block-wise checksums need a CRC: %w %v", HeaderAlgorithm, ErrUnknownAlgorithm, q.Algorithm)
		}
	}
	if q.Blocks != "" && (q.Block == 0 || q.Algorithm == 0) {
		return RegionRequest{}, fmt.Errorf("%w: %s without %s and %s", ErrRegionRequest, HeaderBlocks, HeaderBlock, HeaderAlgorithm)
	}
	if q.Algorithm != 0 || q.Block != 0 {
		q.Policy = q.Policy.With(PolicyRegion)
	}
	return q, nil
}

func parseBlock(s string, most int64) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < MinBlock || n > most || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%w: header %s is no number of bytes from %d to %d", ErrRegionRequest, HeaderBlock, MinBlock, most)
	}
	return n, nil
}

// Set puts the request into h, and takes out what h had of it.
func (q RegionRequest) Set(h http.Header) {
	set := func(name, value string, is bool) {
		h.Del(name)
		if is {
			h.Set(name, value)
		}
	}
	set(HeaderPolicy, q.Policy.String(), q.Policy != PolicyNone)
	set(HeaderAlgorithm, q.Algorithm.String(), q.Algorithm.Valid())
	set(HeaderBlock, strconv.FormatInt(q.Block, 10), q.Block != 0)
	set(HeaderBlocks, q.Blocks, q.Blocks != "")
}

// RegionProof is what the answer to a transfer says about its bytes.
type RegionProof struct {
	// Policy is what the server has done, which is at least what was asked for.
	Policy Policy
	// Sum is the checksum of the bytes that moved; the zero Sum if the policy has no
	// region.
	Sum Sum
	// List is the block-wise form, if it was asked for and there are any bytes. Its
	// block size is the one asked for, times a power of two (see [Blocks]).
	List List
}

// Set puts the proof into h.
func (p RegionProof) Set(h http.Header) {
	h.Set(HeaderPolicy, p.Policy.String())
	if !p.Sum.IsZero() {
		h.Set(p.Sum.alg.RegionHeader(), p.Sum.Base64())
	}
	if len(p.List.Sums) > 0 {
		h.Set(HeaderBlock, strconv.FormatInt(p.List.Block, 10))
		h.Set(HeaderBlocks, p.List.Text())
	}
}

// ParseRegionProof reads the headers of an answer to a transfer of n bytes. found is
// false if it has none of them: the server knows nothing of region checksums. The
// errors wrap ErrMalformed or ErrUnknownPolicy: values that cannot be read, several
// checksums, a list that is not of the same bytes as the checksum.
func ParseRegionProof(h http.Header, n int64) (p RegionProof, found bool, err error) {
	if len(h.Values(HeaderPolicy)) == 0 {
		return RegionProof{Policy: PolicyNone}, false, nil
	}
	fail := func(name string, err error) (RegionProof, bool, error) {
		return RegionProof{}, true, fmt.Errorf("header %s: %w", name, err)
	}
	if p.Policy, err = ParsePolicy(h.Get(HeaderPolicy)); err != nil {
		return fail(HeaderPolicy, err)
	}
	for a := CRC32; a < algorithmEnd; a++ {
		switch values := h.Values(a.RegionHeader()); {
		case len(values) == 0:
		case len(values) > 1 || !p.Sum.IsZero():
			return fail(a.RegionHeader(), fmt.Errorf("%w: more than one checksum of the region", ErrMalformed))
		default:
			if p.Sum, err = Decode(a, values[0]); err != nil {
				return fail(a.RegionHeader(), err)
			}
		}
	}
	if p.Policy.Region() != !p.Sum.IsZero() {
		return fail(HeaderPolicy, fmt.Errorf("%w: policy %v, and the checksum of the region is %v", ErrMalformed, p.Policy, p.Sum))
	}
	text := h.Get(HeaderBlocks)
	if text == "" {
		return p, true, nil
	}
	block, err := strconv.ParseInt(h.Get(HeaderBlock), 10, 64)
	if err != nil || block < MinBlock {
		return fail(HeaderBlock, fmt.Errorf("%w: no number of bytes", ErrMalformed))
	}
	if p.List, err = ParseList(p.Sum.alg, block, n, text); err != nil {
		return fail(HeaderBlocks, err)
	}
	if p.List.Whole() != p.Sum {
		return fail(HeaderBlocks, fmt.Errorf("%w: the blocks' checksums do not make up that of the region", ErrMalformed))
	}
	return p, true, nil
}
