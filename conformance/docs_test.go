// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/s3rdma/s3rdma/conformance/broken"
)

// TestCoverage holds docs/suite.md to the cases: whatever it names exists, each known
// defect has a case or the reason why not, and each client its line.
func TestCoverage(t *testing.T) {
	text, err := os.ReadFile("../docs/suite.md")
	if err != nil {
		t.Fatal(err)
	}
	topics := map[string]bool{}
	for _, c := range Cases() {
		topics[c.Topic()] = true
	}
	exists := func(pattern string) bool {
		return slices.ContainsFunc(Cases(), func(c Case) bool {
			ok, err := path.Match(pattern, c.ID)
			return err == nil && ok || strings.HasSuffix(pattern, "/*") && strings.HasPrefix(c.ID, strings.TrimSuffix(pattern, "*"))
		})
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	defects, clients, rows := 0, []string{}, 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		last := cells[len(cells)-1]
		cases := 0
		for _, m := range quoted.FindAllStringSubmatch(last, -1) {
			if topic, _, _ := strings.Cut(m[1], "/"); topics[topic] {
				cases++
				if !exists(m[1]) {
					t.Errorf("no case is called %s: %s", m[1], cells[0])
				}
			}
		}
		switch n, err := strconv.Atoi(cells[0]); {
		case err == nil:
			defects++
			if n != defects {
				t.Errorf("row %d is number %d", defects, n)
			}
			rows++
		case strings.HasPrefix(cells[0], "`"):
			clients = append(clients, strings.Trim(cells[0], "`"))
			continue
		case len(cells) == 2 && cells[1] != "cases":
			rows++
		default:
			continue
		}
		if cases == 0 && !strings.Contains(last, "not by a suite: ") {
			t.Errorf("%s: neither a case nor a reason: %s", cells[0], last)
		}
	}
	if defects != 36 || rows < 55 {
		t.Errorf("%d defects, %d rows", defects, rows)
	}
	var models []string
	for _, m := range Models() {
		models = append(models, m.Name)
	}
	if !slices.Equal(clients, models) {
		t.Errorf("the text has the clients %v, there are models of %v", clients, models)
	}
	for _, m := range regexp.MustCompile(`s3rdma broken --break ([a-z0-9-]+)`).FindAllStringSubmatch(string(text), -1) {
		if !slices.ContainsFunc(broken.Switches(), func(s broken.Switch) bool { return s.Name == m[1] }) {
			t.Errorf("there is no switch %s", m[1])
		}
	}
}
