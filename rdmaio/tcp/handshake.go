// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

// How a lane is joined to its session. The initiator listens; on each connection it
// speaks first:
//
//	greeting, 32 bytes: magic 8, version u8, zero 7, initiator's nonce 16
//	join,     80 bytes: magic 8, session 16, lane u8, lanes u8, zero 6,
//	                    target's nonce 16, proof 32
//	verdict,  40 bytes: status u8, zero 7, proof 32
//
// A proof is HMAC-SHA256 under the one-time secret of the welcome over which side
// speaks, both nonces, the session, the lane and the status. So the secret is never
// sent, a recorded join is worth nothing on another connection, every further lane
// is held to the same secret as the first, and the target knows that it reached the
// initiator that welcomed it before it serves a frame. Each lane number is taken
// once; the session starts when the last one is.
const (
	greetingSize = 32
	joinSize     = 80
	verdictSize  = 40

	nonceSize = 16

	wireVersion = 1

	// maxLanes is the most lanes of one session that either side accepts.
	maxLanes = 16
)

const magic = "s3rdmtcp"

// verdict is an initiator's answer to a join.
type verdict uint8

const (
	verdictJoined    verdict = 0
	verdictNoSession verdict = 1 // unknown, timed out, complete, or the wrong proof
	verdictRefused   verdict = 2 // this address may not join
)

type greeting struct {
	version uint8
	nonce   [nonceSize]byte
}

func newGreeting() greeting {
	g := greeting{version: wireVersion}
	rand.Read(g.nonce[:])
	return g
}

func (g greeting) encode() (b [greetingSize]byte) {
	copy(b[:], magic)
	b[8] = g.version
	copy(b[16:], g.nonce[:])
	return b
}

// parseGreeting reads a greeting. ErrMalformed if no initiator of ours wrote it,
// ErrUnsupported if it is of another version.
func parseGreeting(b *[greetingSize]byte) (greeting, error) {
	if string(b[:8]) != magic {
		return greeting{}, fmt.Errorf("whoever listens there does not speak s3rdma's tcp transport: %w", rdmaio.ErrMalformed)
	}
	if b[8] != wireVersion {
		return greeting{}, fmt.Errorf("initiator speaks version %d, we %d: %w", b[8], wireVersion, rdmaio.ErrUnsupported)
	}
	g := greeting{version: b[8]}
	copy(g.nonce[:], b[16:])
	return g, nil
}

type join struct {
	session rdmaio.SessionID
	lane    uint8
	lanes   uint8
	nonce   [nonceSize]byte
	proof   [sha256.Size]byte
}

func (j join) encode() (b [joinSize]byte) {
	copy(b[:], magic)
	copy(b[8:], j.session[:])
	b[24] = j.lane
	b[25] = j.lanes
	copy(b[32:], j.nonce[:])
	copy(b[48:], j.proof[:])
	return b
}

// parseJoin reads a join. Errors wrap ErrMalformed.
func parseJoin(b *[joinSize]byte) (join, error) {
	j := join{lane: b[24], lanes: b[25]}
	copy(j.session[:], b[8:])
	copy(j.nonce[:], b[32:])
	copy(j.proof[:], b[48:])
	switch {
	case string(b[:8]) != magic:
		return join{}, fmt.Errorf("not a join: %w", rdmaio.ErrMalformed)
	case j.lanes == 0 || j.lanes > maxLanes || j.lane >= j.lanes:
		return join{}, fmt.Errorf("join of lane %d of %d, want at most %d lanes: %w", j.lane, j.lanes, maxLanes, rdmaio.ErrMalformed)
	case j.session.IsZero():
		return join{}, fmt.Errorf("join of no session: %w", rdmaio.ErrMalformed)
	case b[26]|b[27]|b[28]|b[29]|b[30]|b[31] != 0:
		return join{}, fmt.Errorf("join with reserved bytes set: %w", rdmaio.ErrMalformed)
	}
	return j, nil
}

// The two directions of a proof: one can't be played back as the other.
const (
	byTarget    = 'T'
	byInitiator = 'I'
)

// prove computes the proof of one side. v is 0 in the target's.
func prove(secret []byte, by byte, g greeting, j join, v verdict) (p [sha256.Size]byte) {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte{'s', '3', 'r', 'd', 'm', 'a', g.version, by, j.lane, j.lanes, byte(v)})
	m.Write(g.nonce[:])
	m.Write(j.nonce[:])
	m.Write(j.session[:])
	m.Sum(p[:0])
	return p
}

func proven(got, want [sha256.Size]byte) bool { return hmac.Equal(got[:], want[:]) }

func encodeVerdict(v verdict, proof [sha256.Size]byte) (b [verdictSize]byte) {
	b[0] = byte(v)
	copy(b[8:], proof[:])
	return b
}

func parseVerdict(b *[verdictSize]byte) (v verdict, proof [sha256.Size]byte) {
	copy(proof[:], b[8:])
	return verdict(b[0]), proof
}

// place is what a Welcome's token says: where to connect, how often, and with
// which secret.
type place struct {
	secret session.Secret
	lanes  int
	addr   netip.AddrPort // valid, or host and port are used
	host   string         // a name, if addr is not valid
	port   uint16
}

func (p place) target() string {
	if p.addr.IsValid() {
		return p.addr.String()
	}
	return net.JoinHostPort(p.host, strconv.Itoa(int(p.port)))
}

// encode makes the token <secret 32 hex>:<lanes>:<host:port>. It is a secret.
func (p place) encode() string {
	return p.secret.Hex() + ":" + strconv.Itoa(p.lanes) + ":" + p.target()
}

// parsePlace reads a Welcome's token. Errors wrap ErrMalformed and do not show it.
func parsePlace(s string) (place, error) {
	var p place
	secret, rest, ok1 := strings.Cut(s, ":")
	lanes, where, ok2 := strings.Cut(rest, ":")
	if !ok1 || !ok2 {
		return place{}, fmt.Errorf("welcome is not secret:lanes:host:port: %w", rdmaio.ErrMalformed)
	}
	var err error
	if p.secret, err = session.ParseSecret(secret); err != nil {
		return place{}, fmt.Errorf("welcome: %w", err)
	}
	n, err := strconv.ParseUint(lanes, 10, 8)
	if err != nil || n == 0 || n > maxLanes || lanes[0] == '0' || lanes[0] == '+' {
		return place{}, fmt.Errorf("welcome does not ask for 1 to %d lanes: %w", maxLanes, rdmaio.ErrMalformed)
	}
	p.lanes = int(n)
	if ap, err := netip.ParseAddrPort(where); err == nil {
		if ap.Port() == 0 || ap.Addr().IsUnspecified() {
			return place{}, fmt.Errorf("welcome names %s, where nobody can listen: %w", ap, rdmaio.ErrMalformed)
		}
		p.addr = ap
		return p, nil
	}
	p.host, p.port, err = splitName(where)
	if err != nil {
		return place{}, fmt.Errorf("welcome names no host and port: %w", rdmaio.ErrMalformed)
	}
	return p, nil
}

// splitName takes apart name:port, where name is a DNS name.
func splitName(s string) (string, uint16, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("port %q is not in 1 to 65535", port)
	}
	if host == "" || len(host) > 253 {
		return "", 0, fmt.Errorf("host name of %d characters", len(host))
	}
	for _, c := range []byte(host) {
		if !(c == '-' || c == '.' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') {
			return "", 0, fmt.Errorf("host name with the character %q", c)
		}
	}
	return host, uint16(n), nil
}
