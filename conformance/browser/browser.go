// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

// Package browser shows pages to a real browser, Chromium without a window, so that the
// tests of reports can hold them to what readers see: what is laid out where, how it
// looks, and that nothing is amiss on the console.
//
//	seen, err := browser.Look(ctx, browser.Options{Page: html, Dark: true})
//	seen.Console          // messages: none, if all is well
//	seen.Picture          // what is seen
//	seen.Boxes["busy"]    // where the element of that id is
//
// # Caveats
//
// It runs with --no-sandbox, as root must: it is for pages of one's own making. Boxes come
// from a script that a second copy of the page is given, whose Content-Security-Policy is
// taken out; picture and console are those of the page as it is.
package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"image"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

var (
	// ErrNone: there is no Chromium on this machine.
	ErrNone = errors.New("no Chromium here (Debian's package is called chromium)")
	// ErrLook: Chromium did not show the page.
	ErrLook = errors.New("the browser did not show the page")
)

// Options say what is shown, and how. Page is needed.
type Options struct {
	// Page is a whole HTML document.
	Page []byte
	// Dark tells the page that the reader prefers dark colours, else that he prefers
	// light ones.
	Dark bool
	// Width and Height are the window's, in pixels; 0 is 1280 and 2400.
	Width, Height int
}

// Box is where an element is, in pixels from the page's left upper corner.
type Box struct{ X, Y, Width, Height float64 }

// Seen is what came of it.
type Seen struct {
	// Console has the messages, with what they are about.
	Console []string
	// Picture is the window's content.
	Picture image.Image
	// Boxes are those of all elements with an id; "" is the whole document.
	Boxes map[string]Box
}

// Find returns Chromium's path, or ErrNone.
func Find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNone
}

// Look shows a page, for at most a minute. Nothing is left of it.
func Look(ctx context.Context, o Options) (seen Seen, err error) {
	path, err := Find()
	if err != nil {
		return seen, err
	}
	if o.Width == 0 {
		o.Width = 1280
	}
	if o.Height == 0 {
		o.Height = 2400
	}
	dir, err := os.MkdirTemp("", "s3rdma-browser-")
	if err != nil {
		return seen, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	page, copied, picture := filepath.Join(dir, "page.html"), filepath.Join(dir, "copy.html"), filepath.Join(dir, "picture.png")
	if err := errors.Join(os.WriteFile(page, o.Page, 0o644), os.WriteFile(copied, withProbe(o.Page), 0o644)); err != nil {
		return seen, err
	}
	scheme := "preferredColorScheme=1"
	if o.Dark {
		scheme = "preferredColorScheme=0"
	}
	run := func(args ...string) (out, log string, err error) {
		args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage",
			"--user-data-dir=" + filepath.Join(dir, "profile"), "--enable-logging=stderr", "--v=0", "--blink-settings=" + scheme,
			fmt.Sprintf("--window-size=%d,%d", o.Width, o.Height)}, args...)
		cmd := exec.CommandContext(ctx, path, args...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		inGroup(cmd)
		cmd.WaitDelay = 10 * time.Second
		if err := cmd.Run(); err != nil {
			return "", "", fmt.Errorf("%w: %s: %w; it says:\n%s", ErrLook, path, errors.Join(err, ctx.Err()), stderr.Bytes()[max(0, stderr.Len()-2000):])
		}
		return stdout.String(), stderr.String(), nil
	}
	_, log, err := run("--screenshot="+picture, "file://"+page)
	if err != nil {
		return seen, err
	}
	seen.Console = console(log)
	b, err := os.ReadFile(picture)
	if err != nil {
		return seen, fmt.Errorf("%w: %w", ErrLook, err)
	}
	if seen.Picture, err = png.Decode(bytes.NewReader(b)); err != nil {
		return seen, fmt.Errorf("%w: %w", ErrLook, err)
	}
	dom, _, err := run("--dump-dom", "file://"+copied)
	if err != nil {
		return seen, err
	}
	seen.Boxes, err = boxes(dom)
	return seen, err
}

// message is a line of the log such as
//
//	[1:1:1130/033716.943783:INFO:CONSOLE:1] "text", source: file:///page.html (1)
//
// with a number in parentheses after CONSOLE in other versions.
var message = regexp.MustCompile(`(?m)^\[[^\]]*:CONSOLE[^\]]*\] (.*)$`)

func console(log string) (messages []string) {
	for _, m := range message.FindAllStringSubmatch(log, -1) {
		messages = append(messages, m[1])
	}
	return messages
}

var policy = regexp.MustCompile(`(?is)<meta[^>]+content-security-policy[^>]*>`)

// probe writes where everything is into an attribute of the root, for --dump-dom.
const (
	probeName = "data-boxes"
	probe     = `<script>
const all = {}, put = (k, e) => { const r = e.getBoundingClientRect(); all[k] = {X: r.x, Y: r.y, Width: r.width, Height: r.height}; };
for (const e of document.querySelectorAll("[id]")) put(e.id, e);
put("", document.documentElement);
all[""].Width = document.documentElement.scrollWidth;
document.documentElement.setAttribute("` + probeName + `", JSON.stringify(all));
</script>`
)

func withProbe(page []byte) []byte {
	page = policy.ReplaceAllLiteral(page, nil)
	if i := bytes.LastIndex(page, []byte("</body>")); i >= 0 {
		return append(append(bytes.Clone(page[:i]), probe...), page[i:]...)
	}
	return append(bytes.Clone(page), probe...)
}

func boxes(dom string) (map[string]Box, error) {
	_, after, found := strings.Cut(dom, probeName+`="`)
	text, _, closed := strings.Cut(after, `"`)
	if !found || !closed {
		return nil, fmt.Errorf("%w: nothing is known about its layout", ErrLook)
	}
	var all map[string]Box
	if err := json.Unmarshal([]byte(html.UnescapeString(text)), &all); err != nil {
		return nil, fmt.Errorf("%w: its layout: %w", ErrLook, err)
	}
	return all, nil
}

// Colours counts the different colours of a picture's part, up to most.
func Colours(p image.Image, part image.Rectangle, most int) int {
	seen := map[[4]uint32]bool{}
	for y := part.Min.Y; y < part.Max.Y && len(seen) < most; y++ {
		for x := part.Min.X; x < part.Max.X && len(seen) < most; x++ {
			r, g, b, a := p.At(x, y).RGBA()
			seen[[4]uint32{r, g, b, a}] = true
		}
	}
	return len(seen)
}
