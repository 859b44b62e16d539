// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// Options say what is tested and how. Endpoint, AccessKey and SecretKey are needed.
type Options struct {
	// Endpoint is http://host:port or https://host:port.
	Endpoint string
	// Region is signed; "" is us-east-1.
	Region               string
	AccessKey, SecretKey string
	// TLS is used for https; nil trusts the system's roots.
	TLS *tls.Config

	// Second is another identity that may read and write objects. Without it the
	// cases that need one are skipped.
	Second *rawhttp.Credentials

	// Fabric is shm, tcp, rc, none or FabricAuto ("" is none).
	Fabric string
	// Device is the client's own, for rc.
	Device Device
	// NewTarget, if not nil, makes the targets instead of Fabric's own. The suite
	// closes what it made.
	NewTarget func(context.Context) (rdmaio.Target, error)
	// NewPairTarget, if not nil, makes the targets of hipobj-rc-v2; without it they are made
	// where Fabric is rc. The suite closes what it made.
	NewPairTarget func() rdmaio.PairTarget
	// Off says that the server's RDMA is switched off: what holds then is tested.
	Off bool

	// Bucket, if not "", exists and is used instead of buckets of the suite's own.
	Bucket string

	// Select is a pattern of path.Match, or the beginning of an ID; "" selects all.
	// Several can be given, separated by commas.
	Select string
	// Level is the least strict level that is run; 0 is May, that is, all.
	Level Level

	// Patience bounds one case; 0 is 60 seconds.
	Patience time.Duration
	// MaxObject leaves out cases with objects larger than this many bytes; 0 is no
	// bound.
	MaxObject int64

	// Discovered, if not nil, is called once, before the first of so many cases.
	Discovered func(s Speaks, cases int)
	// Progress, if not nil, is called after each case, in order, from the goroutine
	// of Run.
	Progress func(Result)
}

// ErrOptions is the error for options that make no sense; it names the one.
var ErrOptions = errors.New("invalid option")

// ErrUnreachable: the server did not let the suite start (no connection, or no
// bucket could be made).
var ErrUnreachable = errors.New("server cannot be tested")

// Fabrics are the names that Options.Fabric takes.
func Fabrics() []string { return []string{"shm", "tcp", "rc", "none", FabricAuto} }

func (o *Options) check() error {
	if o.Fabric == "" {
		o.Fabric = "none"
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	if o.Level == 0 {
		o.Level = May
	}
	switch {
	case o.NewTarget == nil && !slices.Contains(Fabrics(), o.Fabric):
		return fmt.Errorf("%w: fabric %q is none of %s", ErrOptions, o.Fabric, strings.Join(Fabrics(), ", "))
	case o.AccessKey == "" || o.SecretKey == "":
		return fmt.Errorf("%w: access key and secret key are needed", ErrOptions)
	case o.Off && o.NewTarget == nil && o.Fabric != "none" && o.Fabric != FabricAuto:
		return fmt.Errorf("%w: a server that is switched off has no fabric (leave fabric out)", ErrOptions)
	case o.Patience < 0 || o.MaxObject < 0:
		return fmt.Errorf("%w: patience and the largest object can't be negative", ErrOptions)
	}
	return o.checkSelect()
}

func (o *Options) checkSelect() error {
	for _, p := range strings.Split(o.Select, ",") {
		if _, err := path.Match(p, "x"); err != nil {
			return fmt.Errorf("%w: select %q: %w", ErrOptions, p, err)
		}
	}
	return nil
}

// Cases are those of Select and Level, whether the server's RDMA is on or off. Nothing
// else of the options is looked at.
func (o Options) Cases() ([]Case, error) {
	if err := o.checkSelect(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(Cases(), func(c Case) bool { return !o.matches(c) }), nil
}

// selects tells whether c is to be run.
func (o *Options) selects(c Case) bool {
	if o.Off && c.When == WhenOn || !o.Off && c.When == WhenOff {
		return false
	}
	return o.matches(c)
}

// matches tells whether Level and Select let c be run.
func (o *Options) matches(c Case) bool {
	if o.Level != 0 && c.Level > o.Level {
		return false
	}
	if o.Select == "" {
		return true
	}
	for _, p := range strings.Split(o.Select, ",") {
		if ok, _ := path.Match(p, c.ID); ok || strings.HasPrefix(c.ID, p) {
			return true
		}
	}
	return false
}

// Run runs the selected cases, one after another, and removes what it created,
// also when ctx ends early: then the report has what was run, and the error is
// ctx's. A failing case is no error: see Report.Failed.
func Run(ctx context.Context, o Options) (Report, error) {
	if err := o.check(); err != nil {
		return Report{}, err
	}
	client, err := rawhttp.New(rawhttp.Config{Endpoint: o.Endpoint, Region: o.Region, TLS: o.TLS,
		Credentials: rawhttp.Credentials{AccessKey: o.AccessKey, SecretKey: o.SecretKey}})
	if err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	defer client.Close()
	r := &runner{options: o, client: client}
	report := Report{Endpoint: o.Endpoint, Started: time.Now()}
	if report.Server, err = r.begin(ctx); err != nil {
		return report, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	defer r.end()
	report.Speaks = r.discover(ctx)
	if o.Fabric == FabricAuto {
		r.choose(ctx, report.Speaks)
	}
	o = r.options
	report.Fabric, report.Off = o.Fabric, o.Off
	if !o.Off {
		r.limits(ctx, &report.Speaks)
	}
	selected := slices.DeleteFunc(Cases(), func(c Case) bool { return !o.selects(c) })
	if o.Discovered != nil {
		o.Discovered(report.Speaks, len(selected))
	}
	for _, c := range selected {
		if ctx.Err() != nil {
			break
		}
		result := r.runCase(ctx, c)
		report.add(result)
		if o.Progress != nil {
			o.Progress(result)
		}
	}
	report.Clients = verdicts(report.Results)
	report.Seconds = time.Since(report.Started).Seconds()
	report.Wire = client.Counter().Total()
	return report, ctx.Err()
}

// runner is what the cases of one run share.
type runner struct {
	options Options
	client  *rawhttp.Client
	bucket  string
	prefix  string
	session sharedSession

	policies bool // the server is known to know checksum policies
}

// begin makes the bucket, and returns the server's name.
func (r *runner) begin(ctx context.Context) (server string, err error) {
	r.prefix = "case/"
	if r.options.Bucket != "" {
		r.bucket, r.prefix = r.options.Bucket, "s3rdma-conformance-"+randomName()+"/"
		resp, err := r.client.Do(ctx, rawhttp.Request{Method: "HEAD", Bucket: r.bucket})
		if err != nil {
			return "", err
		}
		if resp.Status != 200 {
			return "", fmt.Errorf("HEAD of bucket %s: HTTP %d", r.bucket, resp.Status)
		}
		return resp.Header.Get("Server"), nil
	}
	r.bucket = bucketPrefix + randomName()
	ctx, cancel := unhurried(ctx)
	defer cancel()
	resp, err := r.client.Do(ctx, rawhttp.Request{Method: "PUT", Bucket: r.bucket})
	if err != nil {
		return "", err
	}
	if resp.Status != 200 {
		return "", fmt.Errorf("create bucket %s: HTTP %d %s", r.bucket, resp.Status, resp.Error().Code)
	}
	return resp.Header.Get("Server"), nil
}

// end removes the bucket and the session. It has a context of its own: the run's
// may be what ended it.
func (r *runner) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r.session.close(ctx, r.client)
	if r.options.Bucket == "" {
		removeBucket(ctx, r.client, r.bucket) // a left-over bucket is no finding about the server
	} else {
		empty(ctx, r.client, r.bucket, r.prefix)
	}
}

const bucketPrefix = "s3rdma-conformance-"

func randomName() string {
	var b [6]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// runCase runs c within its time, cleans up, and says how it went.
func (r *runner) runCase(ctx context.Context, c Case) (result Result) {
	started := time.Now()
	result = Result{ID: c.ID, Level: c.Level, Rule: c.Rule, Source: c.Source, Status: Passed}
	e := &Env{runner: r, id: c.ID}
	e.client = r.client.Observing(e.observe)
	caseCtx, cancel := context.WithTimeout(ctx, r.options.Patience)
	defer cancel()
	stop := e.guard(func() {
		e.meet(caseCtx, c.Needs)
		c.Run(caseCtx, e)
	})
	if stop != nil {
		result.Status, result.Reason = stop.status, stop.reason
		if stop.status == Failed {
			result.Exchanges = e.exchanges()
			switch {
			case ctx.Err() != nil: // that says nothing of the server
				result.Status, result.Reason, result.Exchanges = Skipped, "interrupted", nil
			case caseCtx.Err() != nil:
				result.Reason += fmt.Sprintf(" (no end within %v)", r.options.Patience)
			}
		}
	}
	result.Verdict = e.verdict
	if result.Reason == "" {
		result.Reason = e.why
	}
	e.cleanUp()
	result.Seconds = time.Since(started).Seconds()
	return result
}
