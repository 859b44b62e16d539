// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is an [EventListener] that counts, and a Prometheus collector of what
// it counted. Register it on a registry of your own; there is no global one.
//
//	s3rdma_requests_total{op,dialect,transport,outcome,reason}
//	s3rdma_paths_total{op,transport,path,reason}    served requests, by the way of their bytes
//	s3rdma_bytes_total{op,transport}                moved in served requests
//	s3rdma_request_seconds{op,transport}            served requests, histogram
//	s3rdma_staging_wait_seconds                     histogram
//	s3rdma_staging_bytes, s3rdma_staging_used_bytes, s3rdma_staging_waiting
//	s3rdma_session_changes_total{transport,action,result}
//	s3rdma_sessions{transport}
//	s3rdma_rail_up, s3rdma_rail_connections, s3rdma_rail_failures_total{transport,device,port}
//
// Labels have few values, all of our own making: nothing of a request's content
// appears in them.
type Metrics struct {
	requests *prometheus.CounterVec
	paths    *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	wait     prometheus.Histogram
	changes  *prometheus.CounterVec

	stagingSize, stagingUsed, stagingWaiting, sessions *prometheus.Desc

	rails railMetrics

	plugin *Plugin // nil until Watch
}

// NewMetrics returns metrics at zero.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "s3rdma", Name: name, Help: help}, labels)
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("s3rdma", "", name), help, labels, nil)
	}
	return &Metrics{
		requests: counter("requests_total", "Requests with a memory descriptor, by how they ended.", "op", "dialect", "transport", "outcome", "reason"),
		paths:    counter("paths_total", "Served requests, by the way of their bytes between drives and staging memory, and why not a better one.", "op", "transport", "path", "reason"),
		bytes:    counter("bytes_total", "Object bytes moved over the fabric in served requests.", "op", "transport"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "s3rdma", Name: "request_seconds", Help: "Duration of served requests.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"op", "transport"}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "s3rdma", Name: "staging_wait_seconds", Help: "Time that requests waited for staging memory.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 4, 10),
		}),
		changes:        counter("session_changes_total", "Connects and disconnects.", "transport", "action", "result"),
		stagingSize:    desc("staging_bytes", "Registered staging memory."),
		stagingUsed:    desc("staging_used_bytes", "Staging memory lent to requests."),
		stagingWaiting: desc("staging_waiting", "Requests that wait for staging memory."),
		sessions:       desc("sessions", "Sessions of a fabric, offered or connected.", "transport"),
		rails:          newRailMetrics(),
	}
}

// Listener returns the listener to put into [Config], or to Tee.
func (m *Metrics) Listener() EventListener {
	return EventListener{RequestDone: m.requestDone, SessionDone: m.sessionDone}
}

// Watch adds the gauges of p's staging and sessions. Call it once, before the
// collector is registered.
func (m *Metrics) Watch(p *Plugin) { m.plugin = p }

func (m *Metrics) requestDone(i RequestInfo) {
	op := i.Op.String()
	m.requests.WithLabelValues(op, i.Dialect, i.Transport, i.Outcome.String(), i.Reason).Inc()
	if i.StagingWait > 0 {
		m.wait.Observe(i.StagingWait.Seconds())
	}
	if i.Outcome == OutcomeServed {
		m.paths.WithLabelValues(op, i.Transport, i.Path, i.PathReason).Inc()
		m.bytes.WithLabelValues(op, i.Transport).Add(float64(i.Bytes))
		m.seconds.WithLabelValues(op, i.Transport).Observe(i.Duration.Seconds())
	}
}

func (m *Metrics) sessionDone(i SessionInfo) {
	action, result := "connect", "ok"
	if i.Disconnect {
		action = "disconnect"
	}
	if i.Err != nil {
		result = "error"
	}
	m.changes.WithLabelValues(i.Transport, action, result).Inc()
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.requests.Describe(ch)
	m.paths.Describe(ch)
	m.bytes.Describe(ch)
	m.seconds.Describe(ch)
	m.wait.Describe(ch)
	m.changes.Describe(ch)
	ch <- m.stagingSize
	ch <- m.stagingUsed
	ch <- m.stagingWaiting
	ch <- m.sessions
	m.rails.describe(ch)
}

// sessionCounter is a fabric that can tell how many sessions it has.
type sessionCounter interface{ Sessions() int }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.requests.Collect(ch)
	m.paths.Collect(ch)
	m.bytes.Collect(ch)
	m.seconds.Collect(ch)
	m.wait.Collect(ch)
	m.changes.Collect(ch)
	if m.plugin == nil || !m.plugin.Enabled() {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := m.plugin.cfg.Staging.Stats()
	gauge(m.stagingSize, float64(s.Slabs)*float64(s.SlabSize))
	gauge(m.stagingUsed, float64(s.InUse)*float64(s.SlabSize))
	gauge(m.stagingWaiting, float64(s.Waiting))
	for _, f := range m.plugin.cfg.Fabrics {
		if c, ok := f.(sessionCounter); ok {
			gauge(m.sessions, float64(c.Sessions()), f.Capabilities().Name)
		}
		if r, ok := f.(railed); ok {
			m.rails.collect(ch, f.Capabilities().Name, r)
		}
	}
}

var (
	_ prometheus.Collector = (*Metrics)(nil)
	_ Dialect              = headerDialect{}
)
