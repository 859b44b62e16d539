// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

// TestProtocolText compares the messages in PROTOCOL.md with ours: in its examples all
// fields differ, so that none can be in another's place.
func TestProtocolText(t *testing.T) {
	text, err := os.ReadFile("../../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	secret, err := session.ParseSecret("000102030405060708090a0b0c0d0e0f")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"welcome": welcomeToken(secret, "/run/s3rdma/s") + "\nsecret=" + secret.Hex() + " path=/run/s3rdma/s",
	}
	for name, m := range map[string]message{
		"hello":  {kind: kindHello, seq: 1, secret: secret},
		"add":    {kind: kindAdd, seq: 2, access: rdmaio.RemoteWrite | rdmaio.RemoteRead, rkey: 0xaabbccdd, base: 0x7f1234560000, size: 0x100000},
		"revoke": {kind: kindRevoke, seq: 3, rkey: 0xaabbccdd},
		"rekey":  {kind: kindRekey, seq: 4, rkey: 0xaabbccdd, fresh: 0x44332211},
		"ack":    {kind: kindAck, seq: 5, status: statusTooMany, text: "too many"},
	} {
		b := m.append(nil)
		want[name] = hex.EncodeToString(b)
		size := fmt.Sprintf("| %s | %d |", name, len(b))
		if m.kind == kindAck {
			size = fmt.Sprintf("| ack | %d to %d |", headLen, headLen+maxAckText)
		}
		if !strings.Contains(string(text), size) {
			t.Errorf("the table has no %q", size)
		}
	}
	for _, m := range regexp.MustCompile("(?s)```shm (\\w+)\n(.*?)\n```").FindAllStringSubmatch(string(text), -1) {
		name, got := m[1], m[2]
		if name != "welcome" {
			got = strings.Join(strings.Fields(got), "")
		}
		if want[name] != got {
			t.Errorf("%s: the text has\n%s\nwe send\n%s", name, got, want[name])
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("there is no example of %s", name)
	}
	for s := statusOK; s <= statusFailed; s++ {
		if row := fmt.Sprintf("\n| %d | ", s); !strings.Contains(string(text), row) {
			t.Errorf("the text does not explain status %d", s)
		}
	}
}
