// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// Secret lets its holder complete one offered session, once: 128 random bits, 32
// lower-case hex digits on the wire. String hides it.
type Secret [16]byte

func newSecret() Secret {
	var s Secret
	rand.Read(s[:]) // never fails: crypto/rand ends the process instead
	return s
}

// ParseSecret reads the wire form. Errors wrap rdmaio.ErrMalformed and never show
// the text.
func ParseSecret(s string) (Secret, error) {
	var out Secret
	if len(s) != 2*len(out) {
		return Secret{}, fmt.Errorf("secret of %d characters, want 32 lower-case hex digits: %w", len(s), rdmaio.ErrMalformed)
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return Secret{}, fmt.Errorf("secret is not 32 lower-case hex digits: %w", rdmaio.ErrMalformed)
		}
	}
	hex.Decode(out[:], []byte(s)) // digits checked above
	return out, nil
}

// Hex is the wire form.
func (s Secret) Hex() string { return hex.EncodeToString(s[:]) }

// String does not show the secret.
func (s Secret) String() string { return "secret(hidden)" }

// GoString is String, so that %#v leaks nothing either.
func (s Secret) GoString() string { return s.String() }

// digest is what the table looks a secret up by. The time a map takes depends on
// its key, and whoever guesses cannot steer a digest.
func (s Secret) digest() [sha256.Size]byte { return sha256.Sum256(s[:]) }
