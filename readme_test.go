// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package s3rdma_test

import (
	"os"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/plugin"
)

// TestReadmeFlags holds the README's table against the settings.
func TestReadmeFlags(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // flag to its default
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); strings.HasPrefix(line, "| `--") && len(cells) > 3 {
			rows[strings.Trim(cells[1], " `-")] = strings.Trim(cells[2], " `")
		}
	}
	for _, s := range plugin.SettingsTable() {
		def, ok := rows[s.Name]
		if !ok {
			t.Errorf("flag --%s is not in the README", s.Name)
		} else if def != s.Default {
			t.Errorf("flag --%s: the README says its default is %q, it is %q", s.Name, def, s.Default)
		}
		delete(rows, s.Name)
	}
	for name := range rows {
		t.Errorf("the README has a flag --%s that does not exist", name)
	}
}
