// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"context"
	"errors"
	"image"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func needed(t *testing.T) {
	t.Helper()
	if _, err := Find(); err != nil {
		t.Skip("NOT TESTED: ", err)
	}
}

func TestLook(t *testing.T) {
	needed(t)
	page := []byte(`<!DOCTYPE html><html><head><meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>body { margin: 0; background: #ffffff } @media (prefers-color-scheme: dark) { body { background: #000000 } }</style></head>
<body><div id="a" style="position:absolute; left:10px; top:20px; width:30px; height:40px; background:#ff0000"></div></body></html>`)
	for _, dark := range []bool{false, true} {
		seen, err := Look(t.Context(), Options{Page: page, Dark: dark, Width: 400, Height: 300})
		if err != nil {
			t.Fatal(err)
		}
		if len(seen.Console) > 0 {
			t.Errorf("messages %q", seen.Console)
		}
		if diff := cmp.Diff(Box{10, 20, 30, 40}, seen.Boxes["a"]); diff != "" {
			t.Error(diff)
		}
		if b := seen.Picture.Bounds(); b.Dx() != 400 {
			t.Errorf("picture of %v", b)
		}
		if r, g, _, _ := seen.Picture.At(25, 40).RGBA(); r>>8 != 255 || g != 0 {
			t.Errorf("the box is not red")
		}
		if r, _, _, _ := seen.Picture.At(100, 100).RGBA(); (r == 0) != dark {
			t.Errorf("dark %v, and the background is %d", dark, r)
		}
		if n := Colours(seen.Picture, image.Rect(0, 0, 100, 100), 9); n != 2 {
			t.Errorf("%d colours", n)
		}
	}
}

// What is wrong is seen.
func TestLookSeesErrors(t *testing.T) {
	needed(t)
	seen, err := Look(t.Context(), Options{Page: []byte(`<!DOCTYPE html><html><head><meta http-equiv="Content-Security-Policy" content="default-src 'none'">
</head><body><img src="http://127.0.0.1:1/x.png"></body></html>`), Width: 300, Height: 200})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen.Console) != 1 {
		t.Errorf("messages %q", seen.Console)
	}
}

func TestLookEnds(t *testing.T) {
	needed(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Look(ctx, Options{Page: []byte("x")}); !errors.Is(err, ErrLook) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestConsole(t *testing.T) {
	log := `[1:2:1130/033717.319710:ERROR:dbus/bus.cc:405] Failed to connect to the bus
[1:1:1130/033718.070831:INFO:CONSOLE:1] "boo", source: file:///t2.html (1)
[1:1:1130/033718.070875:INFO:CONSOLE(12)] "l", source: file:///t2.html (12)
`
	if diff := cmp.Diff([]string{`"boo", source: file:///t2.html (1)`, `"l", source: file:///t2.html (12)`}, console(log)); diff != "" {
		t.Error(diff)
	}
}

func TestBoxes(t *testing.T) {
	got, err := boxes(`<html data-boxes="{&quot;a&quot;:{&quot;X&quot;:1,&quot;Y&quot;:2,&quot;Width&quot;:3,&quot;Height&quot;:4}}">`)
	if diff := cmp.Diff(map[string]Box{"a": {1, 2, 3, 4}}, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, bad := range []string{"", `<html data-boxes="{`, `<html data-boxes="{">`} {
		if _, err := boxes(bad); !errors.Is(err, ErrLook) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
