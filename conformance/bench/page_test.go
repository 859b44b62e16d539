// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image"
	"io"
	"regexp"
	"testing"

	"github.com/s3rdma/s3rdma/conformance/browser"
)

func pageOf(t *testing.T, r Report) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// chartIDs are all that the page of testModes has.
var chartIDs = []string{"busy", "kept", "computed", "client-cpu", "server-cpu", "latency", "energy", "throughput-by-size", "client-cpu-by-size", "latency-by-size", "crossover"}

// The page is well-formed, needs nothing from elsewhere, and has what it should.
func TestPage(t *testing.T) {
	page := pageOf(t, testModes())
	for _, id := range chartIDs {
		if !bytes.Contains(page, []byte(`<figure id="`+id+`">`)) {
			t.Errorf("there is no chart %q", id)
		}
	}
	for _, want := range []string{"title &amp; &lt;b&gt;", "40x", "98 % / 38 %", "97.7 KiB", "3.00 GiB = 100.0%", "s3rdma bench", "server on CPUs [0], client on CPUs [1]", "search 1, 1024 bytes"} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, not := range []string{`https?://`, `<script`, `NaN`, `[^a-z]Inf`, `ZgotmplZ`, `%!`} {
		if m := regexp.MustCompile(not).Find(page); m != nil {
			t.Errorf("the page has %q", m)
		}
	}
	// Void elements apart, it is XML, so everything that is opened is closed.
	d := xml.NewDecoder(bytes.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Reports of other kinds have pages, too, and the empty one.
func TestPageOfOthers(t *testing.T) {
	if page := pageOf(t, testReport()); !bytes.Contains(page, []byte("shm, 2 drives lost")) || bytes.Contains(page, []byte("NaN")) {
		t.Errorf("%s", page)
	}
	if page := pageOf(t, Report{Crossover: &Crossover{}}); bytes.Contains(page, []byte("<figure")) {
		t.Errorf("%s", page)
	}
}

// A real browser lays it out, in light and dark, on a wide and a narrow screen, and
// has nothing to complain about.
func TestPageInBrowser(t *testing.T) {
	page := pageOf(t, testModes())
	for _, c := range []struct {
		name  string
		dark  bool
		width int
	}{{"light and wide", false, 1280}, {"dark and narrow", true, 500}} {
		t.Run(c.name, func(t *testing.T) {
			seen, err := browser.Look(t.Context(), browser.Options{Page: page, Dark: c.dark, Width: c.width, Height: 5000})
			if errors.Is(err, browser.ErrNone) {
				t.Skip("NOT TESTED: ", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range seen.Console {
				t.Errorf("on the console: %s", m)
			}
			if w := seen.Boxes[""].Width; w > float64(c.width) {
				t.Errorf("the page is %v pixels wide, more than the window", w)
			}
			part := func(b browser.Box) image.Rectangle {
				return image.Rect(int(b.X), int(b.Y), int(b.X+b.Width), int(b.Y+b.Height))
			}
			for i, id := range chartIDs {
				b, ok := seen.Boxes[id]
				if !ok || b.Width < 300 || b.Height < 150 {
					t.Errorf("chart %q is laid out as %+v", id, b)
				}
				// Text is smoothed, so a chart has many colours; a blank one has one or two.
				if n := browser.Colours(seen.Picture, part(b), 12); n < 12 {
					t.Errorf("chart %q has %d colours", id, n)
				}
				for _, other := range chartIDs[:i] {
					if part(b).Overlaps(part(seen.Boxes[other])) {
						t.Errorf("charts %q and %q overlap", id, other)
					}
				}
			}
			r, g, b, _ := seen.Picture.At(2, 2).RGBA()
			if back := (r + g + b) / 3 >> 8; (back < 80) != c.dark {
				t.Errorf("the background is %d of 255", back)
			}
			// Both sides' colours are there.
			for _, colour := range map[bool][]uint32{false: {0x1f6feb, 0xc2560c}, true: {0x6cb0ff, 0xff9f5a}}[c.dark] {
				if !hasColour(seen.Picture, part(seen.Boxes["busy"]), colour) {
					t.Errorf("chart busy has no bar of colour %06x", colour)
				}
			}
		})
	}
}

func hasColour(p image.Image, part image.Rectangle, want uint32) bool {
	for y := part.Min.Y; y < part.Max.Y; y++ {
		for x := part.Min.X; x < part.Max.X; x++ {
			if r, g, b, _ := p.At(x, y).RGBA(); r>>8<<16|g>>8<<8|b>>8 == want {
				return true
			}
		}
	}
	return false
}

func TestScales(t *testing.T) {
	one := func(lo, hi float64) []series { return []series{{points: []point{{0, Spread{2, lo, lo, hi}, ""}}}} }
	for _, c := range []struct {
		lo, hi, level float64
		log           bool
		from, to      float64
		marks         int
	}{
		{1, 3.95, 0, false, 0, 5, 6}, {0.1, 0.409, 0, false, 0, 0.5, 6}, {0, 0, 0, false, 0, 1.2, 7}, {1, 10, 0, false, 0, 12, 7}, {0.2, 0.5, 1, false, 0, 1.2, 7},
		{0.005, 42, 0, true, 0.001, 100, 6}, {1, 1, 0, true, 1, 10, 2}, {0, 0, 0, true, 1, 10, 2},
	} {
		s, marks := valueScale(one(c.lo, c.hi), c.log, c.level)
		near := func(a, b float64) bool { return a > b-1e-9 && a < b+1e-9 }
		if !near(s.from, c.from) || !near(s.to, c.to) || len(marks) != c.marks {
			t.Errorf("%+v: %v to %v, %d marks", c, s.from, s.to, len(marks))
		}
		if y := s.y(c.hi); c.hi > 0 && (y < chartTop-1e-9 || y > plotBottom) {
			t.Errorf("%+v: the largest value is at %v", c, y)
		}
	}
}
