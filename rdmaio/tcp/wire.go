// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// What goes over a lane once it has been joined. All integers are little-endian,
// all bytes without a name are zero and checked to be zero.
//
// Initiator to target, a request, 32 bytes:
//
//	0  op     u8   1 WRITE, 2 READ
//	4  length u32  1..maxFrame
//	8  id     u64  chosen by the initiator, unique among those outstanding on the lane
//	16 addr   u64  first byte in the target's address space
//	24 rkey   u32
//
// and, after a WRITE, length bytes of payload.
//
// Target to initiator, an answer, 16 bytes:
//
//	0  op     u8   1 DONE, 2 DATA
//	1  status u8   DONE: what became of the request. DATA: 0
//	4  length u32  DONE: 0. DATA: the request's length
//	8  id     u64  the request's
//
// and, after a DATA, length bytes of payload. Every request is answered by one
// DONE; before that of a READ whose key and bounds were good comes one DATA. The
// DONE behind the payload is what makes it valid: a region that is withdrawn while
// it is being sent has its remaining bytes replaced by zeros, and a DONE that says
// so.
const (
	requestSize = 32
	answerSize  = 16

	// maxFrame is the largest length that either side accepts. frameSize is how
	// long the initiator makes its frames. By BenchmarkProcesses 128 KiB cost a fifth
	// more CPU time than 512 KiB, and 1 MiB no less, while links take turns and a
	// cancelled one waits by the frame.
	maxFrame  = 1 << 20
	frameSize = 512 << 10

	opWrite = 1
	opRead  = 2

	opDone = 1
	opData = 2
)

// status is a target's verdict on one request.
type status uint8

const (
	statusOK          status = 0
	statusStaleKey    status = 1 // no such key, or not for this direction
	statusOutOfBounds status = 2 // not inside the key's region
	statusEnd         status = 3 // the first value that is not in use
)

// err translates a verdict; nil for statusOK.
func (s status) err() error {
	switch s {
	case statusOK:
		return nil
	case statusStaleKey:
		return fmt.Errorf("target refused the transfer: %w", rdmaio.ErrStaleKey)
	case statusOutOfBounds:
		return fmt.Errorf("target refused the transfer: %w", rdmaio.ErrOutOfBounds)
	}
	return fmt.Errorf("target answered with status %d: %w", s, errProtocol)
}

// errProtocol is the mark of a peer that does not keep to the frames above. It is
// always wrapped together with ErrPeerGone, since the session ends with it.
var errProtocol = errors.New("peer broke the frame protocol")

// request is the parsed form of a request header.
type request struct {
	op     uint8
	length uint32
	id     uint64
	addr   uint64
	rkey   uint32
}

func (r request) put(b *[requestSize]byte) {
	*b = [requestSize]byte{}
	b[0] = r.op
	binary.LittleEndian.PutUint32(b[4:], r.length)
	binary.LittleEndian.PutUint64(b[8:], r.id)
	binary.LittleEndian.PutUint64(b[16:], r.addr)
	binary.LittleEndian.PutUint32(b[24:], r.rkey)
}

// parseRequest reads a request header. Errors wrap errProtocol: there is no telling
// where the next frame starts.
func parseRequest(b *[requestSize]byte) (request, error) {
	r := request{
		op:     b[0],
		length: binary.LittleEndian.Uint32(b[4:]),
		id:     binary.LittleEndian.Uint64(b[8:]),
		addr:   binary.LittleEndian.Uint64(b[16:]),
		rkey:   binary.LittleEndian.Uint32(b[24:]),
	}
	switch {
	case r.op != opWrite && r.op != opRead:
		return request{}, fmt.Errorf("unknown request %d: %w", r.op, errProtocol)
	case r.length == 0 || r.length > maxFrame:
		return request{}, fmt.Errorf("request of %d bytes, want 1 to %d: %w", r.length, maxFrame, errProtocol)
	case b[1]|b[2]|b[3]|b[28]|b[29]|b[30]|b[31] != 0:
		return request{}, fmt.Errorf("request with reserved bytes set: %w", errProtocol)
	}
	return r, nil
}

// answer is the parsed form of an answer header.
type answer struct {
	op     uint8
	status status
	length uint32
	id     uint64
}

func (a answer) put(b *[answerSize]byte) {
	*b = [answerSize]byte{}
	b[0] = a.op
	b[1] = uint8(a.status)
	binary.LittleEndian.PutUint32(b[4:], a.length)
	binary.LittleEndian.PutUint64(b[8:], a.id)
}

// parseAnswer reads an answer header. Whether its id and length fit an outstanding
// request is for the lane to check. Errors wrap errProtocol.
func parseAnswer(b *[answerSize]byte) (answer, error) {
	a := answer{
		op:     b[0],
		status: status(b[1]),
		length: binary.LittleEndian.Uint32(b[4:]),
		id:     binary.LittleEndian.Uint64(b[8:]),
	}
	switch {
	case a.op != opDone && a.op != opData:
		return answer{}, fmt.Errorf("unknown answer %d: %w", a.op, errProtocol)
	case a.op == opDone && (a.length != 0 || a.status >= statusEnd):
		return answer{}, fmt.Errorf("DONE of status %d with %d bytes: %w", a.status, a.length, errProtocol)
	case a.op == opData && (a.length == 0 || a.length > maxFrame || a.status != 0):
		return answer{}, fmt.Errorf("DATA of %d bytes, want 1 to %d: %w", a.length, maxFrame, errProtocol)
	case b[2]|b[3] != 0:
		return answer{}, fmt.Errorf("answer with reserved bytes set: %w", errProtocol)
	}
	return a, nil
}
