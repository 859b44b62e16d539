// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/plugin"
	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/fabrictest"
)

// flipping is a fabric that can be told to invert a byte of each transfer, where it
// arrives: in the client's memory on a GET, in staging on a PUT.
type flipping struct {
	rdmaio.Fabric
	rdmaio.Acceptor
	broken rdmaio.Fabric
	on     atomic.Bool
}

func (f *flipping) Open(ctx context.Context, d rdmaio.Descriptor, owner string) (rdmaio.Link, error) {
	if f.on.Load() {
		return f.broken.Open(ctx, d, owner)
	}
	return f.Fabric.Open(ctx, d, owner)
}

// afterAnswer is a transport that does something between the answer and the client's
// look at it.
type afterAnswer struct {
	http.RoundTripper
	do atomic.Pointer[func()]
}

func (a *afterAnswer) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := a.RoundTripper.RoundTrip(r)
	if f := a.do.Load(); f != nil && (r.Method == http.MethodGet) {
		(*f)()
	}
	return resp, err
}

// damage is where one byte is flipped.
type damage string

const (
	nowhere  damage = "nowhere"
	fabric   damage = "fabric"
	memory   damage = "client's memory"
	atServer damage = "disk or staging" // before the server hashes
)

// integrityRig is a rig whose bytes can be damaged anywhere.
type integrityRig struct {
	*rig
	fab   *flipping
	after *afterAnswer
}

func newIntegrityRig(t *testing.T, server, asked checksum.Policy) *integrityRig {
	x := &integrityRig{after: &afterAnswer{RoundTripper: http.DefaultTransport.(*http.Transport).Clone()}}
	t.Cleanup(func() { x.after.RoundTripper.(*http.Transport).CloseIdleConnections() })
	x.rig = newRig(t, "shm", rigOptions{
		wrap: func(f rdmaio.Fabric) rdmaio.Fabric {
			x.fab = &flipping{Fabric: f, Acceptor: f.(rdmaio.Acceptor),
				broken: fabrictest.Faulty(f, fabrictest.Plan{Faults: []fabrictest.Fault{{Kind: fabrictest.Flip, Nth: 0}}})}
			return x.fab
		},
		config: func(c *plugin.Config) { c.ChecksumGet, c.ChecksumPut = server, server },
		client: client.Options{Policy: asked, Transport: x.after},
	})
	return x
}

// TestDamageIsFound flips a byte everywhere under every policy, and compares where it
// is found with the table in the documentation of package checksum: there, and only
// there.
func TestDamageIsFound(t *testing.T) {
	const n, off = slab + 77, 1000
	data := pattern(n, 5)
	for _, server := range []checksum.Policy{checksum.PolicyNone, checksum.PolicyRegion, checksum.PolicyEnvelope, checksum.PolicyBoth} {
		for _, asked := range []checksum.Policy{checksum.PolicyNone, checksum.PolicyRegion, checksum.PolicyBoth} {
			if server.Envelope() && !asked.Envelope() {
				continue // refused: see TestEnvelopeIsDemanded
			}
			t.Run(fmt.Sprintf("server %v, client %v", server, asked), func(t *testing.T) {
				x := newIntegrityRig(t, server, asked)
				buf := x.alloc(n)
				for _, alg := range checksum.Algorithms() {
					if !asked.Region() && alg != checksum.CRC64NVME {
						continue // the server chooses on a GET, and PUTs are no different
					}
					for _, at := range []damage{nowhere, fabric, memory} {
						if alg != checksum.XXH64 {
							x.put(t, buf, data, alg, at)
						}
					}
					for _, at := range []damage{nowhere, fabric, memory, atServer} {
						for _, stored := range []bool{true, false} {
							for i := range 4 {
								ranged := i%2 == 1
								x.s3.direct.Store(i < 2)
								o := client.GetOptions{Force: client.ForceFabric}
								if asked.Region() {
									o.Algorithm = alg
								}
								want := data
								if ranged {
									o.Range, want = client.Range{Offset: off, Length: n - 2*off}, data[off:n-off]
								}
								x.get(t, buf, data, want, o, server.With(asked), at, stored)
							}
						}
					}
				}
			})
		}
	}
}

// put stores an object, and a part of one, of which a byte is damaged on the way. The
// client declares a checksum always, so that every damage is found, under every policy.
func (x *integrityRig) put(t *testing.T, buf *client.Buffer, data []byte, alg checksum.Algorithm, at damage) {
	t.Helper()
	sum := checksum.Of(alg, data)
	u, err := x.c.CreateMultipartUpload(t.Context(), "b", "never", client.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	copy(buf.Bytes(), data)
	if at == memory {
		buf.Bytes()[len(data)-1] ^= 1
	}
	x.fab.on.Store(at == fabric)
	res, err := x.c.Put(t.Context(), "b", "never", buf.All(), client.PutOptions{Sum: sum, Force: client.ForceFabric})
	_, part, perr := x.c.UploadPart(t.Context(), u, 1, buf.All(), client.PartOptions{Sum: sum, Force: client.ForceFabric})
	x.fab.on.Store(false)
	o := x.s3.object("/b/never")
	x.s3.mu.Lock()
	parts := len(x.s3.uploads[u.ID].parts)
	x.s3.mu.Unlock()
	if at == nowhere {
		if err != nil || perr != nil || !bytes.Equal(o.data, data) || parts != 1 {
			t.Fatalf("put with %v: %v, %v", alg, err, perr)
		}
		for _, r := range []client.PutResult{res, part} {
			if r.Proof.Policy.Region() && r.Proof.Sum != sum {
				t.Errorf("put with %v: proof %+v", alg, r.Proof)
			}
		}
	} else if !errors.Is(err, client.ErrChecksum) || !errors.Is(perr, client.ErrChecksum) || o != nil || parts != 0 {
		t.Errorf("put with %v, damaged in %s: %v, %v", alg, at, err, perr)
	}
	if err := x.c.Delete(t.Context(), "b", "never", ""); err != nil {
		t.Error(err)
	}
	if err := x.c.AbortMultipartUpload(t.Context(), u); err != nil {
		t.Error(err)
	}
}

// get reads an object, or a range, of which a byte is damaged on the way.
func (x *integrityRig) get(t *testing.T, buf *client.Buffer, data, want []byte, o client.GetOptions, policy checksum.Policy, at damage, stored bool) {
	t.Helper()
	name := fmt.Sprintf("get with %v, damaged in %s, stored sum %v, range %v", o.Algorithm, at, stored, o.Range)
	obj := &object{data: bytes.Clone(data), etag: `"e"`, header: http.Header{}}
	if stored {
		sum := checksum.Of(checksum.CRC64NVME, data)
		obj.header.Set(sum.Algorithm().Header(), sum.Base64())
	}
	if at == atServer {
		obj.data[len(data)/2] ^= 1
	}
	x.s3.mu.Lock()
	x.s3.objects["/b/k"] = obj
	x.s3.mu.Unlock()
	x.fab.on.Store(at == fabric)
	if at == memory {
		flip := func() { buf.Bytes()[len(want)-1] ^= 1 }
		x.after.do.Store(&flip)
	}
	clear(buf.Bytes())
	res, err := x.c.Get(t.Context(), "b", "k", buf.All(), o)
	x.fab.on.Store(false)
	x.after.do.Store(nil)

	byStored := stored && o.Range == client.Range{}
	found := at != nowhere && (byStored || policy.Region() && at != atServer)
	switch {
	case !found:
		if err != nil || bytes.Equal(buf.Bytes()[:res.N], want) != (at == nowhere) {
			t.Errorf("%s: %v", name, err)
		}
		if (byStored || policy.Region()) == res.Verified.IsZero() {
			t.Errorf("%s: verified %v", name, res.Verified)
		}
	case at == atServer && policy.Region() && (o.Algorithm == checksum.CRC64NVME || o.Algorithm == 0):
		var e *client.Error
		if !errors.As(err, &e) || e.Code != plugin.CodeChecksumMismatch || !errors.Is(err, client.ErrChecksum) {
			t.Errorf("%s: %v, want the server's word", name, err)
		}
	default:
		if !errors.Is(err, checksum.ErrMismatch) {
			t.Errorf("%s: %v, want a mismatch", name, err)
		}
	}
}

// TestBlocksNameTheDamage: both ways, and the list's bound.
func TestBlocksNameTheDamage(t *testing.T) {
	x := newIntegrityRig(t, checksum.PolicyNone, checksum.PolicyNone)
	const n, block = 2<<20 + 5, 4096
	buf, data := x.alloc(n), pattern(n, 3)
	copy(buf.Bytes(), data)
	put, err := x.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{Block: block, Force: client.ForceFabric})
	if err != nil || len(put.Proof.List.Sums) == 0 || put.Proof.Sum != checksum.Of(checksum.CRC64NVME, data) {
		t.Fatalf("put: %+v, %v", put.Proof, err)
	}
	for _, alg := range []checksum.Algorithm{checksum.CRC32, checksum.CRC32C, checksum.CRC64NVME} {
		o := client.GetOptions{Algorithm: alg, Block: block, Force: client.ForceFabric}
		got, err := x.c.Get(t.Context(), "b", "k", buf.All(), o)
		if err != nil || got.Proof.Sum.Algorithm() != alg || got.Proof.List.Verify(data) != nil || got.Proof.List.Block%block != 0 || len(got.Proof.List.Text()) > 4096 {
			t.Fatalf("%v: %+v, %v", alg, got.Proof.Sum, err)
		}
		const at = n - 100
		flip := func() { buf.Bytes()[at] ^= 1 }
		x.after.do.Store(&flip)
		_, err = x.c.Get(t.Context(), "b", "k", buf.All(), o)
		x.after.do.Store(nil)
		var be *checksum.BlockError
		if !errors.As(err, &be) || be.Damaged != 1 || at < be.Offset || at >= be.Offset+be.Length || be.Length > got.Proof.List.Block {
			t.Errorf("%v: %v", alg, err)
		}
	}
	copy(buf.Bytes(), data)
	x.fab.on.Store(true)
	_, err = x.c.Put(t.Context(), "b", "never", buf.All(), client.PutOptions{Block: 64 << 10, Force: client.ForceFabric})
	x.fab.on.Store(false)
	if !errors.Is(err, client.ErrChecksum) || x.s3.object("/b/never") != nil {
		t.Errorf("a damaged PUT: %v", err)
	}
	for name, err := range map[string]error{
		"no CRC":      second(x.c.Get(t.Context(), "b", "k", buf.All(), client.GetOptions{Algorithm: checksum.SHA256, Block: block})),
		"too small":   second(x.c.Get(t.Context(), "b", "k", buf.All(), client.GetOptions{Block: 10})),
		"unverified":  second(x.c.Get(t.Context(), "b", "k", buf.All(), client.GetOptions{Block: block, NoVerify: true})),
		"put, no CRC": second(x.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{Block: block, Sum: checksum.Of(checksum.SHA1, data)})),
	} {
		if !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestEnvelopeIsDemanded: a server that wants the envelope refuses clients that do not
// sign it, and moves nothing.
func TestEnvelopeIsDemanded(t *testing.T) {
	x := newIntegrityRig(t, checksum.PolicyEnvelope, checksum.PolicyRegion)
	buf := x.alloc(1000)
	_, err := x.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{Force: client.ForceFabric})
	var e *client.Error
	if !errors.As(err, &e) || e.Status != http.StatusBadRequest || x.s3.object("/b/k") != nil {
		t.Errorf("put: %v", err)
	}
}

// TestVerifiedParts: the checksum of a large object follows from those of its ranges.
func TestVerifiedParts(t *testing.T) {
	x := newIntegrityRig(t, checksum.PolicyNone, checksum.PolicyRegion)
	const part, n = 5 << 20, 11<<20 + 3
	buf, data := x.alloc(n), pattern(n, 8)
	for _, alg := range []checksum.Algorithm{checksum.CRC32, checksum.SHA256} {
		for _, right := range []bool{true, false} {
			sum := checksum.Of(alg, data)
			if !right {
				sum = checksum.Of(alg, data[1:])
			}
			h := http.Header{}
			h.Set(alg.Header(), sum.Base64())
			x.s3.mu.Lock()
			x.s3.objects["/b/big"] = &object{data: data, etag: `"e"`, header: h}
			x.s3.mu.Unlock()
			res, err := x.c.Download(t.Context(), "b", "big", buf.All(), client.DownloadOptions{PartSize: part, Force: client.ForceFabric})
			if right && (err != nil || res.Verified != sum || !bytes.Equal(buf.Bytes(), data)) || !right && !errors.Is(err, checksum.ErrMismatch) {
				t.Errorf("%v, right %v: verified %v, %v", alg, right, res.Verified, err)
			}
		}
	}
}
