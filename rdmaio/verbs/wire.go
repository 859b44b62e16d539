// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// A connect exchanges two hipObject tokens of 88 hex digits, of which RC needs the
// queue pair's number, the GID, the LID and the port. The three fields that name
// memory have no use there. Ours say in them that we have a second, small queue pair
// for messages, and what has to be agreed upon:
//
//	addr  "s3rdmarc", as a little-endian number
//	rkey  the message queue pair's number
//	len   bits 0-23 its first packet number, 24-31 the path MTU's code, 32-39 how many
//	      READs may be outstanding towards the sender
//
// Peers that don't know this leave them zero, or whatever, and we fall back to what
// every peer takes: one READ, our own MTU, and the end of the session where a transfer
// is refused.
//
// A message is the immediate value of an empty SEND: bits 0-23 a queue pair's number,
// 24-31 what is said.
const extensionMark = uint64('s') | '3'<<8 | 'r'<<16 | 'd'<<24 | 'm'<<32 | 'a'<<40 | 'r'<<48 | 'c'<<56

// message is what the two ends of a session tell each other.
type message uint32

const (
	// msgRearm, initiator to target: the data connection has broken (a transfer was
	// refused, or cancelled). Destroy your end, make another for this queue pair of mine,
	// and say which. From the answer on, no packet sent before can have an effect.
	msgRearm message = 1
	// msgReady, target to initiator: done, with this queue pair.
	msgReady message = 2
	// msgBye, either way: the session is over.
	msgBye message = 3
)

const qpnMask, psnMask = 1<<24 - 1, 1<<24 - 1

func encodeMessage(m message, qpn uint32) uint32 { return uint32(m)<<24 | qpn&qpnMask }

func decodeMessage(imm uint32) (message, uint32) { return message(imm >> 24), imm & qpnMask }

// rearmPSN is the first packet number that the initiator's new queue pair sends. Both
// ends know the session, nobody else does.
func rearmPSN(id rdmaio.SessionID, qpn uint32) uint32 {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint32(id[:], qpn))
	return binary.LittleEndian.Uint32(sum[:]) & psnMask
}

// newPSN returns a random first packet number, not 0.
func newPSN() uint32 { return 1 + rand.Uint32N(psnMask) }

// identity is one end of a connection, as it is told to the other.
type identity struct {
	qpn uint32
	psn uint32 // of the data connection
	gid [16]byte
	lid uint16
	// port is ours, which the other end has no use for.
	port uint8

	// extended says that the fields below are known.
	extended bool
	ctlQPN   uint32
	ctlPSN   uint32
	mtu      int32 // code, 1 to 5
	reads    uint8
}

// token is the 88 hex digits. psn travels beside it.
func (i identity) token() (string, error) {
	d := rdmaio.Descriptor{
		Transport: rdmaio.TransportRC, QPN: i.qpn, GID: i.gid, GIDPresent: i.gid != [16]byte{},
		LID: i.lid, Port: i.port,
	}
	if i.extended {
		d.Addr = extensionMark
		d.RKey = i.ctlQPN
		d.Size = uint64(i.ctlPSN&psnMask) | uint64(i.mtu)<<24 | uint64(i.reads)<<32
	}
	return d.Encode(rdmaio.EncodingHipObject)
}

// parseIdentity reads a token and the number beside it. Errors wrap ErrMalformed or
// ErrUnsupported, and never show the text.
func parseIdentity(token string, psn uint32) (identity, error) {
	const hexDigits = 88
	if len(token) != hexDigits {
		return identity{}, fmt.Errorf("connect token of %d characters, want %d hex digits: %w", len(token), hexDigits, rdmaio.ErrMalformed)
	}
	d, enc, err := rdmaio.Parse(token, rdmaio.ParseOptions{})
	if err != nil {
		return identity{}, fmt.Errorf("connect token: %w", err)
	}
	if enc != rdmaio.EncodingHipObject {
		return identity{}, fmt.Errorf("connect token in the %s form, want 88 hex digits: %w", enc, rdmaio.ErrMalformed)
	}
	if d.Transport != rdmaio.TransportRC {
		return identity{}, fmt.Errorf("connect token for the transport %s: %w", d.Transport, rdmaio.ErrUnsupported)
	}
	if psn == 0 || psn > psnMask {
		return identity{}, fmt.Errorf("first packet number is not 1 to %d: %w", psnMask, rdmaio.ErrMalformed)
	}
	if d.QPN == 0 || !d.GIDPresent {
		return identity{}, fmt.Errorf("connect token without a queue pair or a GID: %w", rdmaio.ErrMalformed)
	}
	i := identity{qpn: d.QPN, psn: psn, gid: d.GID, lid: d.LID, port: d.Port}
	if d.Addr != extensionMark {
		return i, nil
	}
	i.extended = true
	i.ctlQPN = d.RKey
	i.ctlPSN = uint32(d.Size) & psnMask
	i.mtu = int32(d.Size >> 24 & 0xff)
	i.reads = uint8(d.Size >> 32)
	if i.ctlQPN == 0 || i.ctlQPN >= 1<<24 || i.ctlPSN == 0 || i.mtu < 1 || i.mtu > 5 || i.reads == 0 || d.Size>>40 != 0 {
		return identity{}, fmt.Errorf("connect token whose extension contradicts itself: %w", rdmaio.ErrMalformed)
	}
	return i, nil
}
