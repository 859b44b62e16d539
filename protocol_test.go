// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package s3rdma_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/plugin"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// protocolText is PROTOCOL.md.
func protocolText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fenced returns the lines of the text's fenced blocks whose info string begins with a
// word, by the rest of the info string.
func fenced(text, word string) (info []string, lines [][]string) {
	var block []string
	in := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case in && line == "```":
			lines = append(lines, block)
			in = false
		case in:
			block = append(block, line)
		case strings.HasPrefix(line, "```"+word+" "):
			info = append(info, strings.TrimPrefix(line, "```"+word+" "))
			block, in = nil, true
		}
	}
	return info, lines
}

// tableRows returns the rows of every table that has a cell beginning with `id`:.
var tableRow = regexp.MustCompile("(?m)^\\| `([a-z-]+)`: .*$")

// cells are those of a table's row, without back quotes.
func cells(row string) []string {
	parts := strings.Split(strings.Trim(row, "|"), "|")
	for i := range parts {
		parts[i] = strings.Trim(parts[i], " `")
	}
	return parts
}

// TestProtocolDescriptors parses every descriptor in the protocol's text, in the form
// and with the meaning that stands there.
func TestProtocolDescriptors(t *testing.T) {
	encodings := map[string]rdmaio.Encoding{
		"session": rdmaio.EncodingSession, "bare": rdmaio.EncodingBare, "suffix": rdmaio.EncodingSuffix,
		"hipobject": rdmaio.EncodingHipObject, "base64": rdmaio.EncodingBase64,
	}
	info, lines := fenced(protocolText(t), "descriptor")
	seen := map[string]bool{}
	for i, name := range info {
		enc, ok := encodings[name]
		if !ok || len(lines[i]) != 2 {
			t.Errorf("descriptor %s: no such form, or not a descriptor and its meaning", name)
			continue
		}
		seen[name] = true
		d, got, err := rdmaio.Parse(lines[i][0], rdmaio.ParseOptions{Base64: true})
		if err != nil || got != enc {
			t.Errorf("%s: it is %v, %v", lines[i][0], got, err)
			continue
		}
		if want := meaning(d); want != lines[i][1] {
			t.Errorf("%s: the text says %q, it means %q", lines[i][0], lines[i][1], want)
		}
		if text, err := d.Encode(enc); name != "suffix" && text != lines[i][0] {
			t.Errorf("%s is written %s, %v", lines[i][0], text, err)
		}
	}
	for name := range encodings {
		if !seen[name] {
			t.Errorf("there is no example of the form %s", name)
		}
	}
	if _, _, err := rdmaio.Parse(lines[slices.Index(info, "base64")][0], rdmaio.ParseOptions{}); err == nil {
		t.Error("base64 is served without the operator's leave")
	}
}

func meaning(d rdmaio.Descriptor) string {
	s := fmt.Sprintf("transport=%s addr=%#x size=%d rkey=%#x", d.Transport, d.Addr, d.Size, d.RKey)
	if d.QPN != 0 {
		s += fmt.Sprintf(" qpn=%#x", d.QPN)
	}
	if d.Port != 0 {
		s += fmt.Sprintf(" port=%d", d.Port)
	}
	if a, ok := d.PeerAddr(); ok {
		s += " peer=" + a.String()
	}
	return s
}

// TestProtocolRefusals sends a request for every refusal in the protocol's text, and
// compares status, reply and code with its row. Both list the same ones.
func TestProtocolRefusals(t *testing.T) {
	text := protocolText(t)
	todo := refusals()
	for _, m := range tableRow.FindAllStringSubmatch(text, -1) {
		id, row := m[1], cells(m[0])
		r, ok := todo[id]
		if !ok {
			t.Errorf("the row %s has no test", id)
			continue
		}
		delete(todo, id)
		methods := []string{"POST"} // of sessions, whose table has no column for it
		if len(row) == 5 {
			methods = []string{row[1]}
			if row[1] == "any" {
				methods = []string{"GET", "PUT"}
			}
			row = row[1:]
		}
		for _, method := range methods {
			t.Run(id+"/"+method, func(t *testing.T) {
				status, reply, code := r(t, method)
				if got := []string{strconv.Itoa(status), reply, code}; !slices.Equal(got, row[1:]) {
					t.Errorf("answered %q, the text says %q", got, row[1:])
				}
			})
		}
	}
	for id := range todo {
		t.Errorf("%s has no row", id)
	}
}

// TestProtocolNames: the header names of the text are those of the code.
func TestProtocolNames(t *testing.T) {
	want := map[string]bool{
		plugin.HeaderToken: true, plugin.HeaderInfo: true, plugin.HeaderReply: true, plugin.HeaderBytes: true,
		plugin.HeaderSession: true, plugin.HeaderPSN: true,
		checksum.HeaderPolicy: true, checksum.HeaderAlgorithm: true, checksum.HeaderBlock: true, checksum.HeaderBlocks: true,
		checksum.RegionPrefix + "ALGORITHM": true,
	}
	text := protocolText(t)
	section := text[strings.Index(text, "\n## 2 Headers"):strings.Index(text, "\n## 3 ")]
	got := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1) {
		got[m[1]] = true
	}
	if !maps.Equal(got, want) {
		t.Errorf("the text has %v,\nthe code %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	for _, a := range checksum.Algorithms() {
		if name := strings.TrimPrefix(a.RegionHeader(), checksum.RegionPrefix); !strings.Contains(text, "`"+name+"`") {
			t.Errorf("the text does not name the algorithm %s", name)
		}
	}
	if !strings.Contains(text, "/.s3rdma-NAME/connect") || plugin.SessionPrefix != "/.s3rdma-" {
		t.Error("the session endpoints have another name")
	}
}

// TestProtocolPolicies: the table lists the policies, in the code's words.
func TestProtocolPolicies(t *testing.T) {
	text := protocolText(t)
	section := text[strings.Index(text, "### 13.1"):strings.Index(text, "### 13.2")]
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(section, -1) {
		got = append(got, m[1])
		if _, err := checksum.ParsePolicy(m[1]); err != nil {
			t.Error(err)
		}
	}
	if len(got) != 4 {
		t.Errorf("the text has the policies %v", got)
	}
	_, lines := fenced(text, "envelope")
	if len(lines) != 1 || lines[0][0] != checksum.Empty(checksum.SHA256).Hex() {
		t.Errorf("the hash of nothing is %v", lines)
	}
}

// TestProtocolBlocks: algorithm, block size, length; the region; its list.
func TestProtocolBlocks(t *testing.T) {
	text := protocolText(t)
	info, lines := fenced(text, "blocks")
	if len(info) == 0 {
		t.Error("there is no example of a list")
	}
	for i := range info {
		var name string
		var block, n int64
		if _, err := fmt.Sscan(info[i], &name, &block, &n); err != nil || len(lines[i]) != 2 {
			t.Fatalf("blocks %s: %v", info[i], err)
		}
		alg, err := checksum.ParseAlgorithm(name)
		if err != nil {
			t.Fatal(err)
		}
		l, err := checksum.ListOf(alg, block, []byte(lines[i][0]))
		if err != nil || l.Bytes != n || l.Text() != lines[i][1] {
			t.Errorf("blocks %s: the text says %q, it is %q, %v", info[i], lines[i][1], l.Text(), err)
		}
	}
	for _, n := range []int64{checksum.MinBlock, checksum.MaxBlock, checksum.MaxListBytes} {
		if !strings.Contains(text, strconv.FormatInt(n, 10)) {
			t.Errorf("the bound %d is not in the text", n)
		}
	}
}
