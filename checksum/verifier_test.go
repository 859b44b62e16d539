// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

var _ io.Writer = (*Verifier)(nil)

func TestVerifierMismatch(t *testing.T) {
	data := []byte("the bytes of the object")
	for _, alg := range Algorithms() {
		for _, c := range []struct {
			want  Sum
			empty bool
		}{{Of(alg, []byte("other bytes")), false}, {Empty(alg), true}} {
			v, err := NewVerifier(c.want)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = v.Write(data[:7])
			_, _ = v.Write(data[7:])
			err = fmt.Errorf("put: %w", v.Verify())
			var mismatch *MismatchError
			if !errors.Is(err, ErrMismatch) || !errors.As(err, &mismatch) {
				t.Fatalf("%v: %v", alg, err)
			}
			if *mismatch != (MismatchError{Want: c.want, Got: Of(alg, data), Bytes: int64(len(data)), WantEmpty: c.empty}) || mismatch.Algorithm() != alg {
				t.Errorf("%v: %+v", alg, mismatch)
			}
			text := err.Error()
			for _, part := range []string{alg.String(), c.want.Base64(), Of(alg, data).Base64(), "23 bytes"} {
				if !strings.Contains(text, part) {
					t.Errorf("%q does not contain %q", text, part)
				}
			}
			if strings.Contains(text, "empty HTTP body") != c.empty {
				t.Errorf("%q: hint is wrong", text)
			}
		}
	}
}

// One wrong value among right ones is found, whichever it is.
func TestVerifierChecksEveryAlgorithm(t *testing.T) {
	data := []byte("the bytes of the object")
	for _, wrong := range Algorithms() {
		var want []Sum
		for _, alg := range Algorithms() {
			s := Of(alg, data)
			if alg == wrong {
				s.raw[alg.Size()-1] ^= 1
			}
			want = append(want, s)
		}
		v, err := NewVerifier(want...)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = v.Write(data)
		var mismatch *MismatchError
		if err := v.Verify(); !errors.As(err, &mismatch) || mismatch.Algorithm() != wrong {
			t.Errorf("wrong %v: %v", wrong, err)
		}
		if sums := v.AppendSums(nil); len(sums) != len(want) || sums[0] != Of(CRC32, data) {
			t.Errorf("AppendSums: %v", sums)
		}
	}
}

func TestVerifierReset(t *testing.T) {
	v, err := NewVerifier(Of(CRC32C, []byte("whole")), Of(MD5, []byte("whole")), Of(CRC32C, []byte("whole")))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = v.Write([]byte("first try, broken off"))
	v.Reset()
	_, _ = v.Write([]byte("who"))
	var mismatch *MismatchError
	if err := v.Verify(); !errors.As(err, &mismatch) || mismatch.Bytes != 3 {
		t.Errorf("half of it: %v", err)
	}
	_, _ = v.Write([]byte("le"))
	if err := v.Verify(); err != nil {
		t.Error(err)
	}
}

func TestVerifierOfNothing(t *testing.T) {
	var zero Verifier
	made, err := NewVerifier()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []*Verifier{&zero, made} {
		if n, err := v.Write([]byte("abc")); n != 3 || err != nil {
			t.Errorf("Write: %d, %v", n, err)
		}
		if err := v.Verify(); err != nil {
			t.Error(err)
		}
	}
	empty, err := NewVerifier(Empty(CRC32), Empty(SHA256))
	if err != nil {
		t.Fatal(err)
	}
	if err := empty.Verify(); err != nil {
		t.Errorf("an empty object: %v", err)
	}
}

func TestNewVerifierRefuses(t *testing.T) {
	if _, err := NewVerifier(Sum{}); !errors.Is(err, ErrUnknownAlgorithm) {
		t.Errorf("zero sum: %v", err)
	}
	if _, err := NewVerifier(Empty(CRC32), Of(CRC32, []byte("a"))); !errors.Is(err, ErrConflict) {
		t.Errorf("conflict: %v", err)
	}
}
