// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Where the crossover is searched for, and how: until the interval's ends differ by the
// given factor, with so many windows of each side for each size that is tried.
const (
	crossoverFrom    = kib
	crossoverTo      = 16 * mib
	crossoverWithin  = 1.1
	crossoverWindows = 3
	crossoverWindow  = 60 * time.Millisecond
	// searchSteps is about how many sizes a search tries: the ends, and the halvings of
	// the 14 octaves between them.
	searchSteps = 9
)

// Crossover is the size of objects from which on the fabric is faster than HTTP, for one
// request after the other by an idle client. It is searched for by halving, several
// times, each time measured anew: the spread is of what the searches found.
type Crossover struct {
	// From and To are the sizes between which was searched.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Bytes is of the searches that found one.
	Bytes Spread `json:"bytes"`
	// Below counts searches in which the fabric was faster even at From, Above those in
	// which it was not even at To.
	Below int `json:"below"`
	Above int `json:"above"`
	// Tried is what was measured, in order.
	Tried []Tried `json:"tried"`
}

// Tried is one size in one search.
type Tried struct {
	Search int   `json:"search"`
	Bytes  int64 `json:"bytes"`
	// OverHTTP is the fabric's throughput over HTTP's, pair by pair.
	OverHTTP Spread `json:"throughput_over_http"`
}

// median is the median of all searches, those that found the fabric faster everywhere
// counting as From, those that did nowhere as beyond To.
func (c *Crossover) median() (bytes int64, word string) {
	switch n := c.Below + c.Bytes.N + c.Above; {
	case n == 0:
		return 0, "not searched"
	case 2*c.Below > n:
		return c.From, "at or below"
	case 2*c.Above >= n:
		return c.To, "above"
	}
	return int64(c.Bytes.Median), ""
}

// value is for the last line: the size, that of the search's start if the fabric is
// faster everywhere, or none.
func (c *Crossover) value() string {
	if c == nil {
		return "none"
	}
	bytes, word := c.median()
	if word == "above" || bytes == 0 {
		return "none"
	}
	return fmt.Sprint(bytes)
}

// text is for people.
func (c *Crossover) text() string {
	bytes, word := c.median()
	if word != "" {
		return fmt.Sprintf("%s %s: so %d, %d, %d of the searches between %s and %s found it below, within, above", word, bytesText(bytes),
			c.Below, c.Bytes.N, c.Above, bytesText(c.From), bytesText(c.To))
	}
	return fmt.Sprintf("%d bytes (%d..%d), %d searches between %s and %s, %d of them below that, %d above", bytes, int64(c.Bytes.Min), int64(c.Bytes.Max),
		c.Below+c.Bytes.N+c.Above, bytesText(c.From), bytesText(c.To), c.Below, c.Above)
}

// add counts the result of a search, which is one of bisect's.
func (c *Crossover) add(found []float64, bytes int64) []float64 {
	switch {
	case bytes <= c.From:
		c.Below++
	case bytes > c.To:
		c.Above++
	default:
		found = append(found, float64(bytes))
		c.Bytes = spreadOf(found)
	}
	return found
}

// bisect searches between from and to for the size from which on faster is true, on a
// logarithmic scale, until the interval's ends differ by at most the factor within. It
// returns from if that is faster already, more than to if not even that is, else the
// middle of the interval.
func bisect(from, to int64, within float64, faster func(bytes int64) (bool, error)) (int64, error) {
	for _, end := range []int64{from, to} {
		yes, err := faster(end)
		if err != nil {
			return 0, err
		}
		if yes && end == from {
			return from, nil
		}
		if !yes && end == to {
			return to + 1, nil
		}
	}
	middle := func() int64 { return int64(math.Sqrt(float64(from) * float64(to))) }
	for float64(to) > within*float64(from) && to-from > 1 {
		at := middle()
		yes, err := faster(at)
		if err != nil {
			return 0, err
		}
		if yes {
			to = at
		} else {
			from = at
		}
	}
	return middle(), nil
}

// crossover searches. Of sides, one is a fabric and one is HTTP.
func (b *bench) crossover(ctx context.Context, sides []*side, servers []*server) error {
	x := &Crossover{From: crossoverFrom, To: min(crossoverTo, int64(len(b.checked)))}
	b.report.Crossover = x
	m := b.m
	m.length = min(m.length, crossoverWindow)
	var found []float64
	for search := range b.o.Searches {
		bytes, err := bisect(x.From, x.To, crossoverWithin, func(bytes int64) (bool, error) {
			b.step("crossover, search %d: GET %d bytes", search+1, bytes)
			over, err := b.race(ctx, m, int(bytes), sides, servers)
			x.Tried = append(x.Tried, Tried{Search: search + 1, Bytes: bytes, OverHTTP: over})
			return over.Median > 1, err
		})
		if err != nil {
			return err
		}
		found = x.add(found, bytes)
	}
	return nil
}

// race measures both sides in turns at one size: the fabric's rate over HTTP's.
func (b *bench) race(ctx context.Context, m measurer, size int, sides []*side, servers []*server) (Spread, error) {
	c := cell{op: Get, size: size, workers: 1, keys: 1}
	for _, s := range servers {
		if err := s.fill(ctx, b.m.pattern, size, 1); err != nil {
			return Spread{}, err
		}
	}
	var over []float64
	for round := range crossoverWindows + 1 {
		var fabric, http float64
		for _, s := range sides {
			w, err := b.turn(ctx, m, s, c)
			if err != nil {
				return Spread{}, err
			}
			if s.fabric == "" {
				http = w.rate(size)
			} else {
				fabric = w.rate(size)
			}
		}
		if round > 0 { // the first use of anything is slower
			over = append(over, ratio(fabric, http))
		}
	}
	for _, s := range servers {
		if err := s.remove(ctx, keysOf(c)); err != nil {
			return Spread{}, err
		}
	}
	return spreadOf(over), nil
}
