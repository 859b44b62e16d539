// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package rdmaio

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
)

// SessionID names a connected peer: 128 random bits, 32 lower-case hex digits on
// the wire. Together with a key it gives access to memory, so String hides it.
type SessionID [16]byte

// NewSessionID returns a fresh random id.
func NewSessionID() SessionID {
	var id SessionID
	rand.Read(id[:]) // never fails: crypto/rand ends the process instead
	return id
}

// ParseSessionID reads the wire form. Errors wrap ErrMalformed.
func ParseSessionID(s string) (SessionID, error) {
	var id SessionID
	if len(s) != 2*len(id) || !isLowerHex(s) {
		return id, fmt.Errorf("session id of %d characters, want 32 lower-case hex digits: %w", len(s), ErrMalformed)
	}
	hex.Decode(id[:], []byte(s)) // digits checked above
	return id, nil
}

// Hex is the wire form.
func (id SessionID) Hex() string { return hex.EncodeToString(id[:]) }

// IsZero tells whether id is the zero value, which names no session.
func (id SessionID) IsZero() bool { return id == SessionID{} }

// String does not show the id.
func (id SessionID) String() string { return "session(hidden)" }

// Format is String whatever the verb: %x would otherwise print the id.
func (id SessionID) Format(f fmt.State, _ rune) { io.WriteString(f, id.String()) }

// LogValue is String, for structured logs.
func (id SessionID) LogValue() slog.Value { return slog.StringValue(id.String()) }

// MarshalText is String, for whatever is encoded as JSON. Hex is the wire form.
func (id SessionID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }
