// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// ways counts operations by the way that their bytes went.
type ways map[string]int64

// add adds n times v.
func (w ways) add(v ways, n int64) {
	for k, c := range v {
		if w[k] += n * c; w[k] == 0 {
			delete(w, k)
		}
	}
}

// metricsPath is where MinIO with the plugin tells what the plugin did.
const metricsPath = "/minio/metrics/v3/rdma"

var pathLine = regexp.MustCompile(`(?m)^s3rdma_paths_total\{([^}]*)\} (\S+)$`)
var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// parsePaths reads the ways of a transport's requests out of the server's metrics:
// the path's name, with the reason why not a better one, if there is any.
func parsePaths(text []byte, transport string) (ways, error) {
	w := ways{}
	for _, line := range pathLine.FindAllSubmatch(text, -1) {
		n, err := strconv.ParseFloat(string(line[2]), 64)
		if err != nil {
			return nil, fmt.Errorf("s3rdma_paths_total: %w", err)
		}
		labels := map[string]string{}
		for _, l := range label.FindAllSubmatch(line[1], -1) {
			labels[string(l[1])] = string(l[2])
		}
		if labels["transport"] != transport {
			continue
		}
		name := labels["path"]
		if labels["reason"] != "" {
			name += " (" + labels["reason"] + ")"
		}
		w[name] += int64(n)
	}
	return w, nil
}

// paths asks a server.
func (s *server) paths(ctx context.Context, transport string) (ways, error) {
	resp, err := s.admin.Do(ctx, rawhttp.Request{Method: http.MethodGet, Path: metricsPath, Anonymous: true})
	if err != nil {
		return nil, err
	}
	if resp.Status != http.StatusOK {
		return nil, fmt.Errorf("%s answered HTTP %d", metricsPath, resp.Status)
	}
	return parsePaths(resp.Body, transport)
}
