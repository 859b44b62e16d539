// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"errors"
	"testing"

	"github.com/s3rdma/s3rdma/conformance/broken"
	"github.com/s3rdma/s3rdma/conformance/browser"
)

// TestPageInBrowser: a real browser lays the page out, in light and dark, on a wide and a
// narrow screen, with what failed in view, and has nothing to complain about.
func TestPageInBrowser(t *testing.T) {
	if _, err := browser.Find(); errors.Is(err, browser.ErrNone) {
		t.Skip("NOT TESTED: ", err)
	}
	o := start(t, broken.Options{Broken: []string{"range-reply-200"}}, "tcp")
	o.Select = "put/size/1,range/,client/"
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	if err := report.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		dark  bool
		width int
	}{{"light and wide", false, 1280}, {"dark and narrow", true, 500}} {
		t.Run(c.name, func(t *testing.T) {
			seen, err := browser.Look(t.Context(), browser.Options{Page: page.Bytes(), Dark: c.dark, Width: c.width, Height: 4000})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range seen.Console {
				t.Errorf("on the console: %s", m)
			}
			if w := seen.Boxes[""].Width; w > float64(c.width) {
				t.Errorf("the page is %v pixels wide, more than the window", w)
			}
			if b := seen.Boxes["range/middle"]; b.Width < 200 || b.Height < 15 {
				t.Errorf("a case that failed is laid out as %+v", b)
			}
			r, g, b, _ := seen.Picture.At(2, 2).RGBA()
			if back := (r + g + b) / 3 >> 8; (back < 80) != c.dark {
				t.Errorf("the background is %d of 255", back)
			}
		})
	}
}
