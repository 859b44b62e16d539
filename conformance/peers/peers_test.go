// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mintReport = `some text
{"time":"2026-08-07T12:00:00Z","level":"INFO","name":"minio-go: testA","duration":3,"function":"PutObject(x)","status":"PASS"}
{"level":"ERROR","name":"minio-go: testB","status":"FAIL","alert":"","message":"it broke","error":{"Code":"X"}}
{"level":"INFO","name":"minio-go: testC","status":"NA","alert":"gone"}
{"level":"INFO","name":"minio-go: testB","status":"PASS"}
{"no":"status"}
`

func TestReadMint(t *testing.T) {
	got, err := readMint(strings.NewReader(mintReport))
	if err != nil {
		t.Fatal(err)
	}
	want := []Outcome{{"testA PutObject(x)", Pass, ""}, {"testB", Fail, "it broke"}, {"testC", NA, "gone"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// What pytest 7 writes, with a test that passes and then fails to be cleaned up after.
const junitReport = `<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="5" time="1.0" hostname="h">
<testcase classname="s3tests.functional.test_s3" name="test_ok" time="0.1" />
<testcase classname="s3tests.functional.test_s3" name="test_bad[a-b]" time="0.1"><failure message="AssertionError: assert 403 == 400">def test_bad():
&gt;   eq(403, 400)</failure></testcase>
<testcase classname="s3tests.functional.test_s3" name="test_skipped" time="0.1"><skipped type="pytest.skip" message="not here">file:1: not here</skipped></testcase>
<testcase classname="s3tests.functional.test_headers" name="test_unclean" time="0.1" />
<testcase classname="s3tests.functional.test_headers" name="test_unclean" time="0.1"><error message="failed on teardown with &quot;X&quot;">X</error></testcase>
</testsuite></testsuites>`

func TestReadJUnit(t *testing.T) {
	got, err := readJUnit(strings.NewReader(junitReport))
	if err != nil {
		t.Fatal(err)
	}
	want := []Outcome{
		{"s3tests/functional/test_headers.py::test_unclean", Fail, `failed on teardown with "X"`},
		{"s3tests/functional/test_s3.py::test_bad[a-b]", Fail, "AssertionError: assert 403 == 400"},
		{"s3tests/functional/test_s3.py::test_ok", Pass, ""},
		{"s3tests/functional/test_s3.py::test_skipped", NA, "not here"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, err := readJUnit(strings.NewReader(junitReport[:len(junitReport)/2])); err == nil {
		t.Error("half a report is no error")
	}
}

func FuzzReadJUnit(f *testing.F) {
	f.Add(junitReport)
	f.Fuzz(func(t *testing.T, text string) {
		all, err := readJUnit(strings.NewReader(text))
		for _, o := range all {
			if err != nil || severity(o.Status) < 0 {
				t.Fatalf("%+v, %v", o, err)
			}
		}
	})
}

func FuzzReadMint(f *testing.F) {
	f.Add(mintReport)
	f.Fuzz(func(t *testing.T, text string) {
		all, err := readMint(strings.NewReader(text))
		for _, o := range all {
			if err != nil || severity(o.Status) < 0 {
				t.Fatalf("%+v, %v", o, err)
			}
		}
	})
}

func TestCompare(t *testing.T) {
	stock := []Outcome{{"a", Pass, ""}, {"b", Fail, "expected 400, got 403"}, {"c", NA, "x"}, {"e", Fail, "RequestID: 18ECB44FB5399EFF, test-bucket-7"}}
	if d := compare(stock, stock); len(d) != 0 {
		t.Errorf("equal outcomes differ: %v", d)
	}
	plugin := []Outcome{{"a", Fail, "new"}, {"b", Fail, "expected 400, got 500"}, {"d", Pass, ""}, {"e", Fail, "RequestID: 0000044FB5399EFF, test-bucket-19"}}
	want := []Pair{
		{"a", []Outcome{stock[0]}, []Outcome{plugin[0]}},
		{"b", []Outcome{stock[1]}, []Outcome{plugin[1]}},
		{"c", []Outcome{stock[2]}, []Outcome{{"c", Missing, ""}}},
		{"d", []Outcome{{"d", Missing, ""}}, []Outcome{plugin[2]}},
	}
	if d := cmp.Diff(want, compare(stock, plugin)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestSettle(t *testing.T) {
	o := func(name, status, message string) Outcome { return Outcome{name, status, message} }
	one := func(o Outcome) []Outcome { return []Outcome{o} }
	first := []Pair{
		{"again", one(o("again", Pass, "")), one(o("again", Fail, "x"))},
		{"again, other words", one(o("again, other words", Pass, "")), one(o("again, other words", Fail, "x"))},
		{"stock unsteady", one(o("stock unsteady", Fail, "x")), one(o("stock unsteady", Pass, ""))},
		{"plugin unsteady", one(o("plugin unsteady", Pass, "")), one(o("plugin unsteady", Fail, "x"))},
		{"reason", one(o("reason", Fail, "x")), one(o("reason", Fail, "y"))},
		{"reason unsteady", one(o("reason unsteady", Fail, "x")), one(o("reason unsteady", Fail, "y"))},
		{"only here", one(o("only here", Pass, "")), one(o("only here", Missing, ""))},
	}
	stock := []Outcome{o("again", Pass, ""), o("again, other words", Pass, ""), o("stock unsteady", Pass, ""), o("plugin unsteady", Pass, ""), o("reason", Fail, "x"), o("reason unsteady", Fail, "z"), o("only here", Pass, "")}
	plugin := []Outcome{o("again", Fail, "x"), o("again, other words", Fail, "z"), o("stock unsteady", Pass, ""), o("plugin unsteady", Pass, ""), o("reason", Fail, "y"), o("reason unsteady", Fail, "y")}
	differences, unsteady := settle(first, stock, plugin)
	names := func(all []Pair) (n []string) {
		for _, p := range all {
			n = append(n, p.Name)
		}
		return n
	}
	if d := cmp.Diff([]string{"again", "again, other words", "reason", "only here"}, names(differences)); d != "" {
		t.Errorf("differences (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"stock unsteady", "plugin unsteady", "reason unsteady"}, names(unsteady)); d != "" {
		t.Errorf("unsteady (-want +got):\n%s", d)
	}
	c := Comparison{Suite: "s", Plugin: []Outcome{o("ok", Pass, ""), o("bad", Fail, "two\nlines"), o("no", NA, "")}, Differences: differences[:1], Unsteady: unsteady[:1]}
	var b strings.Builder
	if err := c.Print(&b, true); err != nil {
		t.Fatal(err)
	}
	want := `s: differs: again: stock PASS; plugin FAIL (x)
s: unsteady: stock unsteady: stock FAIL (x), then PASS; plugin PASS
s: fails on both: bad: two lines
peers: suite=s passed=1 failed=1 na=1 differences=1
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestReason uses what the suites really say.
func TestReason(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"operation error S3: DeleteBucket, https response error StatusCode: 409, RequestID: 18ECB44FB5399EFF, HostID: 8ce90a4859a5dbe5316aa41a18200bfc03dfbf17b95, api error X: test-bucket-1",
			"operation error S3: DeleteBucket, https response error StatusCode: 409, RequestID: 18ECB455010000AA, HostID: 8ce90a4859a5dbe5316aa41a18200bfc03dfbf17b95, api error X: test-bucket-23", true},
		{"to be [{[CRC32] 0x9747c8c2060 <nil>} 2026-11-30 03:15:53.329 +0000 UTC]", "to be [{[CRC32] 0x2b7e8a2a8060 <nil>} 2026-11-29 23:59:59 +0000 UTC]", true},
		{"expected the copy-source-version-id to be 4118f6c7-8c20-4b25-b83c-30689cc5291f, instead got ", "expected the copy-source-version-id to be 2aa12051-e54c-4300-953a-bddd11f98a15, instead got ", true},
		{"Put \"http://127.0.0.1:1/x\"", "Put \"http://127.0.0.1:22/x\"", true},
		{"StatusCode: 409", "StatusCode: 412", false},
		{"operation error S3: CompleteMultipartUpload", "operation error S3: CreateMultipartUploadXXXX", false},
	} {
		if got := reason(c.a) == reason(c.b); got != c.same {
			t.Errorf("%q and %q: same is %v", c.a, c.b, got)
		}
	}
}

func TestRunUnknownSuite(t *testing.T) {
	if _, err := Run(t.Context(), "mint", Options{}); !errors.Is(err, ErrSuite) || !strings.Contains(err.Error(), "minio-go") {
		t.Error(err)
	}
}

// TestReport: what a program that reports, fails or breaks off comes to.
func TestReport(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	run := func(script string, nonzero bool) ([]Outcome, error) {
		return report(t.Context(), exec.Command(sh, "-c", script), nonzero)
	}
	line := `echo '{"name":"a","status":"PASS"}'; `
	if got, err := run(line+"exit 1", true); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := run(line+"echo why >&2; exit 1", false); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := run("echo why >&2", false); !errors.Is(err, ErrNoTests) || !strings.Contains(err.Error(), "why") {
		t.Error(err)
	}
}

// TestS3Tests runs a checkout in miniature: it shows that pytest, the configuration,
// the prefix and the report fit together, not what Ceph's tests say.
func TestS3Tests(t *testing.T) {
	if _, err := findPython(t.Context()); err != nil {
		t.Skip(err)
	}
	binary := os.Getenv("S3RDMA_FORK")
	if binary == "" {
		t.Skip("S3RDMA_FORK names no MinIO binary with the plugin")
	}
	t.Setenv(S3TestsVariable, filepath.Join("testdata", "s3tests"))
	run, err := prepareS3Tests(t.Context(), t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	s, err := minioproc.Start(t.Context(), minioproc.Options{Binary: binary, Dir: t.TempDir(), TLS: true, KMS: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	const file = "s3tests/functional/test_s3.py::"
	want := []Outcome{{file + "test_bucket", Pass, ""}, {file + "test_fails", Fail, "assert 1 == 2"}, {file + "test_other_bucket", Pass, ""}}
	got, err := run(t.Context(), s, t.TempDir(), nil)
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	got, err = run(t.Context(), s, t.TempDir(), []string{want[1].Name})
	if d := cmp.Diff(want[1:2], got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func TestS3TestsAbsent(t *testing.T) {
	for _, root := range []string{"", t.TempDir()} {
		t.Setenv(S3TestsVariable, root)
		if _, err := prepareS3Tests(context.Background(), t.TempDir(), os.Stderr); !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), S3TestsVariable) {
			t.Errorf("%q: %v", root, err)
		}
	}
}
