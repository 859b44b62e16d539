// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSwitchesAreNamedAndReasoned(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Switches() {
		if seen[s.Name] || s.Name != strings.ToLower(s.Name) || strings.ContainsAny(s.Name, " ,") {
			t.Errorf("%q is no good name, or stands twice", s.Name)
		}
		seen[s.Name] = true
		if s.Does == "" || len(s.Cases) == 0 {
			t.Errorf("%s lacks what it does, or cases", s.Name)
		}
	}
	if len(seen) < 100 {
		t.Errorf("only %d switches", len(seen))
	}
}

func TestStart(t *testing.T) {
	if _, err := Start(Options{Broken: []string{"get-cut", "no-such"}}); !errors.Is(err, ErrSwitch) || !strings.Contains(err.Error(), "no-such") {
		t.Errorf("error %v", err)
	}
	if _, err := Start(Options{Address: "127.0.0.1:-1"}); err == nil {
		t.Error("no error for an address that is none")
	}
	s, err := Start(Options{})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(s.Endpoint + "/bucket/key")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 403 || !strings.Contains(string(body), "AccessDenied") {
		t.Errorf("%s %s %v", resp.Status, body, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
