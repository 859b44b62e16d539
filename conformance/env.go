// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// shownExchanges is how many of a failing case's last requests are reported.
const shownExchanges = 4

// Env is what a case works with. Its methods end the case when something is not
// as it must be, as testing.T's Fatal does. They may be called from goroutines
// that Env.parallel started, and from no others.
type Env struct {
	runner *runner
	client *rawhttp.Client
	id     string

	mu      sync.Mutex
	log     []rawhttp.Exchange
	tokens  []string // descriptors sent, which must not come back
	cleanup []func(context.Context)
	verdict Verdict
	why     string
}

// caseStop unwinds a case.
type caseStop struct {
	status Status
	reason string
}

// guard runs f and returns how it was stopped, nil if it ran to its end. A panic
// of another kind is a defect of the case, and reported as its failure.
func (e *Env) guard(f func()) (stop *caseStop) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case *caseStop:
			stop = v
		default:
			stop = &caseStop{Failed, fmt.Sprintf("the case itself panicked: %v\n%s", v, debug.Stack())}
		}
	}()
	f()
	return nil
}

// failf ends the case as failed.
func (e *Env) failf(format string, args ...any) {
	panic(&caseStop{Failed, fmt.Sprintf(format, args...)})
}

// skipf ends the case as not applicable.
func (e *Env) skipf(format string, args ...any) {
	panic(&caseStop{Skipped, fmt.Sprintf(format, args...)})
}

// conclude notes what comes of a client at this server.
func (e *Env) conclude(v Verdict, why string) { e.verdict, e.why = v, why }

// parallel runs f(0) to f(n-1) at once and waits. The first stop becomes the case's.
func (e *Env) parallel(n int, f func(i int)) {
	stops := make([]*caseStop, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			stops[i] = e.guard(func() { f(i) })
		}()
	}
	wg.Wait()
	for _, s := range stops {
		if s != nil {
			panic(s)
		}
	}
}

// meet skips the case if a need is not met.
func (e *Env) meet(ctx context.Context, needs []Need) {
	o := e.runner.options
	for _, n := range needs {
		switch n {
		case NeedFabric:
			if o.Fabric == "none" && o.NewTarget == nil {
				e.skipf("needs a fabric: none was chosen")
			}
			if err := e.runner.session.open(ctx, e.runner); err != nil {
				e.skipf("no session with the server (see session/connect): %v", err)
			}
		case NeedTLS:
			if !e.client.Secure() {
				e.skipf("needs an https endpoint")
			}
		case NeedIdentity:
			if o.Second == nil {
				e.skipf("needs a second pair of keys")
			}
		case NeedKMS:
			if !e.encrypts(ctx) {
				e.skipf("the server does not encrypt with keys of its own (SSE-S3)")
			}
		case NeedVersioning:
			if o.Bucket != "" {
				e.skipf("needs a bucket of its own for versions")
			}
		}
	}
}

// encrypts tells whether the server does SSE-S3.
func (e *Env) encrypts(ctx context.Context) bool {
	resp := e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: e.key("kms-probe"),
		Header: http.Header{"x-amz-server-side-encryption": {"AES256"}}, Body: []byte("probe")})
	return resp.Status == 200
}

// sized skips the case if objects of n bytes are not wanted in this run.
func (e *Env) sized(n int) {
	if limit := e.runner.options.MaxObject; limit > 0 && int64(n) > limit {
		e.skipf("objects are bounded to %d bytes in this run", limit)
	}
}

// ReasonHuge is why a case of some GiB is skipped where nobody has asked for it.
const ReasonHuge = "runs only where Options.MaxObject allows for objects of some GiB"

// huge skips the case unless objects of n bytes are expressly allowed.
func (e *Env) huge(n int64) {
	if limit := e.runner.options.MaxObject; limit < n {
		e.skipf(ReasonHuge)
	}
	if uint64(n) > uint64(^uint(0)>>1) {
		e.skipf("needs an address space of 64 bits")
	}
}

func (e *Env) observe(x rawhttp.Exchange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log = append(e.log, x)
	if len(e.log) > shownExchanges {
		e.log = slices.Delete(e.log, 0, len(e.log)-shownExchanges)
	}
}

func (e *Env) exchanges() []rawhttp.Exchange {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.log)
}

// onEnd runs f when the case has ended, the last one first.
func (e *Env) onEnd(f func(context.Context)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cleanup = append(e.cleanup, f)
}

func (e *Env) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	e.mu.Lock()
	todo := e.cleanup
	e.cleanup = nil
	e.mu.Unlock()
	for _, f := range slices.Backward(todo) {
		f(ctx)
	}
}

// bucket is the run's bucket.
func (e *Env) bucket() string { return e.runner.bucket }

// key returns the name of an object of this case, which is removed at its end.
func (e *Env) key(name string) string {
	k := e.runner.prefix + e.id + "/" + name
	bucket := e.bucket()
	e.onEnd(func(ctx context.Context) {
		e.runner.client.Do(ctx, rawhttp.Request{Method: "DELETE", Bucket: bucket, Key: k}) // the run's end removes what stays
	})
	return k
}

// newBucket makes a bucket for this case alone.
func (e *Env) newBucket(ctx context.Context) string {
	if e.runner.options.Bucket != "" {
		e.skipf("needs a bucket of its own")
	}
	name := bucketPrefix + randomName()
	e.onEnd(func(ctx context.Context) { removeBucket(ctx, e.runner.client, name) })
	e.want(e.create(ctx, rawhttp.Request{Method: "PUT", Bucket: name}), 200)
	return name
}

// do sends r and returns the answer; no answer fails the case, and so does one that
// shows a descriptor.
func (e *Env) do(ctx context.Context, r rawhttp.Request) *rawhttp.Response {
	resp, err := e.try(ctx, r)
	if err != nil {
		e.failf("no answer: %v", err)
	}
	return resp
}

// create is do for what creates something that would stay if nobody had read the answer: it
// is waited for also when ctx has ended, for some seconds.
func (e *Env) create(ctx context.Context, r rawhttp.Request) *rawhttp.Response {
	ctx, cancel := unhurried(ctx)
	defer cancel()
	return e.do(ctx, r)
}

// unhurried is a context that does not end with ctx, but soon.
func unhurried(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}

// try is do for requests that may end without an answer.
func (e *Env) try(ctx context.Context, r rawhttp.Request) (*rawhttp.Response, error) {
	e.remember(r.Header)
	e.remember(r.Unsigned)
	resp, err := e.client.Do(ctx, r)
	if err != nil {
		return nil, err
	}
	if where := e.leak(resp); where != "" {
		e.failf("the answer shows a descriptor or session that was sent, in its %s", where)
	}
	return resp, nil
}

func (e *Env) remember(h http.Header) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range []string{headerToken, headerAlias} {
		for n, values := range h {
			if !strings.EqualFold(n, name) {
				continue
			}
			for _, v := range values {
				if len(v) >= 32 { // shorter ones occur by chance
					e.tokens = append(e.tokens, v)
				}
				if parts := strings.Split(v, ":"); len(parts) == 5 && len(parts[1]) == 32 {
					e.tokens = append(e.tokens, parts[1])
				}
			}
		}
	}
}

// leak tells where in resp a descriptor stands that this case has sent.
func (e *Env) leak(resp *rawhttp.Response) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.tokens {
		// An error body is small; object bytes are not searched.
		if len(resp.Body) < 1<<16 && bytes.Contains(resp.Body, []byte(t)) {
			return "body"
		}
		for name, values := range resp.Header {
			if slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, t) }) {
				return "header " + name
			}
		}
	}
	return ""
}

// The headers of the wire, in the spelling of requests.
const (
	headerToken   = "x-amz-rdma-token"
	headerAlias   = "x-rdma-info"
	headerReply   = "X-Amz-Rdma-Reply"
	headerBytes   = "X-Amz-Rdma-Bytes-Transferred"
	headerSession = "X-Amz-Rdma-Session"
)

// putHTTP stores data without RDMA, and returns the answer, which is a success.
func (e *Env) putHTTP(ctx context.Context, key string, data []byte, h http.Header) *rawhttp.Response {
	resp := e.do(ctx, rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: key, Header: h, Body: data})
	e.want(resp, 200)
	return resp
}

// headHTTP returns the answer to a plain HEAD.
func (e *Env) headHTTP(ctx context.Context, key string, h http.Header, q url.Values) *rawhttp.Response {
	return e.do(ctx, rawhttp.Request{Method: "HEAD", Bucket: e.bucket(), Key: key, Header: h, Query: q})
}

// wantStored checks by plain HTTP that the object has exactly these bytes.
func (e *Env) wantStored(ctx context.Context, key string, data []byte) {
	e.wantStoredWith(ctx, rawhttp.Request{Bucket: e.bucket(), Key: key}, data)
}

func (e *Env) wantStoredWith(ctx context.Context, r rawhttp.Request, data []byte) {
	r.Method = "GET"
	resp := e.do(ctx, r)
	if resp.Status != 200 {
		e.failf("the object should be readable over HTTP, but GET answered %d %s", resp.Status, resp.Error().Code)
	}
	if at, same := firstDifference(resp.Body, data); !same {
		e.failf("read over HTTP, the object has %d bytes, want %d; the first difference is at byte %d", len(resp.Body), len(data), at)
	}
}

// wantAbsent checks that nothing is stored under key.
func (e *Env) wantAbsent(ctx context.Context, key string) {
	resp := e.headHTTP(ctx, key, nil, nil)
	if resp.Status == 200 {
		e.failf("nothing should be stored, but there is an object of %d bytes", resp.Length)
	}
	if resp.Status != 404 {
		e.failf("HEAD of an object that should not exist answered %d, want 404", resp.Status)
	}
}

func firstDifference(a, b []byte) (at int, same bool) {
	if bytes.Equal(a, b) {
		return 0, true
	}
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i, false
		}
	}
	return n, false
}

// itoa writes a number for a header or a query.
func itoa[T ~int | ~int64](n T) string { return strconv.FormatInt(int64(n), 10) }
