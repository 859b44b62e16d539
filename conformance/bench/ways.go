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

var counterLine = regexp.MustCompile(`(?m)^(s3rdma_paths_total|s3rdma_bytes_total)\{([^}]*)\} (\S+)$`)
var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// parseMoved reads out of the server's metrics what became of a transport's requests:
// the ways of their bytes, by the path's name with the reason why not a better one, if
// there is any; and the number of object bytes that went over the fabric.
func parseMoved(text []byte, transport string) (w ways, bytes int64, err error) {
	w = ways{}
	for _, line := range counterLine.FindAllSubmatch(text, -1) {
		n, err := strconv.ParseFloat(string(line[3]), 64)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", line[1], err)
		}
		labels := map[string]string{}
		for _, l := range label.FindAllSubmatch(line[2], -1) {
			labels[string(l[1])] = string(l[2])
		}
		if labels["transport"] != transport {
			continue
		}
		if string(line[1]) == "s3rdma_bytes_total" {
			bytes += int64(n)
			continue
		}
		name := labels["path"]
		if labels["reason"] != "" {
			name += " (" + labels["reason"] + ")"
		}
		w[name] += int64(n)
	}
	return w, bytes, nil
}

// moved asks a server.
func (s *server) moved(ctx context.Context, transport string) (ways, int64, error) {
	resp, err := s.admin.Do(ctx, rawhttp.Request{Method: http.MethodGet, Path: metricsPath, Anonymous: true})
	if err != nil {
		return nil, 0, err
	}
	if resp.Status != http.StatusOK {
		return nil, 0, fmt.Errorf("%s answered HTTP %d", metricsPath, resp.Status)
	}
	return parseMoved(resp.Body, transport)
}
