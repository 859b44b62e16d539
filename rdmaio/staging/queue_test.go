// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package staging

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is the queue said plainly: slices, and no account but what they hold.
type model struct {
	slabs, free, perCaller int
	ring                   []string            // callers that wait
	line                   map[string][]*asked // theirs, first come first
	held                   map[string]int
}

type asked struct {
	id     int
	caller string
	lease  *Lease
	w      *waiter // nil if granted at once
	out    bool    // granted and not released

	// passed counts how often each other caller was served while this was first in
	// line and within its caller's share.
	passed map[string]int
}

func (m *model) next() *asked {
	for _, c := range m.ring {
		if first := m.line[c][0]; m.held[c]+first.lease.want <= m.perCaller {
			return first
		}
	}
	if len(m.ring) > 0 {
		return m.line[m.ring[0]][0]
	}
	return nil
}

// grant gives a its slabs and holds it against those who were passed over.
func (m *model) grant(t *rapid.T, a *asked) {
	for _, c := range m.ring {
		first := m.line[c][0]
		if c == a.caller || m.held[c]+first.lease.want > m.perCaller {
			first.passed = nil
			continue
		}
		if first.passed == nil {
			first.passed = map[string]int{}
		}
		first.passed[a.caller]++
		if first.passed[a.caller] > 1 {
			t.Fatalf("caller %s was served twice while %s waited, first in line and within its share", a.caller, c)
		}
	}
	m.free -= a.lease.want
	m.held[a.caller] += a.lease.want
	a.out = true
}

// settle serves whose turn it is, and returns whom.
func (m *model) settle(t *rapid.T) (served []*asked) {
	for {
		a := m.next()
		if a == nil || a.lease.want > m.free {
			return served
		}
		m.grant(t, a)
		m.drop(a)
		if len(m.line[a.caller]) > 0 {
			m.ring = append(slices.DeleteFunc(m.ring, func(c string) bool { return c == a.caller }), a.caller)
		}
		served = append(served, a)
	}
}

// drop takes a out of line.
func (m *model) drop(a *asked) {
	m.line[a.caller] = slices.DeleteFunc(m.line[a.caller], func(b *asked) bool { return b == a })
	if len(m.line[a.caller]) == 0 {
		delete(m.line, a.caller)
		m.ring = slices.DeleteFunc(m.ring, func(c string) bool { return c == a.caller })
	}
}

// TestAdmission drives a pool and the model side by side, one step at a time.
func TestAdmission(t *testing.T) {
	var waited int
	rapid.Check(t, func(t *rapid.T) {
		slabs := rapid.IntRange(1, 12).Draw(t, "slabs")
		o := small(slabs)
		o.MaxPerLease = rapid.IntRange(1, min(4, slabs)).Draw(t, "per lease")
		o.MaxPerCaller = rapid.SampledFrom([]float64{0.1, 0.5, 1}).Draw(t, "share")
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := p.freeMemory(); err != nil {
				t.Fatal(err)
			}
		}()
		m := &model{slabs: slabs, free: slabs, perCaller: p.perCaller, line: map[string][]*asked{}, held: map[string]int{}}
		var all []*asked
		var granted, refused, waits int

		pick := func(t *rapid.T, want func(*asked) bool) *asked {
			some := slices.DeleteFunc(slices.Clone(all), func(a *asked) bool { return !want(a) })
			if len(some) == 0 {
				t.Skip("none")
			}
			return some[rapid.IntRange(0, len(some)-1).Draw(t, "which")]
		}
		inLine := func(a *asked) bool { return slices.Contains(m.line[a.caller], a) }

		t.Repeat(map[string]func(*rapid.T){
			"request": func(t *rapid.T) {
				a := &asked{id: len(all), caller: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "caller")}
				a.lease = p.newLease(int64(rapid.IntRange(1, o.MaxPerLease).Draw(t, "want")) * slab)
				all = append(all, a)
				p.mu.Lock()
				a.w = p.request(a.lease, a.caller)
				p.mu.Unlock()

				if len(m.ring) == 0 && a.lease.want <= m.free {
					m.grant(t, a)
				} else {
					if len(m.line[a.caller]) == 0 {
						m.ring = append(m.ring, a.caller)
					}
					m.line[a.caller] = append(m.line[a.caller], a)
					for _, s := range m.settle(t) {
						if s != a {
							t.Fatal("an arrival served somebody else")
						}
					}
				}
				if a.out {
					granted++
				}
				if a.out != (a.w == nil) {
					t.Fatalf("granted at once: %v, want %v", a.w == nil, a.out)
				}
				if a.w != nil {
					waits++
				}
			},
			"release": func(t *rapid.T) {
				a := pick(t, func(a *asked) bool { return a.out })
				a.out = false
				m.free += a.lease.want
				if m.held[a.caller] -= a.lease.want; m.held[a.caller] == 0 {
					delete(m.held, a.caller)
				}
				granted += len(m.settle(t))
				a.lease.Release()
				a.lease.Release()
			},
			"give up": func(t *rapid.T) {
				a := pick(t, inLine)
				first := m.line[a.caller][0] == a
				m.drop(a)
				if rest := m.line[a.caller]; first && len(rest) > 0 {
					rest[0].passed = a.passed // it keeps the caller's turn
				}
				refused++
				granted += len(m.settle(t))
				p.mu.Lock()
				p.abandon(a.w)
				p.mu.Unlock()
			},
			"": func(t *rapid.T) {
				waiting, leases, owner := 0, 0, map[int32]int{}
				callers := map[string]bool{}
				for _, a := range all {
					in := inLine(a)
					if in {
						waiting++
						callers[a.caller] = true
					}
					if a.out {
						leases++
						callers[a.caller] = true
						for _, s := range a.lease.slabs {
							if other, taken := owner[s]; taken {
								t.Fatalf("slab %d belongs to leases %d and %d", s, other, a.id)
							}
							owner[s] = a.id
						}
						if len(a.lease.slabs) != a.lease.want {
							t.Fatalf("lease of %d slabs has %d", a.lease.want, len(a.lease.slabs))
						}
					}
					if a.w == nil {
						continue
					}
					if in != (a.w.state == 0) || a.out && a.w.state != 1 {
						t.Fatalf("request %d of %s: state %d, in line %v, out %v", a.id, a.caller, a.w.state, in, a.out)
					}
					select {
					case <-a.w.ready:
						if in {
							t.Fatalf("request %d was woken without an answer", a.id)
						}
					default:
						if !in {
							t.Fatalf("request %d was not woken", a.id)
						}
					}
				}
				p.mu.Lock()
				for _, s := range p.free {
					if other, taken := owner[s]; taken {
						t.Fatalf("slab %d is free and belongs to %d", s, other)
					}
					owner[s] = -1
				}
				p.mu.Unlock()
				if len(owner) != slabs {
					t.Fatalf("%d of %d slabs are accounted for", len(owner), slabs)
				}
				// Nothing lies idle that whoever is next could use.
				if a := m.next(); a != nil && a.lease.want <= m.free {
					t.Fatal("slabs lie idle")
				}
				got := p.Stats()
				got.WaitTotal, got.Peak = 0, 0
				want := Stats{
					Slabs: slabs, SlabSize: slab, InUse: slabs - m.free, Leases: leases, Waiting: waiting, Callers: len(callers),
					Granted: uint64(granted), Refused: uint64(refused), Waited: uint64(waits - waiting), Pages: PagesPlain,
				}
				if got != want {
					t.Fatalf("account is\n%+v, want\n%+v", got, want)
				}
			},
		})
		waited += waits
	})
	if waited == 0 {
		t.Error("nobody ever waited: the test has no teeth")
	}
}

// script plays requests against a full pool, then frees one slab at a time and
// tells who was served in which order.
func script(t *testing.T, slabs int, share float64, requests ...string) []string {
	t.Helper()
	o := small(slabs)
	o.MaxPerCaller = share
	p := newPool(t, o)
	full := make([]*Lease, slabs)
	for i := range full {
		full[i] = acquire(t, p, fmt.Sprintf("holder %d", i), 1)
	}
	waiters := map[string]*waiter{}
	for i, r := range requests {
		var who string
		var n int
		fmt.Sscanf(r, "%1s%d", &who, &n)
		l := p.newLease(int64(n) * slab)
		p.mu.Lock()
		waiters[fmt.Sprintf("%s#%d", r, i)] = p.request(l, who)
		p.mu.Unlock()
	}
	var order []string
	var out []*Lease
	for i := 0; i < len(full) || len(out) > 0; i++ {
		if i < len(full) {
			full[i].Release()
		} else {
			out[0].Release()
			out = out[1:]
		}
		for { // those served by this release; script's cases serve one at most
			var served string
			for name, w := range waiters {
				if w.state == granted {
					if served != "" {
						t.Fatalf("a release served %s and %s", served, name)
					}
					served = name
				}
			}
			if served == "" {
				break
			}
			order = append(order, served[:2])
			out = append(out, waiters[served].lease)
			delete(waiters, served)
		}
	}
	if len(waiters) > 0 {
		t.Errorf("never served: %d", len(waiters))
	}
	return order
}

func TestOrder(t *testing.T) {
	// One letter for the caller, then how many slabs it wants.
	for _, c := range []struct {
		name     string
		slabs    int
		share    float64
		requests []string
		want     []string
	}{
		{"one caller, first come", 2, 1, []string{"a1", "a1", "a1"}, []string{"a1", "a1", "a1"}},
		{"a crowd does not starve one", 6, 1, []string{"a1", "a1", "a1", "a1", "b1"}, []string{"a1", "b1", "a1", "a1", "a1"}},
		{"three in turns", 6, 1, []string{"a1", "a1", "b1", "b1", "c1", "c1"}, []string{"a1", "b1", "c1", "a1", "b1", "c1"}},
		{"big before the small that came later", 4, 1, []string{"a3", "b1", "c1"}, []string{"a3", "b1", "c1"}},
		// With a share of 4, a's second lease of 3 comes after b and c.
		{"beyond its share", 8, 0.5, []string{"a3", "a3", "b1", "c1"}, []string{"a3", "b1", "c1", "a3"}},
		// Nobody else waits: no share applies.
		{"alone", 8, 0.5, []string{"a4", "a4"}, []string{"a4", "a4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := script(t, c.slabs, c.share, c.requests...); !slices.Equal(got, c.want) {
				t.Errorf("served %v, want %v", got, c.want)
			}
		})
	}
}

// An arrival within its share is served at once if all that wait are beyond theirs.
func TestArrivalPasses(t *testing.T) {
	p := newPool(t, small(8))
	a, b := acquire(t, p, "a", 4), acquire(t, p, "b", 2)
	l := p.newLease(3 * slab)
	p.mu.Lock()
	w := p.request(l, "a")
	p.mu.Unlock()
	if w == nil {
		t.Fatal("3 of 2 slabs were granted")
	}
	c := p.newLease(slab)
	p.mu.Lock()
	if p.request(c, "c") != nil {
		t.Error("c, within its share, waits behind a, which is beyond its own")
	}
	p.mu.Unlock()
	b.Release()
	if w.state != granted {
		t.Error("a was not served, though nobody else waits")
	}
	if s := p.Stats(); s.Waited != 1 || s.Granted != 4 || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
	for _, l := range []*Lease{a, l, c} {
		l.Release()
	}
}
