// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// integrityWay is how the server gets at an object's bytes: as they are, or through its
// own encryption, on which no server can take a short cut.
type integrityWay struct {
	name  string
	store http.Header // of the request that makes the object or the upload
	needs []Need
}

func integrityWays() []integrityWay {
	return []integrityWay{
		{"plain", nil, []Need{NeedFabric}},
		{"encrypted", http.Header{"X-Amz-Server-Side-Encryption": {"AES256"}}, []Need{NeedFabric, NeedKMS}},
	}
}

// integrityCell is one combination of what the protocol promises of a transfer's bytes.
type integrityCell struct {
	policy checksum.Policy
	alg    checksum.Algorithm
	way    integrityWay
	shape  string // whole, part, range
}

// matrixSize is the object's: not so small that servers keep it in its metadata.
const matrixSize = 300_007

// matrixCases are the cells of policies, algorithms, directions, ways and shapes.
func matrixCases() []Case {
	var all []Case
	for _, policy := range []checksum.Policy{checksum.PolicyNone, checksum.PolicyRegion, checksum.PolicyEnvelope, checksum.PolicyBoth} {
		for _, alg := range checksum.Algorithms() {
			for _, way := range integrityWays() {
				for _, direction := range []string{"put", "get"} {
					shapes, run := []string{"whole", "part"}, (*Env).cellPut
					if direction == "get" {
						shapes, run = []string{"whole", "range", "part"}, (*Env).cellGet
					}
					for _, shape := range shapes {
						cell := integrityCell{policy, alg, way, shape}
						all = append(all, Case{ID: strings.ToLower(fmt.Sprintf("integrity/%s/%v/%v/%s/%s", direction, policy, alg, way.name, shape)),
							Level: May, Needs: way.needs, Source: srcPolicy,
							Rule: cell.rule(direction), Run: func(ctx context.Context, e *Env) { run(e, ctx, cell) }})
					}
				}
			}
		}
	}
	return all
}

// rule says what the cell's case tests.
func (c integrityCell) rule(direction string) string {
	told := "the answer says nothing of the bytes, unless the server's own policy does"
	if c.policy.Region() {
		told = fmt.Sprintf("the answer has the %v of exactly the bytes that moved, which tells a change in the client's memory", c.alg)
	}
	if direction == "put" {
		return fmt.Sprintf("under the policy %v a declared %v is verified, and bytes that do not have it are not stored; %s", c.policy, c.alg, told)
	}
	return fmt.Sprintf("under the policy %v a GET brings the bytes; %s; the object's own checksum is told if asked for", c.policy, told)
}

// request completes r as the cell's policy wants it.
func (c integrityCell) request(r rawhttp.Request, h http.Header) rawhttp.Request {
	ask := checksum.RegionRequest{Policy: c.policy}
	if c.policy.Region() {
		ask.Algorithm = c.alg
	}
	r.Header = maps.Clone(r.Header)
	maps.Copy(r.Header, asking(ask))
	maps.Copy(r.Header, h)
	if c.policy.Envelope() {
		r.PayloadHash = rawhttp.EmptySHA256
	}
	return r
}

// told checks what the answer says of the bytes, and that it is not what it would say of
// others.
func (e *Env) told(c integrityCell, resp *rawhttp.Response, moved []byte) {
	p := e.wantProof(resp, c.policy, c.alg, moved)
	damaged := slices.Clone(moved)
	damaged[len(damaged)/2] ^= 1
	if !p.Sum.IsZero() && p.Sum == checksum.Of(p.Sum.Algorithm(), damaged) {
		e.failf("the region's checksum is that of other bytes, too")
	}
}

// cellPut stores bytes with their declared checksum, bytes that have changed after it
// was taken, and changed ones of which nothing is declared.
func (e *Env) cellPut(ctx context.Context, c integrityCell) {
	e.knowsPolicies(ctx)
	data := pattern(170, matrixSize)
	damaged := slices.Clone(data)
	damaged[len(data)/3] ^= 1
	declared := sumHeader(c.alg.String(), data)
	var up *upload
	put := func(key string, bytes []byte, h http.Header) *rawhttp.Response {
		token := e.filled(bytes).token()
		if c.shape == "part" {
			up = e.startUpload(ctx, key, c.way.store)
			return e.do(ctx, c.request(up.request(1, token, nil), h))
		}
		all := maps.Clone(h)
		if all == nil {
			all = http.Header{}
		}
		maps.Copy(all, c.way.store)
		return e.do(ctx, c.request(e.withToken("PUT", key, token, nil), all))
	}
	stored := func(key string, want []byte) {
		if up != nil {
			up.wantParts(ctx, int64(len(want)))
			return
		}
		e.wantStored(ctx, key, want)
	}

	key := e.key("declared")
	resp := put(key, data, declared)
	if resp.Status == 501 { // an algorithm that it does not know
		e.wantDeclined(resp)
		e.skipf("the server does not verify %v", c.alg)
	}
	e.wantPut(resp, len(data))
	e.told(c, resp, data)
	stored(key, data)

	key = e.key("never")
	e.wantRefused(put(key, damaged, declared), 400)
	if up != nil {
		up.wantParts(ctx)
	} else {
		e.wantAbsent(ctx, key)
	}

	// Nothing is declared: the answer is what a client can compare.
	key = e.key("undeclared")
	resp = put(key, damaged, nil)
	e.wantPut(resp, len(data))
	e.told(c, resp, damaged)
	stored(key, damaged)
}

// cellGet reads an object that was stored with its checksum over HTTP.
func (e *Env) cellGet(ctx context.Context, c integrityCell) {
	e.knowsPolicies(ctx)
	data := pattern(171, matrixSize)
	total, first := len(data), 0
	h := http.Header{}
	own := "" // the header of the object's own checksum
	if slices.Contains(s3Algorithms, c.alg.String()) {
		own = c.alg.Header()
	}
	key := e.key("o")
	var req rawhttp.Request
	switch c.shape {
	case "part":
		// The only one, for another would have to have 5 MiB: see policy/get-part.
		u := e.startUpload(ctx, key, c.way.store)
		u.addHTTP(ctx, 1, data)
		u.complete(ctx)
		own = ""
	default:
		store := http.Header{}
		maps.Copy(store, c.way.store)
		if own != "" {
			maps.Copy(store, sumHeader(c.alg.String(), data))
			h.Set("X-Amz-Checksum-Mode", "ENABLED")
		}
		e.putHTTP(ctx, key, data, store)
	}
	whole := data
	w := e.window(len(data))
	req = e.withToken("GET", key, w.token(), nil)
	switch c.shape {
	case "part":
		req.Query = query("partNumber", "1")
	case "range":
		first, own = 100_001, ""
		data = data[first : first+150_000]
		h.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+len(data)-1))
	}
	resp := e.do(ctx, c.request(req, h))
	if c.shape == "whole" {
		e.wantGet(resp, len(data))
	} else {
		e.wantPartial(resp, first, first+len(data)-1, total)
	}
	w.wantReceived(data)
	e.told(c, resp, w.bytes()[:len(data)])
	if own != "" {
		m := mismatch{resp: resp}
		m.header(own, checksum.Of(c.alg, whole).Base64())
		e.report("the object's own checksum is not told", m)
	}
}
