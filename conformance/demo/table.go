// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTable writes the steps, one a line.
func (r Result) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "STEP\tOBJECTS\tMIB\tSECONDS\tMIB/S\tCLIENT CPU S/GIB\tFINDING")
	for _, s := range r.Steps {
		fmt.Fprintln(tw, strings.Join([]string{
			s.Name,
			unless(s.Objects == 0, "%d", s.Objects),
			unless(s.Objects == 0, "%.1f", float64(s.Bytes)/(1<<20)),
			unless(s.Took == 0, "%.2f", s.Took.Seconds()),
			unless(s.Bytes == 0 || s.Took == 0, "%.0f", float64(s.Bytes)/(1<<20)/max(s.Took, time.Microsecond).Seconds()),
			unless(s.Bytes == 0 || s.CPU == 0, "%.2f", s.CPU.Seconds()/max(float64(s.Bytes)/(1<<30), 1e-9)),
			s.Note,
		}, "\t"))
	}
	return tw.Flush()
}

// unless formats v, or leaves the cell empty.
func unless(empty bool, format string, v any) string {
	if empty {
		return ""
	}
	return fmt.Sprintf(format, v)
}
