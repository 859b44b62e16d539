// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

// version is the protocol's, as Hello.Token has it.
const version = "1"

const (
	wireVersion = 1
	magic       = "S3RDMSHM"
)

// kind is a message's first byte.
type kind byte

const (
	kindHello  kind = 0x01
	kindAdd    kind = 0x02
	kindRevoke kind = 0x03
	kindRekey  kind = 0x04
	kindAck    kind = 0x80
)

// The sizes of the messages in bytes, and of the largest.
const (
	headLen    = 8
	helloLen   = headLen + len(magic) + 4 + 16
	addLen     = headLen + 4 + 8 + 8
	revokeLen  = headLen + 4
	rekeyLen   = headLen + 4 + 4
	maxAckText = 200
	maxMessage = headLen + maxAckText
)

// message is any of them; fields that its kind has not are zero.
type message struct {
	kind   kind
	seq    uint32
	secret session.Secret // hello
	rkey   uint32         // add, revoke, rekey (the old one)
	fresh  uint32         // rekey
	access rdmaio.Access  // add
	base   uint64         // add
	size   uint64         // add
	status status         // ack
	text   string         // ack
}

func (m *message) append(b []byte) []byte {
	arg := byte(m.access)
	if m.kind == kindAck {
		arg = byte(m.status)
	}
	b = append(b, byte(m.kind), arg, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, m.seq)
	switch m.kind {
	case kindHello:
		b = append(b, magic...)
		b = binary.LittleEndian.AppendUint32(b, wireVersion)
		b = append(b, m.secret[:]...)
	case kindAdd:
		b = binary.LittleEndian.AppendUint32(b, m.rkey)
		b = binary.LittleEndian.AppendUint64(b, m.base)
		b = binary.LittleEndian.AppendUint64(b, m.size)
	case kindRevoke:
		b = binary.LittleEndian.AppendUint32(b, m.rkey)
	case kindRekey:
		b = binary.LittleEndian.AppendUint32(b, m.rkey)
		b = binary.LittleEndian.AppendUint32(b, m.fresh)
	case kindAck:
		b = append(b, m.text[:min(len(m.text), maxAckText)]...)
	}
	return b
}

// errProtocol is what a peer that does not speak the protocol gets its session
// ended for. It is wrapped together with what was wrong.
var errProtocol = errors.New("protocol violation")

// parseMessage reads one packet. Errors wrap errProtocol. b is not kept.
func parseMessage(b []byte) (message, error) {
	if len(b) < headLen {
		return message{}, fmt.Errorf("message of %d bytes: %w", len(b), errProtocol)
	}
	m := message{kind: kind(b[0]), seq: binary.LittleEndian.Uint32(b[4:])}
	arg, body := b[1], b[headLen:]
	want, hasArg := 0, false
	switch m.kind {
	case kindHello:
		want = helloLen
	case kindAdd:
		want, hasArg = addLen, true
	case kindRevoke:
		want = revokeLen
	case kindRekey:
		want = rekeyLen
	case kindAck:
		want, hasArg = min(len(b), maxMessage), true
	default:
		return message{}, fmt.Errorf("message of unknown kind %#x: %w", b[0], errProtocol)
	}
	if len(b) != want {
		return message{}, fmt.Errorf("message of kind %#x has %d bytes, want %d: %w", b[0], len(b), want, errProtocol)
	}
	if b[2] != 0 || b[3] != 0 || !hasArg && arg != 0 {
		return message{}, fmt.Errorf("message of kind %#x has a reserved byte set: %w", b[0], errProtocol)
	}
	switch m.kind {
	case kindHello:
		if string(body[:len(magic)]) != magic {
			return message{}, fmt.Errorf("hello without the magic: %w", errProtocol)
		}
		body = body[len(magic):]
		if v := binary.LittleEndian.Uint32(body); v != wireVersion {
			return message{}, fmt.Errorf("hello of version %d, want %d: %w", v, wireVersion, errProtocol)
		}
		copy(m.secret[:], body[4:])
	case kindAdd:
		m.access = rdmaio.Access(arg)
		m.rkey = binary.LittleEndian.Uint32(body)
		m.base = binary.LittleEndian.Uint64(body[4:])
		m.size = binary.LittleEndian.Uint64(body[12:])
		if m.access == 0 || m.access&^(rdmaio.RemoteRead|rdmaio.RemoteWrite) != 0 {
			return message{}, fmt.Errorf("region with access %#x: %w", arg, errProtocol)
		}
		if m.size == 0 || m.size > math.MaxInt64 || m.base+m.size < m.base {
			return message{}, fmt.Errorf("region of %d bytes, empty or wrapping around: %w", m.size, errProtocol)
		}
	case kindRevoke:
		m.rkey = binary.LittleEndian.Uint32(body)
	case kindRekey:
		m.rkey = binary.LittleEndian.Uint32(body)
		m.fresh = binary.LittleEndian.Uint32(body[4:])
	case kindAck:
		m.status = status(arg)
		m.text = string(body)
	}
	return m, nil
}

// status is the outcome that an ack carries: an rdmaio error kind in a byte.
type status byte

const (
	statusOK status = iota
	statusNoSession
	statusRefused
	statusTooMany
	statusUnsupported
	statusFailed
)

var statusErrors = [...]error{
	statusNoSession:   rdmaio.ErrNoSession,
	statusRefused:     rdmaio.ErrRefused,
	statusTooMany:     rdmaio.ErrTooMany,
	statusUnsupported: rdmaio.ErrUnsupported,
}

// statusOf is the status that stands for err.
func statusOf(err error) status {
	if err == nil {
		return statusOK
	}
	for s, kind := range statusErrors {
		if kind != nil && errors.Is(err, kind) {
			return status(s)
		}
	}
	return statusFailed
}

// err is what an ack means to the client.
func (m *message) err() error {
	if m.status == statusOK {
		return nil
	}
	if int(m.status) < len(statusErrors) {
		return fmt.Errorf("the server says %q: %w", m.text, statusErrors[m.status])
	}
	return fmt.Errorf("the server says %q: it failed", m.text)
}

// welcomeToken makes the text that tells a client where to connect and with what.
func welcomeToken(secret session.Secret, path string) string {
	return secret.Hex() + ":" + base64.RawURLEncoding.EncodeToString([]byte(path))
}

// parseWelcome reads it. Errors wrap rdmaio.ErrMalformed and do not show it.
func parseWelcome(token string) (session.Secret, string, error) {
	hexed, encoded, ok := strings.Cut(token, ":")
	if !ok {
		return session.Secret{}, "", fmt.Errorf("welcome is not secret:path: %w", rdmaio.ErrMalformed)
	}
	secret, err := session.ParseSecret(hexed)
	if err != nil {
		return session.Secret{}, "", fmt.Errorf("welcome: %w", err)
	}
	path, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	// The decoder skips line breaks, which have no place here.
	if err != nil || strings.ContainsAny(encoded, "\r\n") || len(path) == 0 || len(path) > maxPath {
		return session.Secret{}, "", fmt.Errorf("welcome has no socket path of 1 to %d bytes in base64url: %w", maxPath, rdmaio.ErrMalformed)
	}
	return secret, string(path), nil
}
