// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// otherCases: calls that a descriptor does not concern are served as without it.
func otherCases() []Case {
	asWithout := func(id, rule string, run func(ctx context.Context, e *Env)) Case {
		return Case{ID: "other/" + id, Level: Must, When: Always, Source: srcS3StayS3 + "; ceph 70458", Rule: rule, Run: run}
	}
	tagged := func(r rawhttp.Request) rawhttp.Request {
		r.Header = r.Header.Clone()
		if r.Header == nil {
			r.Header = http.Header{}
		}
		r.Header[headerToken] = []string{bareExample}
		return r
	}
	return []Case{
		asWithout("head", "HEAD with a descriptor: the object's length and headers, no RDMA headers", func(ctx context.Context, e *Env) {
			key := e.stored(ctx, "o", pattern(140, 12_345))
			plain := e.headHTTP(ctx, key, nil, nil)
			resp := e.do(ctx, tagged(rawhttp.Request{Method: "HEAD", Bucket: e.bucket(), Key: key}))
			e.wantRefused(resp, 200)
			if resp.Length != 12_345 || resp.Header.Get("Etag") != plain.Header.Get("Etag") {
				e.failf("content-length %d and ETag %s, without the descriptor %d and %s", resp.Length, resp.Header.Get("Etag"), plain.Length, plain.Header.Get("Etag"))
			}
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "HEAD", Bucket: e.bucket(), Key: e.key("never")})), 404)
		}),
		asWithout("list", "listings with a descriptor are listings", func(ctx context.Context, e *Env) {
			key := e.stored(ctx, "o", pattern(141, 10))
			for _, q := range [][]string{{"list-type", "2", "prefix", key}, {"prefix", key}} {
				resp := e.do(ctx, tagged(rawhttp.Request{Method: "GET", Bucket: e.bucket(), Query: query(q...)}))
				e.wantRefused(resp, 200)
				if !strings.Contains(string(resp.Body), "<Key>"+key+"</Key>") {
					e.failf("the listing does not show the object")
				}
			}
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "GET"})), 200)
		}),
		asWithout("copy", "CopyObject with a descriptor copies: it is a PUT, but not of the client's bytes", func(ctx context.Context, e *Env) {
			data := pattern(142, 70_000)
			key, to := e.stored(ctx, "o", data), e.key("copy")
			resp := e.do(ctx, tagged(rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: to,
				Header: http.Header{"X-Amz-Copy-Source": {"/" + e.bucket() + "/" + rawhttp.EscapePath(key)}}}))
			e.wantRefused(resp, 200)
			e.wantStored(ctx, to, data)
		}),
		asWithout("part-copy", "UploadPartCopy with a descriptor copies", func(ctx context.Context, e *Env) {
			data := pattern(143, 70_000)
			key := e.stored(ctx, "o", data)
			u := e.startUpload(ctx, e.key("copy"), nil)
			r := tagged(u.request(1, "", nil))
			r.Header.Set("X-Amz-Copy-Source", "/"+e.bucket()+"/"+rawhttp.EscapePath(key))
			e.wantRefused(e.do(ctx, r), 200)
			u.wantParts(ctx, 70_000)
		}),
		asWithout("multipart-calls", "CreateMultipartUpload, ListParts, Complete and Abort with a descriptor work", func(ctx context.Context, e *Env) {
			u := e.startUpload(ctx, e.key("o"), http.Header{headerToken: {bareExample}})
			u.addHTTP(ctx, 1, pattern(144, 1000))
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: u.key, Query: query("uploadId", u.id)})), 200)
			body := fmt.Sprintf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", u.parts[0].ETag)
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "POST", Bucket: e.bucket(), Key: u.key, Query: query("uploadId", u.id), Body: []byte(body)})), 200)
			e.wantStored(ctx, u.key, pattern(144, 1000))
			v := e.startUpload(ctx, e.key("never"), nil)
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "DELETE", Bucket: e.bucket(), Key: v.key, Query: query("uploadId", v.id)})), 204)
		}),
		asWithout("tagging", "object tagging with a descriptor works: it is a PUT on the object's path, with a body", func(ctx context.Context, e *Env) {
			key := e.stored(ctx, "o", pattern(145, 10))
			put := rawhttp.Request{Method: "PUT", Bucket: e.bucket(), Key: key, Query: query("tagging", ""),
				Body: []byte("<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>")}
			plain := e.do(ctx, put)
			if plain.Status != 200 {
				e.skipf("the server takes no tags without a descriptor either (HTTP %d)", plain.Status)
			}
			e.wantRefused(e.do(ctx, tagged(put)), plain.Status)
			resp := e.do(ctx, tagged(rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key, Query: query("tagging", "")}))
			e.wantRefused(resp, 200)
			if !strings.Contains(string(resp.Body), "<Value>v</Value>") {
				e.failf("the tag is not there")
			}
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "DELETE", Bucket: e.bucket(), Key: key, Query: query("tagging", "")})), 204)
			e.wantStored(ctx, key, pattern(145, 10))
		}),
		asWithout("delete", "DELETE of one and of several objects with a descriptor deletes", func(ctx context.Context, e *Env) {
			key := e.stored(ctx, "one", pattern(146, 10))
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "DELETE", Bucket: e.bucket(), Key: key})), 204)
			e.wantAbsent(ctx, key)
			key = e.stored(ctx, "several", pattern(146, 10))
			body := []byte("<Delete><Object><Key>" + key + "</Key></Object></Delete>")
			sum := md5.Sum(body)
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "POST", Bucket: e.bucket(), Query: query("delete", ""), Body: body,
				Header: http.Header{"Content-Md5": {base64.StdEncoding.EncodeToString(sum[:])}}})), 200)
			e.wantAbsent(ctx, key)
		}),
		asWithout("subresources", "GETs of subresources (acl, attributes, versions, uploads, location, policy) with a descriptor are answered as without it", func(ctx context.Context, e *Env) {
			key := e.stored(ctx, "o", pattern(147, 10))
			for _, sub := range []struct{ key, name string }{
				{key, "acl"}, {key, "attributes"}, {key, "retention"}, {key, "legal-hold"},
				{"", "versions"}, {"", "uploads"}, {"", "location"}, {"", "policy"}, {"", "versioning"},
			} {
				r := rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: sub.key, Query: query(sub.name, ""), Header: http.Header{"X-Amz-Object-Attributes": {"ETag,ObjectSize"}}}
				plain, resp := e.do(ctx, r), e.do(ctx, tagged(r))
				if resp.Status != plain.Status || len(resp.Body) == 0 != (len(plain.Body) == 0) {
					e.failf("GET ?%s answers %d with %d bytes, without a descriptor %d with %d bytes", sub.name, resp.Status, len(resp.Body), plain.Status, len(plain.Body))
				}
				e.wantRefused(resp, plain.Status)
			}
		}),
		asWithout("bucket-calls", "making, asking for and removing a bucket with a descriptor works", func(ctx context.Context, e *Env) {
			bucket := bucketPrefix + randomName()
			e.onEnd(func(ctx context.Context) { removeBucket(ctx, e.runner.client, bucket) })
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "PUT", Bucket: bucket})), 200)
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "HEAD", Bucket: bucket})), 200)
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "GET", Bucket: bucket, Query: query("location", "")})), 200)
			e.wantRefused(e.do(ctx, tagged(rawhttp.Request{Method: "DELETE", Bucket: bucket})), 204)
		}),
	}
}

func lifecycleCases() []Case {
	const big = 48 << 20
	return []Case{
		{ID: "lifecycle/payload", Level: Must, Needs: []Need{NeedFabric}, Source: "the point of it all",
			Rule: "a PUT and a GET by descriptor move no byte in an HTTP payload, counted on the wire",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(150, 3<<20)
				w, key := e.filled(data), e.key("o")
				count := func() int64 { return e.runner.client.Counter().Of("PUT", "GET").Payload() }
				before := count()
				e.wantPut(e.putRDMA(ctx, key, w, nil), len(data))
				w.poison()
				e.wantGet(e.getRDMA(ctx, key, w, nil), len(data))
				if moved := count() - before; moved != 0 {
					e.failf("%d bytes of payload were seen on the wire, want 0", moved)
				}
				w.wantReceived(data)
			}},
		{ID: "lifecycle/reuse", Level: Must, Needs: []Need{NeedFabric}, Source: srcDraft,
			Rule: "one descriptor serves any number of requests, both ways",
			Run: func(ctx context.Context, e *Env) {
				w, key := e.window(100_000), e.key("o")
				token := w.token()
				for i := range 8 {
					data := pattern(uint64(160+i), w.n)
					copy(w.bytes(), data)
					e.wantPut(e.do(ctx, e.withToken("PUT", key, token, nil)), len(data))
					w.poison()
					e.wantGet(e.do(ctx, e.withToken("GET", key, token, nil)), len(data))
					w.wantReceived(data)
				}
			}},
		{ID: "lifecycle/many-requests", Level: Must, Needs: []Need{NeedFabric}, Source: "leaks of buffers, links and registrations",
			Rule: "hundreds of requests, failing ones among them, do not wear the server out",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(151, 2000)
				key, w := e.stored(ctx, "o", data), e.window(len(data))
				d := w.descriptor()
				d.RKey ^= 0x5a5a5a5a
				bad := e.encode(d)
				for range 150 {
					e.wantGet(e.getRDMA(ctx, key, w, nil), len(data))
					e.wantFailed(e.do(ctx, e.withToken("GET", key, bad, nil)))
				}
				w.wantReceived(data)
				e.transferBothWays(ctx, e.shared())
			}},
		{ID: "lifecycle/concurrent-puts-one-window", Level: Must, Needs: []Need{NeedFabric}, Source: "MinIO SDKs retry while the first attempt still runs",
			Rule: "PUTs at once from one window, with one descriptor, each store the same bytes",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(152, 3<<20+11)
				token := e.filled(data).token()
				keys := make([]string, 8)
				for i := range keys {
					keys[i] = e.key(itoa(i))
				}
				e.parallel(len(keys), func(i int) {
					e.wantPut(e.do(ctx, e.withToken("PUT", keys[i], token, nil)), len(data))
				})
				for _, key := range keys {
					e.wantStored(ctx, key, data)
				}
			}},
		{ID: "lifecycle/concurrent-puts-one-key", Level: Must, Needs: []Need{NeedFabric}, Source: "MinIO SDKs retry while the first attempt still runs",
			Rule: "PUTs at once of one key leave one of the objects, whole",
			Run: func(ctx context.Context, e *Env) {
				key := e.key("o")
				var contents [][]byte
				var windows []*window
				for i := range 6 {
					data := pattern(uint64(170+i), 1<<20+i)
					contents, windows = append(contents, data), append(windows, e.filled(data))
				}
				e.parallel(len(windows), func(i int) {
					e.wantPut(e.putRDMA(ctx, key, windows[i], nil), len(contents[i]))
				})
				got := e.do(ctx, rawhttp.Request{Method: "GET", Bucket: e.bucket(), Key: key})
				e.want(got, 200)
				if !slices.ContainsFunc(contents, func(c []byte) bool { return string(c) == string(got.Body) }) {
					e.failf("the object of %d bytes is none of those that were put", len(got.Body))
				}
			}},
		{ID: "lifecycle/overlapping-windows", Level: Must, Needs: []Need{NeedFabric}, Source: srcBounds,
			Rule: "PUTs at once from overlapping windows of one registration each store their own bytes",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(153, 2<<20)
				w := e.filled(data)
				keys := make([]string, 6)
				for i := range keys {
					keys[i] = e.key(itoa(i))
				}
				cut := func(i int) (from, to int) { return i * 150_001, 1<<20 + i*100_003 }
				e.parallel(len(keys), func(i int) {
					from, to := cut(i)
					part := &window{e: e, exposed: w.exposed, off: w.off + from, n: to - from}
					e.wantPut(e.putRDMA(ctx, keys[i], part, nil), to-from)
				})
				for i, key := range keys {
					from, to := cut(i)
					e.wantStored(ctx, key, data[from:to])
				}
			}},
		{ID: "lifecycle/concurrent-gets", Level: Must, Needs: []Need{NeedFabric}, Source: srcBounds,
			Rule: "GETs at once into neighbouring windows each receive their own object, and touch no neighbour",
			Run: func(ctx context.Context, e *Env) {
				const n = 8
				keys, contents, windows := make([]string, n), make([][]byte, n), make([]*window, n)
				for i := range n {
					contents[i] = pattern(uint64(180+i), 1<<20+i*1001)
					keys[i] = e.stored(ctx, itoa(i), contents[i])
					windows[i] = e.window(len(contents[i]))
				}
				for range 3 {
					e.parallel(n, func(i int) {
						e.wantGet(e.getRDMA(ctx, keys[i], windows[i], nil), len(contents[i]))
						windows[i].wantReceived(contents[i])
						windows[i].poison()
					})
				}
			}},
		{ID: "lifecycle/get-while-overwritten", Level: Must, Needs: []Need{NeedFabric}, Source: "multi-storage-client 87 (object replaced under a GET)",
			Rule: "a GET by descriptor of an object that is being replaced brings one object whole, the one that its ETag names",
			Run: func(ctx context.Context, e *Env) {
				contents := map[string][]byte{}
				key := e.key("o")
				for seed := range uint64(2) {
					data := pattern(190+seed, 2<<20+int(seed)*4097)
					contents[e.putHTTP(ctx, key, data, nil).Header.Get("Etag")] = data
				}
				w := e.window(3 << 20)
				e.parallel(2, func(i int) {
					if i == 0 {
						for range 5 {
							for _, data := range contents {
								e.putHTTP(ctx, key, data, nil)
							}
						}
						return
					}
					for range 12 {
						w.poison()
						resp := e.getRDMA(ctx, key, w, nil)
						data, ok := contents[resp.Header.Get("Etag")]
						if !ok {
							e.failf("HTTP %d with ETag %s, which is none of the objects'", resp.Status, resp.Header.Get("Etag"))
						}
						e.wantGet(resp, len(data))
						w.wantReceived(data)
					}
				})
			}},
		{ID: "lifecycle/crowd", Level: Must, Needs: []Need{NeedFabric}, Source: "MinIO clients charge a failure to the NIC; busy is 503 SlowDown",
			Rule: "when many requests come at once each one succeeds, or is told 503 SlowDown without RDMA headers and nothing is written; all do so in time",
			Run: func(ctx context.Context, e *Env) {
				data := pattern(159, 4<<20)
				key := e.stored(ctx, "o", data)
				windows := make([]*window, 32)
				for i := range windows {
					windows[i] = e.window(len(data))
				}
				started := time.Now()
				e.parallel(len(windows), func(i int) {
					resp := e.getRDMA(ctx, key, windows[i], nil)
					if took := time.Since(started); took > 30*time.Second {
						e.failf("an answer took %v", took)
					}
					if resp.Status != 503 {
						e.wantGet(resp, len(data))
						windows[i].wantReceived(data)
						return
					}
					e.wantRefused(resp, 503)
					if code := resp.Error().Code; code != "SlowDown" {
						e.failf("503 with code %q, want SlowDown", code)
					}
					windows[i].wantUntouched()
				})
				e.transferBothWays(ctx, e.shared())
			}},
		{ID: "lifecycle/cancelled-put", Level: Must, Needs: []Need{NeedFabric}, Source: srcShort + "; client death mid-READ",
			Rule: "when the client goes away in the middle of a PUT there is the whole object later or none, and the next request is served",
			Run: func(ctx context.Context, e *Env) {
				e.sized(big)
				data := pattern(154, big)
				w := e.filled(data)
				for i, after := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
					key := e.key(itoa(i))
					cancelled, cancel := context.WithTimeout(ctx, after)
					_, err := e.try(cancelled, e.withToken("PUT", key, w.token(), nil))
					cancel()
					if err != nil {
						if err := w.exposed.Rekey(ctx); err != nil {
							e.failf("withdraw the descriptor: %v", err)
						}
					}
					e.wantWholeOrNothing(ctx, key, data)
				}
				e.transferBothWays(ctx, e.shared())
			}},
		{ID: "lifecycle/cancelled-get", Level: Must, Needs: []Need{NeedFabric}, Source: srcRuleOne + "; ydb nbs 5729",
			Rule: "when the client goes away in the middle of a GET and withdraws its descriptor, nothing is written any more, and the next request is served",
			Run: func(ctx context.Context, e *Env) {
				e.sized(big)
				data := pattern(155, big)
				key, w := e.stored(ctx, "o", data), e.window(big)
				for _, after := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
					cancelled, cancel := context.WithTimeout(ctx, after)
					e.try(cancelled, e.withToken("GET", key, w.token(), nil)) // how far it came is chance
					cancel()
					if err := w.exposed.Rekey(ctx); err != nil {
						e.failf("withdraw the descriptor: %v", err)
					}
					w.poison()
					e.pause(ctx, 50*time.Millisecond)
					w.wantUntouched()
				}
				e.wantGet(e.getRDMA(ctx, key, w, nil), len(data))
				w.wantReceived(data)
			}},
		{ID: "lifecycle/peer-dies-in-put", Level: Must, Needs: []Need{NeedFabric}, Source: srcShort + "; client death mid-READ",
			Rule: "when the memory's owner dies before, at the start or in the middle of a PUT, the answer is an error or the object is whole, and comes in time",
			Run: func(ctx context.Context, e *Env) {
				const n = 16 << 20
				e.sized(n)
				data := pattern(156, n)
				for i, after := range []time.Duration{0, 0, 0, time.Millisecond, 2 * time.Millisecond, 4 * time.Millisecond, 8 * time.Millisecond} {
					p := e.connectPeer(ctx, nil)
					w := e.windowOf(p, n, guard)
					copy(w.bytes(), data)
					key, token := e.key(itoa(i)), w.token()
					var death sync.WaitGroup
					death.Add(1)
					go func() {
						defer death.Done()
						time.Sleep(after) // where the transfer is then is chance; hence several
						p.target.Close()
					}()
					resp := e.doInTime(ctx, e.withToken("PUT", key, token, nil), death.Wait)
					if resp.Status == 200 {
						e.wantPut(resp, n)
						e.wantStored(ctx, key, data)
						continue
					}
					e.wantFailedOrDeclined(resp)
					e.wantAbsent(ctx, key)
				}
				e.transferBothWays(ctx, e.shared())
			}},
		{ID: "lifecycle/peer-is-dead", Level: Must, Needs: []Need{NeedFabric}, Source: srcMatrix + " (clients wait 10 s at most)",
			Rule: "requests of a session whose owner is dead are answered with an error in time, nothing stored",
			Run: func(ctx context.Context, e *Env) {
				present := e.stored(ctx, "o", pattern(157, 70_000))
				key := e.key("never")
				for i := range 8 {
					p := e.connectPeer(ctx, nil)
					token := e.windowOf(p, 70_000, guard).token()
					p.target.Close()
					req := e.withToken("PUT", key, token, nil)
					if i%2 == 1 {
						req = e.withToken("GET", present, token, nil)
					}
					e.wantFailedOrDeclined(e.doInTime(ctx, req, func() {}))
					e.wantAbsent(ctx, key)
				}
				e.transferBothWays(ctx, e.shared())
			}},
		{ID: "lifecycle/session-of-other-fabric", Level: Should, Needs: []Need{NeedFabric}, Source: srcBounds,
			Rule: "a session named under another transport's prefix is not found",
			Run: func(ctx context.Context, e *Env) {
				d := e.filled(pattern(158, 5000)).descriptor()
				if d.Transport == rdmaio.TransportSHM {
					d.Transport = rdmaio.TransportTCP
				} else {
					d.Transport = rdmaio.TransportSHM
				}
				key := e.key("never")
				e.wantDeclined(e.do(ctx, e.withToken("PUT", key, e.encode(d), nil)))
				e.wantAbsent(ctx, key)
			}},
	}
}

// inTime is how long an answer may take when the other end of the fabric is gone:
// the known clients wait 10 s, and something else may keep the machine busy.
const inTime = 15 * time.Second

// doInTime is do, bounded. It calls then before it judges the answer.
func (e *Env) doInTime(ctx context.Context, r rawhttp.Request, then func()) *rawhttp.Response {
	ctx, cancel := context.WithTimeout(ctx, inTime)
	defer cancel()
	resp, err := e.try(ctx, r)
	then()
	if err != nil {
		e.failf("no answer within %v: %v", inTime, err)
	}
	return resp
}

// wantFailedOrDeclined: whether the server knows already that a peer is gone is
// chance.
func (e *Env) wantFailedOrDeclined(resp *rawhttp.Response) {
	if resp.Status == 501 {
		e.wantDeclined(resp)
		return
	}
	e.wantFailed(resp)
}

// wantWholeOrNothing waits until the server has made up its mind about key, and
// checks that the object is whole if it is there.
func (e *Env) wantWholeOrNothing(ctx context.Context, key string, data []byte) {
	var last int64 = -2
	for range 20 {
		resp := e.headHTTP(ctx, key, nil, nil)
		now := int64(-1)
		if resp.Status == 200 {
			now = resp.Length
		}
		if now == last {
			break
		}
		last = now
		e.pause(ctx, 100*time.Millisecond)
	}
	if last >= 0 {
		e.wantStored(ctx, key, data)
	}
}
