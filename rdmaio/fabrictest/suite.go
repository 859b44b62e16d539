// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package fabrictest

import (
	"testing"

	"go.uber.org/goleak"
)

// testcase is one behaviour: what it is called in Harness.Skip, and how to see it.
type testcase struct {
	name string
	run  func(t *testing.T, h Harness)
}

// cases in the order in which a new fabric should get them right.
func cases() []testcase {
	return []testcase{
		{"Capabilities", testCapabilities},
		{"ExactBytes", testExactBytes},
		{"ManyPostsOneFence", testManyPosts},
		{"SubWindow", testSubWindow},
		{"Describe", testDescribe},
		{"BeyondWindow", testBeyondWindow},
		{"BeyondSlice", testBeyondSlice},
		{"DoctoredDescriptor", testDoctored},
		{"StaleKey", testStaleKey},
		{"WrongDirection", testWrongDirection},
		{"WrongSession", testWrongSession},
		{"OtherOwner", testOtherOwner},
		{"OtherTransport", testOtherTransport},
		{"StickyError", testSticky},
		{"ClosedLink", testClosedLink},
		{"Concurrent", testConcurrent},
		{"CancelledBefore", testCancelledBefore},
		{"CancelledDuring", testCancelledDuring},
		{"RekeyDuring", testRekeyDuring},
		{"CloseRegionDuring", testCloseRegionDuring},
		{"PeerDeath", testPeerDeath},
		{"Hangup", testHangup},
		{"Reconnect", testReconnect},
		{"Close", testClose},
		{"AcceptRefuses", testAcceptRefuses},
		{"PostAllocatesNothing", testAllocations},
		{"FailedOpensLeakNothing", testFailedOpens},
		{"CyclesLeakNothing", testCycles},
	}
}

// Run holds the fabric of h to the behaviour that rdmaio promises, one subtest for
// each case. Each case also checks that no goroutine is left behind.
func Run(t *testing.T, h Harness) {
	t.Helper()
	known := make(map[string]bool)
	for _, c := range cases() {
		known[c.name] = true
	}
	for name := range h.Skip {
		if !known[name] {
			t.Errorf("Harness.Skip names %q, which is no case", name)
		}
	}
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			if reason := h.Skip[c.name]; reason != "" {
				t.Skip(reason)
			}
			before := goleak.IgnoreCurrent()
			// Cleanups run last to first: this one after all that the case sets up.
			t.Cleanup(func() {
				if !t.Failed() {
					goleak.VerifyNone(t, before)
				}
			})
			c.run(t, h)
		})
	}
}
