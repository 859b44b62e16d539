// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// TestProtocolText parses the messages in PROTOCOL.md, and compares proofs and sizes.
func TestProtocolText(t *testing.T) {
	text, err := os.ReadFile("../../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string][]string{}
	for _, m := range regexp.MustCompile("(?s)```tcp (\\w+)\n(.*?)\n```").FindAllStringSubmatch(string(text), -1) {
		blocks[m[1]] = append(blocks[m[1]], m[2])
	}
	one := func(name string) (bytes string, meaning string) {
		if len(blocks[name]) == 0 {
			t.Fatalf("there is no example of %s", name)
		}
		s := blocks[name][0]
		blocks[name] = blocks[name][1:]
		var digits []string
		for line := range strings.Lines(s) {
			if strings.Contains(line, "=") {
				meaning = strings.TrimSpace(line)
			} else {
				digits = append(digits, strings.Fields(line)...)
			}
		}
		return strings.Join(digits, ""), meaning
	}
	unhex := func(dst []byte, s string) {
		b, err := hex.DecodeString(s)
		if err != nil || len(b) != len(dst) {
			t.Fatalf("%s: %d bytes, want %d: %v", s, len(b), len(dst), err)
		}
		copy(dst, b)
	}
	same := func(name, got, want string) {
		if got != want {
			t.Errorf("%s: the text has\n%s\nit is\n%s", name, got, want)
		}
	}

	token, says := one("welcome")
	p, err := parsePlace(token)
	if err != nil {
		t.Fatal(err)
	}
	same("welcome", says, fmt.Sprintf("secret=%s lanes=%d target=%s", p.secret.Hex(), p.lanes, p.target()))
	same("welcome", token, p.encode())

	var gb [greetingSize]byte
	digits, _ := one("greeting")
	unhex(gb[:], digits)
	g, err := parseGreeting(&gb)
	if err != nil || g.encode() != gb {
		t.Errorf("greeting: %v", err)
	}

	var jb [joinSize]byte
	digits, _ = one("join")
	unhex(jb[:], digits)
	j, err := parseJoin(&jb)
	if err != nil {
		t.Fatal(err)
	}
	right := j
	right.proof = prove(p.secret[:], byTarget, g, j, 0)
	rb := right.encode()
	same("join", digits, hex.EncodeToString(rb[:]))

	digits, _ = one("verdict")
	vb := encodeVerdict(verdictJoined, prove(p.secret[:], byInitiator, g, j, verdictJoined))
	same("verdict", digits, hex.EncodeToString(vb[:]))

	var qb [requestSize]byte
	digits, says = one("request")
	unhex(qb[:], digits)
	q, err := parseRequest(&qb)
	if err != nil {
		t.Fatal(err)
	}
	same("request", says, fmt.Sprintf("op=%d length=%d id=%d addr=%#x rkey=%#x", q.op, q.length, q.id, q.addr, q.rkey))
	for len(blocks["answer"]) > 0 {
		var ab [answerSize]byte
		digits, says = one("answer")
		unhex(ab[:], digits)
		a, err := parseAnswer(&ab)
		if err != nil {
			t.Fatal(err)
		}
		same("answer", says, fmt.Sprintf("op=%d status=%d length=%d id=%d", a.op, a.status, a.length, a.id))
	}
	for name, left := range blocks {
		if len(left) > 0 {
			t.Errorf("%s: an example that is not looked at", name)
		}
	}
	for _, want := range []string{
		fmt.Sprintf("| greeting, server | %d | `%s`, version u8 = %d", greetingSize, magic, wireVersion),
		fmt.Sprintf("| join, client | %d |", joinSize),
		fmt.Sprintf("| verdict, server | %d |", verdictSize),
		fmt.Sprintf("| request, server | %d | op u8 (%d WRITE, %d READ)", requestSize, opWrite, opRead),
		fmt.Sprintf("| DATA, client | %d | `%02x`", answerSize, opData),
		fmt.Sprintf("| DONE, client | %d | `%02x`", answerSize, opDone),
		fmt.Sprintf("`length` is 1 to %d", maxFrame),
		fmt.Sprintf("| lanes of tcp | %d |", maxLanes),
		fmt.Sprintf("| window | %d bytes |", uint64(rdmaio.MaxWindow)),
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the text does not say %q", want)
		}
	}
}
