// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"
	"strings"
)

// ClientVerdict is what becomes of a known client at the server.
type ClientVerdict struct {
	Name   string `json:"name"`
	Client string `json:"client"`
	// Verdict is the worst of Operations, Why the reason for it. Where the server serves
	// descriptors, what becomes of others does not count, unless data is lost.
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitempty"`
	// Operations are put, part, get, range (with descriptors that the server serves),
	// put-unserved, part-unserved and get-unserved.
	Operations map[string]Verdict `json:"operations"`
}

// clientOperations are the columns of a table of clients.
var clientOperations = []string{"put", "part", "get", "range", "put-unserved", "part-unserved", "get-unserved"}

// verdicts gathers the clients of a run, in the order of Models.
func verdicts(results []Result) []ClientVerdict {
	var all []ClientVerdict
	for _, m := range Models() {
		v := ClientVerdict{Name: m.Name, Client: m.Client, Operations: map[string]Verdict{}}
		why := map[string]string{}
		for _, x := range results {
			if op, ok := strings.CutPrefix(x.ID, "client/"+m.Name+"/"); ok && x.Verdict != "" {
				v.Operations[op], why[op] = x.Verdict, x.Reason
			}
		}
		served := v.Operations["put"] != "" || v.Operations["get"] != ""
		worst := -1
		for _, op := range clientOperations {
			o, ran := v.Operations[op]
			at := slices.Index(severity, o)
			if !ran || at <= worst || served && strings.HasSuffix(op, "-unserved") && o != LosesData {
				continue
			}
			worst, v.Verdict, v.Why = at, o, why[op]
		}
		if v.Verdict != "" {
			all = append(all, v)
		}
	}
	return all
}
