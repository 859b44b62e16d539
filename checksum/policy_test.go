// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package checksum

import (
	"encoding"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

var (
	_ encoding.TextMarshaler   = Policy(0)
	_ encoding.TextUnmarshaler = (*Policy)(nil)
)

func TestPolicy(t *testing.T) {
	var zero Policy
	if zero != PolicyRegion {
		t.Errorf("the zero policy is %v", zero)
	}
	for _, c := range []struct {
		p                Policy
		name             string
		region, envelope bool
	}{
		{PolicyRegion, "region", true, false},
		{PolicyEnvelope, "envelope", false, true},
		{PolicyBoth, "both", true, true},
		{PolicyNone, "none", false, false},
	} {
		if c.p.Region() != c.region || c.p.Envelope() != c.envelope || c.p.String() != c.name {
			t.Errorf("%v: region %v, envelope %v", c.p, c.p.Region(), c.p.Envelope())
		}
		if got, err := ParsePolicy(c.name); err != nil || got != c.p {
			t.Errorf("ParsePolicy(%q) = %v, %v", c.name, got, err)
		}
		text, err := json.Marshal(c.p)
		if err != nil || string(text) != `"`+c.name+`"` {
			t.Errorf("%v becomes %s, %v", c.p, text, err)
		}
		back := Policy(77)
		if err := json.Unmarshal(text, &back); err != nil || back != c.p {
			t.Errorf("%s becomes %v, %v", text, back, err)
		}
	}
}

func TestPolicyRefuses(t *testing.T) {
	for _, text := range []string{"", "Region", "all", "region ", "0", "Policy(4)"} {
		p := PolicyBoth
		err := p.UnmarshalText([]byte(text))
		if !errors.Is(err, ErrUnknownPolicy) || p != PolicyBoth {
			t.Errorf("%q: %v, %v", text, p, err)
			continue
		}
		for _, part := range []string{`"` + text + `"`, "region, envelope, both, none"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not contain %q", err, part)
			}
		}
	}
	if _, err := Policy(4).MarshalText(); !errors.Is(err, ErrUnknownPolicy) || !strings.Contains(err.Error(), "Policy(4)") {
		t.Errorf("MarshalText of no policy: %v", err)
	}
}

// TestPolicyWith: a request can ask for more, never for less.
func TestPolicyWith(t *testing.T) {
	for p := PolicyRegion; p < policyEnd; p++ {
		for q := PolicyRegion; q < policyEnd; q++ {
			got := p.With(q)
			if got != q.With(p) || got.Region() != (p.Region() || q.Region()) || got.Envelope() != (p.Envelope() || q.Envelope()) {
				t.Errorf("%v with %v is %v", p, q, got)
			}
		}
		if p.With(PolicyNone) != p || p.With(p) != p {
			t.Errorf("%v with less is not %v", p, p)
		}
	}
}
