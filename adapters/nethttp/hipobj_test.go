// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/adapters/nethttp"
	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/plugin"
)

// anybody lets everyone in: it stands behind a middleware that has looked.
type anybody struct{}

func (anybody) Authenticate(*http.Request) (plugin.Identity, error) {
	return plugin.Identity{Name: "anybody"}, nil
}

func newHipRig(t *testing.T, o rigOptions) *rig {
	o.nethttp.Trusted = true
	r := newRig(t, "hipobj", o)
	t.Cleanup(func() {
		if n := r.pairs.Live(); n != 0 {
			t.Errorf("%d pairs are left", n)
		}
	})
	return r
}

// TestHipObj: client and server of hipobj-rc-v2 with each other, every byte, and none of
// them in HTTP.
func TestHipObj(t *testing.T) {
	for _, policy := range []checksum.Policy{checksum.PolicyNone, checksum.PolicyRegion, checksum.PolicyBoth} {
		t.Run(policy.String(), func(t *testing.T) {
			r := newHipRig(t, rigOptions{client: client.Options{Policy: policy}})
			buf := r.alloc(3<<20 + 7 + 128)
			for _, n := range []int{1, 4096, slab + 1, 3<<20 + 7} {
				v := buf.View(64, n)
				want := pattern(n, byte(n))
				copy(v.Bytes(), want)
				put, err := r.c.Put(t.Context(), "b", "a dir/k+?", v, client.PutOptions{Force: client.ForceFabric})
				if err != nil {
					t.Fatalf("put %d bytes: %v", n, err)
				}
				if got := r.s3.object("/b/a dir/k+?"); put.Route != client.Fabric || got == nil || !bytes.Equal(got.data, want) || got.etag != put.ETag {
					t.Fatalf("put %d bytes: route %v, or other bytes are stored", n, put.Route)
				}
				for _, c := range []struct {
					r      client.Range
					off, n int
				}{{client.Range{}, 0, n}, {client.Range{Offset: int64(n / 3)}, n / 3, n - n/3}, {client.Range{Suffix: 1}, n - 1, 1}, {client.Range{Length: int64(n/2 + 1)}, 0, n/2 + 1}} {
					clear(buf.Bytes())
					got, err := r.c.Get(t.Context(), "b", "a dir/k+?", v, client.GetOptions{Range: c.r, Force: client.ForceFabric, IfMatch: put.ETag})
					if err != nil || got.Route != client.Fabric || got.N != c.n || got.Offset != int64(c.off) || got.Object.Size != int64(n) {
						t.Fatalf("get %+v of %d bytes: %+v, %v", c.r, n, got, err)
					}
					if !bytes.Equal(v.Bytes()[:c.n], want[c.off:c.off+c.n]) || bytes.Count(buf.Bytes(), []byte{0}) < 128 {
						t.Fatalf("get %+v of %d bytes: other bytes, or some outside of the view", c.r, n)
					}
					if policy.Region() && got.Verified.IsZero() {
						t.Errorf("get %+v: nothing was verified", c.r)
					}
				}
			}
			if n := r.payload.Load(); n != 0 {
				t.Errorf("%d bytes of objects went by HTTP", n)
			}
		})
	}
}

func TestHipObjMultipart(t *testing.T) {
	r := newHipRig(t, rigOptions{})
	buf := r.alloc(1000)
	copy(buf.Bytes(), pattern(1000, 1))
	u, err := r.c.CreateMultipartUpload(t.Context(), "b", "k", client.PutOptions{Metadata: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 2; i++ {
		_, p, err := r.c.UploadPart(t.Context(), u, i, buf.All(), client.PartOptions{Force: client.ForceFabric})
		if err != nil || p.Route != client.Fabric {
			t.Fatalf("part %d: %v, %v", i, p.Route, err)
		}
	}
	if err := r.c.AbortMultipartUpload(t.Context(), u); err != nil {
		t.Error(err)
	}
}

// What the protocol cannot say, or the server will not do by it, goes by HTTP.
func TestHipObjFallsBack(t *testing.T) {
	r := newHipRig(t, rigOptions{config: func(c *plugin.Config) { c.MinWindow = 100 }})
	r.pairs.Land = 5000
	buf := r.alloc(6000)
	data := pattern(6000, 3)
	copy(buf.Bytes(), data)
	for name, c := range map[string]struct {
		n int
		o client.PutOptions
	}{
		"metadata":  {1000, client.PutOptions{Metadata: map[string]string{"a": "b"}}},
		"condition": {1000, client.PutOptions{IfNoneMatch: "*"}},
		"small":     {99, client.PutOptions{}},
		"large":     {5001, client.PutOptions{}},
	} {
		res, err := r.c.Put(t.Context(), "b", name, buf.View(0, c.n), c.o)
		if err != nil || res.Route != client.HTTPDeclined {
			t.Errorf("%s: %v, %v", name, res.Route, err)
		}
		if o := r.s3.object("/b/" + name); o == nil || !bytes.Equal(o.data, data[:c.n]) {
			t.Errorf("%s: other bytes are stored", name)
		}
		c.o.Force = client.ForceFabric
		if _, err := r.c.Put(t.Context(), "b", name+" again", buf.View(0, c.n), c.o); err == nil {
			t.Errorf("%s: no error with ForceFabric", name)
		}
	}
	// It is asked again: the server speaks it.
	if res, err := r.c.Put(t.Context(), "b", "k", buf.View(0, 5000), client.PutOptions{}); err != nil || res.Route != client.Fabric {
		t.Errorf("%v, %v", res.Route, err)
	}
}

func TestHipObjErrors(t *testing.T) {
	r := newHipRig(t, rigOptions{})
	buf := r.alloc(1000)
	copy(buf.Bytes(), pattern(1000, 5))
	put := client.PutOptions{Force: client.ForceFabric}
	if _, err := r.c.Put(t.Context(), "b", "k", buf.All(), put); err != nil {
		t.Fatal(err)
	}
	get := func(key string, v client.View, o client.GetOptions) error {
		o.Force = client.ForceFabric
		_, err := r.c.Get(t.Context(), "b", key, v, o)
		return err
	}
	wrong := put
	wrong.Sum = checksum.Of(checksum.CRC32C, []byte("others"))
	_, wrongErr := r.c.Put(t.Context(), "b", "never", buf.All(), wrong)
	for name, c := range map[string]struct{ err, want error }{
		"missing":   {get("none", buf.All(), client.GetOptions{}), client.ErrNotFound},
		"condition": {get("k", buf.All(), client.GetOptions{IfMatch: `"other"`}), client.ErrPreconditionFailed},
		"range":     {get("k", buf.All(), client.GetOptions{Range: client.Range{Offset: 1000}}), client.ErrRange},
		"too small": {get("k", buf.View(0, 999), client.GetOptions{}), client.ErrTooSmall},
		"part":      {get("k", buf.All(), client.GetOptions{PartNumber: 1}), client.ErrNoFabric},
		"checksum":  {wrongErr, client.ErrChecksum},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: error %v, want %v", name, c.err, c.want)
		}
	}
	if r.s3.object("/b/never") != nil {
		t.Error("something was stored")
	}
	r.pairs.Max = 0
	if _, err := r.c.Put(t.Context(), "b", "never", buf.All(), put); !errors.Is(err, client.ErrBusy) {
		t.Errorf("no pair is left: error %v, want ErrBusy", err)
	}
}

// A handler that verifies signatures would not find one: it is not led to other objects.
func TestHipObjNeedsTrust(t *testing.T) {
	r := newRig(t, "hipobj", rigOptions{nethttp: nethttp.Options{}})
	buf := r.alloc(100)
	res, err := r.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{})
	if err != nil || res.Route != client.HTTPDeclined {
		t.Errorf("%v, %v", res.Route, err)
	}
	if _, err := r.c.Put(t.Context(), "b", "k", buf.All(), client.PutOptions{Force: client.ForceFabric}); err == nil || strings.Contains(err.Error(), "AccessDenied") {
		t.Errorf("error %v", err)
	}
}

// Requests on one buffer share its key: where one fails, the others get through.
func TestHipObjSharedBuffer(t *testing.T) {
	// Not newHipRig: a prepare whose answer nobody has waited for leaves a pair, which a
	// device's fabric forgets after a while.
	r := newRig(t, "hipobj", rigOptions{nethttp: nethttp.Options{Trusted: true}})
	r.pairs.Max = 1000
	const n, parts = 20000, 4
	buf := r.alloc(n * parts)
	data := pattern(n, 9)
	copy(buf.Bytes(), data)
	if _, err := r.c.Put(t.Context(), "b", "k", buf.View(0, n), client.PutOptions{Force: client.ForceFabric}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range parts {
		wg.Add(1)
		go func() {
			defer wg.Done()
			v := buf.View(i*n, n)
			for j := range 40 {
				ctx, cancel := context.WithCancel(t.Context())
				if i == 0 { // fails, at one point or another
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(j)*100*time.Microsecond)
				}
				_, err := r.c.Get(ctx, "b", "k", v, client.GetOptions{Force: client.ForceFabric})
				cancel()
				if i > 0 && (err != nil || !bytes.Equal(v.Bytes(), data)) {
					t.Errorf("view %d: %v", i, err)
				}
			}
		}()
	}
	wg.Wait()
	s := r.c.Stats()
	t.Logf("%d keys withdrawn, %d requests repeated", s.Rekeys, s.Repeated)
}
