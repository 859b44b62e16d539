// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// FabricAuto lets Run choose the first fabric that the server and this host have in
// common, or find out that RDMA is switched off or not there.
const FabricAuto = "auto"

// Speaks is what a server makes of S3 over RDMA, as found out before the cases run.
type Speaks struct {
	// RDMA is yes, off (every descriptor is declined: nothing is lost) or no (the server
	// takes no notice of descriptors: a PUT with one is stored as an empty object).
	RDMA string `json:"rdma"`
	// Fabrics are those that can be connected over HTTP: shm, tcp, rc.
	Fabrics []string `json:"fabrics"`
	// Pairs tells that hipobj-rc-v2 is served: a queue pair for each transfer.
	Pairs bool `json:"hipobj_rc_v2"`
	// Answers are what it says to a descriptor of memory that does not exist, in each
	// known dialect.
	Answers []DialectAnswer `json:"dialects"`
	// SmallestWindow is the least number of bytes that is moved by descriptor; 0 is not
	// known. Smaller ones are declined.
	SmallestWindow int64 `json:"smallest_window,omitempty"`
	// PolicyPut and PolicyGet are the server's own checksum policies; "" where it knows
	// none.
	PolicyPut string `json:"policy_put,omitempty"`
	PolicyGet string `json:"policy_get,omitempty"`
}

// DialectAnswer is what a server says to a PUT in one dialect.
type DialectAnswer struct {
	Dialect string `json:"dialect"`
	// Answer is declined, malformed, refused (403), failed (the transfer was tried), busy,
	// IGNORED (stored as an empty object) or the HTTP status.
	Answer string `json:"answer"`
}

// The values of Speaks.RDMA.
const (
	rdmaYes = "yes"
	rdmaOff = "off"
	rdmaNo  = "no"
)

const ignored = "IGNORED"

// dialect is one way to name memory, here memory that exists nowhere.
type dialect struct {
	id        string
	header    string
	token     func() string
	malformed bool // no known server takes it for a descriptor
}

// dialects are all that is known (see PROTOCOL.md, section 3).
func dialects() []dialect {
	text := func(s string) func() string { return func() string { return s } }
	session := func(transport string) func() string { return func() string { return sessionExample(transport) } }
	return []dialect{
		{"bare", headerToken, text(bareExample), false},
		{"bare-semicolon", headerToken, text(bareExample + ";"), false},
		{"suffix", headerToken, text(bareExample + ":00007f1234567000:0000000000001000"), false},
		{"base64", headerToken, text(base64Example()), false},
		{"hipobject", headerToken, text(hipExample(1)), false},
		{"libfabric", headerToken, text(bareExample + ":00100000:ofi1:tcp:00112233:44556677"), false},
		{"session-rc", headerToken, session("rc"), false},
		{"session-shm", headerToken, session("shm"), false},
		{"session-tcp", headerToken, session("tcp"), false},
		{"session-unknown", headerToken, session("ucx"), false},
		{"scality-rc", headerToken, text("192.0.2.1:7471:00007f1234567000:00100000:aabbccdd"), true},
		{"malformed", headerToken, text("descriptor"), true},
	}
}

// discover finds out what the server speaks. It never fails: what cannot be found out is
// left out.
func (r *runner) discover(ctx context.Context) Speaks {
	ctx, cancel := context.WithTimeout(ctx, r.options.Patience)
	defer cancel()
	s := Speaks{RDMA: rdmaNo, Fabrics: []string{}}
	knows, served := false, false
	for _, name := range []string{"shm", "tcp", "rc"} {
		resp, err := r.client.Do(ctx, connectRequest(name, rdmaio.Hello{}))
		if err != nil {
			continue
		}
		switch {
		case resp.Status == 400 && resp.Error().Code == "InvalidRDMAToken", resp.Status == 200 && resp.Header.Get(headerSession) != "":
			s.Fabrics = append(s.Fabrics, name)
		case resp.Status == 501 && resp.Header.Get(headerReply) == "501":
			knows = true
		}
	}
	// A prepare without a hello is the client's mistake where it is served. A server that
	// takes the path for a bucket's answers the same to any.
	prepare, other := r.hipAnswer(ctx, "prepare"), r.hipAnswer(ctx, "discover")
	s.Pairs = prepare.status == 400 && prepare != other
	knows = knows || prepare.declined
	all := append(dialects(), dialect{"bare in x-rdma-info", headerAlias, func() string { return bareExample }, false},
		dialect{"bare in x-scal-rdma", "x-scal-rdma", func() string { return bareExample }, false})
	for _, d := range all {
		a := r.ask(ctx, d)
		if a == "" {
			continue
		}
		s.Answers = append(s.Answers, DialectAnswer{d.id, a})
		knows = knows || a == "declined"
		served = served || a == "refused" || a == "failed"
	}
	switch {
	case len(s.Fabrics) > 0 || s.Pairs || served:
		s.RDMA = rdmaYes
	case knows:
		s.RDMA = rdmaOff
	}
	return s
}

// hipAnswer is what a server says to a request below /.hipobj-rc/ that lacks everything.
type hipAnswer struct {
	status   int
	code     string
	declined bool
}

func (r *runner) hipAnswer(ctx context.Context, action string) hipAnswer {
	resp, err := r.client.Do(ctx, rawhttp.Request{Method: "POST", Path: "/.hipobj-rc/" + action, Header: http.Header{headerHipProtocol: {hipProtocol}}})
	if err != nil {
		return hipAnswer{}
	}
	return hipAnswer{resp.Status, resp.Error().Code, resp.Status == 501 && resp.Header.Get(headerHipStatus) == "unsupported"}
}

// ask sends a PUT in one dialect, and removes what it makes.
func (r *runner) ask(ctx context.Context, d dialect) string {
	key := r.prefix + "discover/" + strings.ReplaceAll(d.id, " ", "-")
	resp, err := r.client.Do(ctx, rawhttp.Request{Method: "PUT", Bucket: r.bucket, Key: key, Header: http.Header{d.header: {d.token()}}})
	if err != nil {
		return ""
	}
	switch {
	case resp.Status == 501 && resp.Header.Get(headerReply) == "501":
		return "declined"
	case resp.Status == 400:
		return "malformed"
	case resp.Status == 403:
		return "refused"
	case resp.Status == 500:
		return "failed"
	case resp.Status == 503:
		return "busy"
	case resp.Status < 300:
		head, err := r.client.Do(ctx, rawhttp.Request{Method: "HEAD", Bucket: r.bucket, Key: key})
		r.client.Do(ctx, rawhttp.Request{Method: "DELETE", Bucket: r.bucket, Key: key}) // the run's end removes what stays
		if err == nil && head.Status == 200 && head.Length == 0 {
			return ignored
		}
	}
	return fmt.Sprintf("HTTP %d", resp.Status)
}

// choose opens the session for FabricAuto. It changes the options to what the server has.
func (r *runner) choose(ctx context.Context, s Speaks) {
	r.options.Fabric = "none"
	for _, name := range s.Fabrics {
		r.options.Fabric = name
		if err := r.session.open(ctx, r); err == nil {
			return
		}
		r.session = sharedSession{} // another fabric may do
	}
	r.options.Fabric = "none"
	r.options.Off = s.RDMA == rdmaOff
}

// limits finds out what a session shows of the server's limits.
func (r *runner) limits(ctx context.Context, s *Speaks) {
	ctx, cancel := context.WithTimeout(ctx, r.options.Patience)
	defer cancel()
	e := &Env{runner: r, client: r.client, id: "discover"}
	defer e.cleanUp()
	policy := func(h http.Header) string { return h.Get(checksum.HeaderPolicy) }
	e.guard(func() { // what is not found out stays unknown
		e.meet(ctx, []Need{NeedFabric})
		for n := 1; n <= 16<<20; n *= 4 {
			key := e.key(itoa(n))
			resp := e.putRDMA(ctx, key, e.filled(pattern(1, n)), nil)
			if resp.Status == 501 {
				continue
			}
			if resp.Status == 200 {
				s.SmallestWindow, s.PolicyPut = int64(n), policy(resp.Header)
				s.PolicyGet = policy(e.getRDMA(ctx, key, e.window(n), nil).Header)
			}
			return
		}
	})
}

// Sentence says what the server speaks in a line.
func (s Speaks) Sentence() string {
	switch s.RDMA {
	case rdmaYes:
		return "This server speaks S3 over RDMA."
	case rdmaOff:
		return "This server knows S3 over RDMA, and declines it: it is switched off, or nothing is served."
	}
	if slices.ContainsFunc(s.Answers, func(a DialectAnswer) bool { return a.Answer == ignored }) {
		return "This server speaks no S3 over RDMA. It takes no notice of descriptors: a PUT with one becomes an empty object, and clients that do not look at x-amz-rdma-reply lose their data."
	}
	return "This server speaks no S3 over RDMA."
}

// write writes s for people.
func (s Speaks) write(w io.Writer) {
	fmt.Fprintln(w, s.Sentence())
	list := func(what string, items []string) {
		if len(items) > 0 {
			fmt.Fprintf(w, "  %-19s %s\n", what, strings.Join(items, ", "))
		}
	}
	list("fabrics:", s.Fabrics)
	if s.Pairs {
		list("pairs:", []string{hipProtocol})
	}
	// Dialects with the same answer stand together, in order of the first.
	var order []string
	by := map[string][]string{}
	for _, a := range s.Answers {
		if by[a.Answer] == nil {
			order = append(order, a.Answer)
		}
		by[a.Answer] = append(by[a.Answer], a.Dialect)
	}
	for _, a := range order {
		list("PUT "+a+":", by[a])
	}
	if s.SmallestWindow > 0 {
		list("smallest window:", []string{fmt.Sprintf("%d bytes or less", s.SmallestWindow)})
	}
	if s.PolicyPut != "" || s.PolicyGet != "" {
		list("checksum policy:", []string{"PUT " + s.PolicyPut, "GET " + s.PolicyGet})
	}
}
