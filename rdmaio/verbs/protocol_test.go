// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"testing"
)

// TestProtocolText reads the hello of PROTOCOL.md.
func TestProtocolText(t *testing.T) {
	text, err := os.ReadFile("../../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("```rc hello\n(.*)\n(.*)\n```").FindStringSubmatch(string(text))
	if m == nil {
		t.Fatal("there is no example of a hello")
	}
	i, err := parseIdentity(m[1], 7)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("qpn=%#x peer=%s port=%d messages=%#x psn=%#x mtu=%d reads=%d",
		i.qpn, netip.AddrFrom16(i.gid).Unmap(), i.port, i.ctlQPN, i.ctlPSN, i.mtu, i.reads); got != m[2] || !i.extended {
		t.Errorf("the text says %q, it means %q", m[2], got)
	}
	if again, err := i.token(); err != nil || again != m[1] {
		t.Errorf("we write %s, %v", again, err)
	}
	for kind, says := range map[message]string{msgRearm: "server", msgReady: "client", msgBye: "either"} {
		if !regexp.MustCompile(fmt.Sprintf("(?m)^\\| %d \\| %s \\|", kind, says)).Match(text) {
			t.Errorf("the text has no message %d of the %s", kind, says)
		}
	}
}
