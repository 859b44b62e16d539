// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// defaultAlgorithm is that of checksums over the region that nobody has chosen: the
// one that known clients send, and cheap.
const defaultAlgorithm = checksum.CRC64NVME

// integrity is what one request's checksums are held to.
type integrity struct {
	policy checksum.Policy // the server's, with what the request asks for

	// alg is of the region's checksum.
	alg checksum.Algorithm
	// sum is computed over the bytes that the fabric moves, in their order; nil if
	// there is no need. A GET's belongs to the transfer, a PUT's to its body.
	sum    checksum.Hash
	blocks *checksum.Blocks // sum, if it was asked for block by block

	// Of a PUT. declared is what the request says of its bytes; of these, the server's
	// handler verifies some and we the others, which are ours. list is the declared block-wise
	// form.
	declared []checksum.Sum
	ours     []checksum.Sum
	verify   *checksum.Verifier // of ours
	list     checksum.List
	// trailer is the diverted request's, and announced is what it will have.
	trailer   http.Header
	announced []checksum.Hash
}

// integrity reads what the request asks for and declares, and refuses what cannot be
// had.
func (q *request) integrity(d rdmaio.Descriptor) (*integrity, *Error) {
	r, policy := q.r, q.p.cfg.ChecksumGet
	if q.op.stores() {
		policy = q.p.cfg.ChecksumPut
	}
	if e := checkControlSigned(r); e != nil {
		return nil, e
	}
	ask, err := checksum.ParseRegionRequest(r.Header)
	switch {
	case errors.Is(err, checksum.ErrUnknownAlgorithm):
		return nil, declined(reasonChecksum, "The checksum that is asked for cannot be computed: %v. Use plain HTTP, or another algorithm.", err)
	case err != nil:
		return nil, invalidRequest(reasonChecksum, "%v.", err)
	}
	in := &integrity{policy: policy.With(ask.Policy)}
	if in.policy.Envelope() {
		if e := checkEnvelope(r); e != nil {
			return nil, e
		}
	}
	if q.op.stores() {
		if in.declared, err = checksum.FromHeader(r.Header); err != nil {
			return nil, declaredError(err)
		}
		for _, s := range in.declared {
			if s.IsEmpty() {
				return nil, badDigest("%s is the checksum of an empty body, but the window has %d bytes: an SDK has added its default. Declare the checksum of the memory, or have the SDK compute checksums only when required.", s.Algorithm().Header(), d.Size)
			}
		}
		if err := in.verifyAlso(q.unverified(in.declared)...); err != nil {
			return nil, declaredError(err)
		}
	} else if ask.Blocks != "" {
		return nil, invalidRequest(reasonChecksum, "A GET declares no checksums: %s does not belong there.", checksum.HeaderBlocks)
	}
	if e := in.compute(ask, int64(d.Size)); e != nil {
		return nil, e
	}
	return in, nil
}

func declaredError(err error) *Error {
	if errors.Is(err, checksum.ErrUnknownAlgorithm) {
		return declined(reasonChecksum, "A declared checksum cannot be verified: %v. Use plain HTTP, or another algorithm.", err)
	}
	return &Error{http.StatusBadRequest, "InvalidDigest", err.Error(), reasonChecksum, false}
}

// compute decides what has to be computed over the bytes of a window of size bytes.
func (in *integrity) compute(ask checksum.RegionRequest, size int64) *Error {
	if !in.policy.Region() {
		return nil
	}
	alg := ask.Algorithm
	switch {
	case alg != 0: // the client's choice
	case len(in.declared) > 0 && (ask.Block == 0 || in.declared[0].Algorithm().Combinable()):
		alg = in.declared[0].Algorithm()
	default:
		alg = defaultAlgorithm
	}
	in.alg = alg
	var err error
	switch {
	case ask.Block > 0:
		if in.blocks, err = checksum.NewBlocks(alg, ask.Block); err == nil {
			in.sum = in.blocks
		}
		if err == nil && ask.Blocks != "" {
			in.list, err = checksum.ParseList(alg, ask.Block, size, ask.Blocks)
		}
	case in.declaredOf(alg).IsZero(): // else it is verified, and thereby known
		in.sum, err = checksum.New(alg)
	}
	if err != nil {
		return invalidRequest(reasonChecksum, "%s: %v.", checksum.HeaderBlocks, err)
	}
	return nil
}

// declaredOf is the checksum of alg that the request declares, or the zero Sum.
func (in *integrity) declaredOf(alg checksum.Algorithm) checksum.Sum {
	for _, s := range in.declared {
		if s.Algorithm() == alg {
			return s
		}
	}
	return checksum.Sum{}
}

// verifyAlso has sums verified besides those that are already. Before the first Write.
func (in *integrity) verifyAlso(sums ...checksum.Sum) (err error) {
	in.ours = append(in.ours, sums...)
	in.verify, err = checksum.NewVerifier(in.ours...)
	return err
}

// announce has the checksums computed whose headers are keys of trailer, and put there
// when all bytes have arrived. Before the first Write.
func (in *integrity) announce(trailer http.Header) error {
	in.trailer = trailer
	for _, alg := range checksum.Algorithms() {
		if _, ok := trailer[http.CanonicalHeaderKey(alg.Header())]; ok {
			h, err := checksum.New(alg)
			if err != nil {
				return err
			}
			in.announced = append(in.announced, h)
		}
	}
	return nil
}

// idle tells whether there is nothing to compute over a PUT's bytes.
func (in *integrity) idle() bool {
	return len(in.ours) == 0 && in.sum == nil && len(in.announced) == 0
}

// Write adds bytes of a PUT, in order. It implements io.Writer and never fails.
func (in *integrity) Write(p []byte) (int, error) {
	in.verify.Write(p)
	if in.sum != nil {
		in.sum.Write(p)
	}
	for _, h := range in.announced {
		h.Write(p)
	}
	return len(p), nil
}

// arrived compares, when Write has had all bytes of a PUT, with what was declared, and
// fills in the trailer.
func (in *integrity) arrived() error {
	for _, h := range in.announced {
		in.trailer.Set(h.Algorithm().Header(), h.Sum().Base64())
	}
	if err := in.verify.Verify(); err != nil {
		return err
	}
	if len(in.list.Sums) > 0 {
		return in.list.Compare(in.blocks.List())
	}
	return nil
}

// contradicts compares the checksum of what was sent with what the server's handler
// says of the object, where the handler says it of the same bytes and in the same
// algorithm.
func (in *integrity) contradicts(h http.Header, status int) error {
	if in.sum == nil || status != http.StatusOK || strings.EqualFold(h.Get("x-amz-checksum-type"), "COMPOSITE") {
		return nil
	}
	said, err := checksum.Decode(in.sum.Algorithm(), h.Get(in.sum.Algorithm().Header()))
	if err != nil { // none, or one of the parts
		return nil
	}
	if got := in.sum.Sum(); got != said {
		return &checksum.MismatchError{Want: said, Got: got}
	}
	return nil
}

// prove puts into h, an answer that is a success, what is known of the bytes.
func (in *integrity) prove(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, regionPrefix) {
			delete(h, name) // a handler's that repeats the request's
		}
	}
	p := checksum.RegionProof{Policy: in.policy}
	switch {
	case !in.policy.Region():
	case in.sum != nil:
		p.Sum = in.sum.Sum()
		if in.blocks != nil {
			p.List = in.blocks.List()
		}
	default:
		p.Sum = in.declaredOf(in.alg)
	}
	p.Set(h)
}

var regionPrefix = http.CanonicalHeaderKey(checksum.RegionPrefix)

// unverified are those of the declared checksums that the server's handler does not
// verify: all, or those that servers do not know.
func (q *request) unverified(declared []checksum.Sum) []checksum.Sum {
	v, ok := q.s.(ChecksumVerifier)
	if !ok || !v.VerifiesChecksums() {
		return declared
	}
	var left []checksum.Sum
	for _, s := range declared {
		// One of S3's five, under its name, beside no other of them and no word of another,
		// or Content-MD5. (MinIO, told of an algorithm that the value is not of, looks at
		// neither.)
		var known bool
		switch s.Algorithm() {
		case checksum.XXH64:
		case checksum.MD5:
			known = q.r.Header.Get("Content-MD5") != ""
		default:
			said := q.r.Header.Values("x-amz-checksum-algorithm")
			known = len(said) == 0 || len(said) == 1 && strings.EqualFold(said[0], s.Algorithm().String())
			for _, other := range declared {
				if a := other.Algorithm(); a != s.Algorithm() && a != checksum.MD5 && a != checksum.XXH64 {
					known = false
				}
			}
		}
		if !known {
			left = append(left, s)
		}
	}
	return left
}

// checkControlSigned refuses a request for checksums that the signature does not
// cover: whoever takes one away, or makes it ask for less, must be noticed.
func checkControlSigned(r *http.Request) *Error {
	for name := range r.Header {
		if strings.HasPrefix(name, regionPrefix) && !signedHeader(r, name) {
			return accessDenied(reasonUnsigned, "The header %s must be among the signed headers (Signature Version 4).", strings.ToLower(name))
		}
	}
	return nil
}

// checkEnvelope holds a request to the envelope policy: the signature must cover
// every header that says which bytes are meant, where they are and what is stored
// with them, and that there is no body.
func checkEnvelope(r *http.Request) *Error {
	for name := range r.Header {
		if envelopeHeader(name) && !signedHeader(r, name) {
			return accessDenied(reasonEnvelope, "The checksum policy wants the header %s to be among the signed headers (Signature Version 4).", strings.ToLower(name))
		}
	}
	empty := checksum.Empty(checksum.SHA256).Hex()
	if got := r.Header.Values("x-amz-content-sha256"); len(got) != 1 || got[0] != empty {
		return invalidRequest(reasonEnvelope, "The checksum policy wants a signed x-amz-content-sha256 of the empty body, %s, in the header, not UNSIGNED-PAYLOAD.", empty)
	}
	return nil
}

// envelopeHeader tells whether the header of this canonical name belongs to what the
// envelope policy protects.
func envelopeHeader(name string) bool {
	switch name {
	case "Range", "Expires", "Cache-Control":
		return true
	case "Content-Length": // its value is 0, which the payload's hash says too
		return false
	}
	for _, p := range [...]string{"X-Amz-", "X-Rdma-", "Content-", "If-"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// sumMismatch is the answer to a GET whose bytes are not the stored object's.
func sumMismatch(err error) *Error {
	return &Error{http.StatusInternalServerError, CodeChecksumMismatch,
		fmt.Sprintf("The bytes that were written to the client's memory are not those that were stored: %v.", err), reasonChecksum, false}
}
