// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/s3rdma/s3rdma/rdmaio/verbs"
)

// railed is a fabric that has rails: ports of RDMA devices.
type railed interface{ Rails() []verbs.RailStatus }

var (
	_ railed = (*verbs.Fabric)(nil)
	_ railed = (*verbs.DCFabric)(nil)
)

// railMetrics shows which rails work and how they are used. A rail that is down is taken
// out and tried again; its sessions were lost, and its clients connect anew over another.
type railMetrics struct{ up, connections, failures *prometheus.Desc }

func newRailMetrics() railMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("s3rdma", "rail", name), help, []string{"transport", "device", "port"}, nil)
	}
	return railMetrics{
		up:          desc("up", "1 if the rail is used, 0 if it is down."),
		connections: desc("connections", "Connections over the rail."),
		failures:    desc("failures_total", "How often the rail went down."),
	}
}

func (m railMetrics) describe(ch chan<- *prometheus.Desc) {
	ch <- m.up
	ch <- m.connections
	ch <- m.failures
}

func (m railMetrics) collect(ch chan<- prometheus.Metric, transport string, f railed) {
	for _, r := range f.Rails() {
		labels := []string{transport, r.Device, strconv.Itoa(r.Port)}
		up := 0.0
		if r.Up {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(m.up, prometheus.GaugeValue, up, labels...)
		ch <- prometheus.MustNewConstMetric(m.connections, prometheus.GaugeValue, float64(r.Connections), labels...)
		ch <- prometheus.MustNewConstMetric(m.failures, prometheus.CounterValue, float64(r.Failures), labels...)
	}
}
