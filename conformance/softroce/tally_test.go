// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	got, err := read(strings.NewReader(`mount: something unrelated
=== RUN   TestOne
--- PASS: TestOne (0.01s)
=== RUN   TestSuite
    verbs_test.go:1: passed=3
=== RUN   TestSuite/put/size/1
=== RUN   TestSuite/put/size/2
    verbs_test.go:2: objects are bounded
=== RUN   TestSuite/get
    verbs_test.go:3: got 404
        over two lines
--- FAIL: TestSuite (1.00s)
    --- PASS: TestSuite/put/size/1 (0.00s)
    --- SKIP: TestSuite/put/size/2 (0.00s)
    --- FAIL: TestSuite/get (0.00s)
=== RUN   TestParent
=== RUN   TestParent/fine
    --- PASS: TestParent/fine (0.00s)
    x_test.go:9: something was left behind
--- FAIL: TestParent (1.00s)
    --- PASS: TestParent/fine (0.00s)
=== RUN   TestDies
=== RUN   TestDies/child
panic: oh
`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]outcome{
		"TestOne": passed, "TestSuite/put/size/1": passed, "TestSuite/put/size/2": skipped, "TestSuite/get": failed,
		"TestParent": failed, "TestParent/fine": passed, "TestDies/child": failed,
	}
	for _, r := range got.results {
		if want[r.name] != r.outcome {
			t.Errorf("%s: %s, want %s", r.name, r.outcome, want[r.name])
		}
		delete(want, r.name)
		if r.outcome != passed && len(r.said) == 0 && r.name != "TestParent" {
			t.Errorf("%s: it is not said why", r.name)
		}
	}
	if len(want) > 0 {
		t.Errorf("not counted: %v", want)
	}
	if got.count(passed) != 3 || got.count(failed) != 3 || got.count(skipped) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestReadPackages: the same name in two packages is two tests.
func TestReadPackages(t *testing.T) {
	got, err := read(strings.NewReader(`=== PACKAGE rdmaio/verbs
=== RUN   TestProbe
    probe_test.go:1: no device
--- FAIL: TestProbe (0.01s)
=== RUN   TestFabric
=== RUN   TestFabric/a/b
    --- PASS: TestFabric/a/b (0.00s)
--- PASS: TestFabric (0.00s)
FAIL
=== PACKAGE conformance/cmd/s3rdma
=== RUN   TestProbe
--- PASS: TestProbe (0.01s)
PASS
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"rdmaio/verbs TestProbe: FAIL", "rdmaio/verbs TestFabric/a/b: pass", "conformance/cmd/s3rdma TestProbe: pass"}
	var lines []string
	for _, r := range got.results {
		lines = append(lines, r.name+": "+string(r.outcome))
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
}

func TestReadNothing(t *testing.T) {
	got, err := read(strings.NewReader("softroce.sh: error: the VM did not boot\n"))
	if err != nil || len(got.results) != 0 {
		t.Errorf("%v %v", got, err)
	}
}
