// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/s3rdma/s3rdma/rdmaio/staging"
	"github.com/s3rdma/s3rdma/rdmaio/verbs"
)

type railedFabric struct{ *memFabric }

func (railedFabric) Rails() []verbs.RailStatus {
	return []verbs.RailStatus{
		{Device: "mlx5_0", Port: 1, Up: true, Connections: 3},
		{Device: "mlx5_1", Port: 2, Why: "the port is down", Failures: 2},
	}
}

func TestRailMetrics(t *testing.T) {
	r := newRig(t, 1000, func(c *Config, _ *staging.Options) {
		c.Fabrics[0] = railedFabric{c.Fabrics[0].(*memFabric)}
	})
	m := NewMetrics()
	m.Watch(r.plugin)
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(m); err != nil {
		t.Fatal(err)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP s3rdma_rail_connections Connections over the rail.
# TYPE s3rdma_rail_connections gauge
s3rdma_rail_connections{device="mlx5_0",port="1",transport="shm"} 3
s3rdma_rail_connections{device="mlx5_1",port="2",transport="shm"} 0
# HELP s3rdma_rail_failures_total How often the rail went down.
# TYPE s3rdma_rail_failures_total counter
s3rdma_rail_failures_total{device="mlx5_0",port="1",transport="shm"} 0
s3rdma_rail_failures_total{device="mlx5_1",port="2",transport="shm"} 2
# HELP s3rdma_rail_up 1 if the rail is used, 0 if it is down.
# TYPE s3rdma_rail_up gauge
s3rdma_rail_up{device="mlx5_0",port="1",transport="shm"} 1
s3rdma_rail_up{device="mlx5_1",port="2",transport="shm"} 0
`), "s3rdma_rail_up", "s3rdma_rail_connections", "s3rdma_rail_failures_total"); err != nil {
		t.Error(err)
	}
}
