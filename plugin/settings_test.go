// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio/verbs"
)

func parse(pairs ...string) (Settings, error) {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return ParseSettings(func(name string) string { return m[name] })
}

// TestDefaults: what the table says is the default is what an empty value means.
func TestDefaults(t *testing.T) {
	var pairs []string
	for _, s := range SettingsTable() {
		pairs = append(pairs, s.Name, s.Default)
	}
	if _, err := parse(pairs...); err != nil {
		t.Errorf("a default is refused: %v", err)
	}
	s, err := parse()
	if err != nil || s.On || len(s.Fabrics) != 1 || s.ChecksumGet != checksum.PolicyNone || s.ChecksumPut != checksum.PolicyRegion {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := parse("rdma-checksum-get", "both", "rdma-checksum-put", "envelope"); err != nil || s.ChecksumGet != checksum.PolicyBoth || s.ChecksumPut != checksum.PolicyEnvelope {
		t.Errorf("%+v, %v", s, err)
	}
	if env := SettingsTable()[1].Env("MINIO_"); env != "MINIO_RDMA_FABRIC" {
		t.Error(env)
	}
}

func TestBadSettings(t *testing.T) {
	for _, c := range [][2]string{
		{"rdma", "maybe"}, {"rdma-fabric", "shm,ib"}, {"rdma-fabric", "shm,shm"}, {"rdma-fabric", ","},
		{"rdma-staging-size", "lots"}, {"rdma-staging-size", "1KiB"}, {"rdma-staging-slab", "1"},
		{"rdma-staging-wait", "2"}, {"rdma-staging-wait", "-1s"}, {"rdma-staging-hugepages", "maybe"},
		{"rdma-allow-peers", "10.0.0.0/33"}, {"rdma-allow-peers", "host"}, {"rdma-stall-timeout", "0s"},
		{"rdma-session-idle", "1000h"}, {"rdma-max-sessions", "0"}, {"rdma-max-sessions-per-user", "x"},
		{"rdma-min-size", "8GiB"}, {"rdma-shm-mode", "999"}, {"rdma-shm-mode", "0"}, {"rdma-shm-uids", "root"}, {"rdma-base64", "2"}, {"rdma-etag", "sha1"},
		{"rdma-checksum-get", "all"}, {"rdma-checksum-put", "Region"},
	} {
		_, err := parse(c[0], c[1])
		var se *SettingError
		if !errors.As(err, &se) || se.Name != c[0] || se.Value != c[1] || !strings.Contains(err.Error(), c[0]) {
			t.Errorf("%v: %v", c, err)
		}
	}
	_, err := parse("rdma", "x", "rdma-base64", "y")
	if err == nil || !strings.Contains(err.Error(), "rdma=") || !strings.Contains(err.Error(), "rdma-base64=") {
		t.Errorf("not all bad settings are named: %v", err)
	}
}

// TestOpen starts real fabrics from settings, and finds settings that cannot work.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	good := []string{"rdma", "on", "rdma-fabric", "shm, tcp", "rdma-staging-size", "8MiB", "rdma-tcp-listen", "127.0.0.1:0", "rdma-shm-socket", filepath.Join(dir, "s"),
		"rdma-allow-peers", "10.0.0.0/8, ::1", "rdma-stall-timeout", "3s"}
	s, err := parse(good...)
	if err != nil {
		t.Fatal(err)
	}
	m := NewMetrics()
	p, err := s.Open(m.Listener())
	if err != nil {
		t.Fatal(err)
	}
	if !p.Enabled() || p.cfg.StallTimeout != 3*time.Second || len(s.TCP.AllowPeers) != 2 {
		t.Errorf("%+v", p.cfg)
	}
	m.Watch(p)
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(m); err != nil {
		t.Fatal(err)
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP s3rdma_sessions Sessions of a fabric, offered or connected.
# TYPE s3rdma_sessions gauge
s3rdma_sessions{transport="shm"} 0
s3rdma_sessions{transport="tcp"} 0
# HELP s3rdma_staging_bytes Registered staging memory.
# TYPE s3rdma_staging_bytes gauge
s3rdma_staging_bytes 8.388608e+06
`), "s3rdma_sessions", "s3rdma_staging_bytes"); err != nil {
		t.Error(err)
	}
	defer p.Close()

	for _, c := range [][]string{
		{"rdma-shm-socket", filepath.Join(dir, "s")}, // in use
		{"rdma-shm-socket", filepath.Join(dir, "none", "s")},
		{"rdma-tcp-listen", "nohost:nonsense"},
		{"rdma-tcp-listen", "203.0.113.1:0"}, // not an address of this host
		{"rdma-staging-slab", "4097"},
	} {
		s, err := parse(append([]string{"rdma", "on", "rdma-fabric", "tcp,shm", "rdma-staging-size", "8MiB", "rdma-tcp-listen", "127.0.0.1:0"}, c...)...)
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.Open(EventListener{})
		var se *SettingError
		if !errors.As(err, &se) {
			t.Errorf("%v: %v", c, err)
			if err == nil {
				p.Close()
			}
		}
	}
	off, err := parse("rdma-shm-socket", filepath.Join(dir, "none", "s"))
	if err != nil {
		t.Fatal(err)
	}
	if p, err := off.Open(EventListener{}); err != nil || p.Enabled() || p.Close() != nil {
		t.Errorf("switched off, nothing is started: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	m := NewMetrics()
	l := Tee(EventListener{}, m.Listener())
	l.RequestDone(RequestInfo{Op: OpGetObject, Dialect: "amz", Transport: "shm", Outcome: OutcomeServed, Status: 200, Bytes: 1000, Path: PathDiverted, PathReason: "encrypted", StagingWait: time.Millisecond, Duration: time.Second})
	l.RequestDone(RequestInfo{Op: OpPutObject, Dialect: "amz", Outcome: OutcomeDeclined, Reason: reasonOff, Status: 501})
	l.SessionDone(SessionInfo{Transport: "shm", Owner: "alice"})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP s3rdma_bytes_total Object bytes moved over the fabric in served requests.
# TYPE s3rdma_bytes_total counter
s3rdma_bytes_total{op="GetObject",transport="shm"} 1000
# HELP s3rdma_paths_total Served requests, by the way of their bytes between drives and staging memory, and why not a better one.
# TYPE s3rdma_paths_total counter
s3rdma_paths_total{op="GetObject",path="diverted",reason="encrypted",transport="shm"} 1
# HELP s3rdma_requests_total Requests with a memory descriptor, by how they ended.
# TYPE s3rdma_requests_total counter
s3rdma_requests_total{dialect="amz",op="GetObject",outcome="served",reason="",transport="shm"} 1
s3rdma_requests_total{dialect="amz",op="PutObject",outcome="declined",reason="off",transport=""} 1
# HELP s3rdma_session_changes_total Connects and disconnects.
# TYPE s3rdma_session_changes_total counter
s3rdma_session_changes_total{action="connect",result="ok",transport="shm"} 1
`), "s3rdma_bytes_total", "s3rdma_paths_total", "s3rdma_requests_total", "s3rdma_session_changes_total"); err != nil {
		t.Error(err)
	}
}

// TestVerbsSettings: they reach the fabric's options; and asking for a device that is not
// there names the setting, wherever the test runs.
func TestVerbsSettings(t *testing.T) {
	s, err := parse("rdma", "on", "rdma-fabric", "verbs,shm", "rdma-device", "no-such-device, 10.1.2.3:2", "rdma-gid-index", "3",
		"rdma-connect-signed", "off", "rdma-dc-key", "0x10", "rdma-traffic-class", "106", "rdma-service-level", "3",
		"rdma-peer-timeout", "3s", "rdma-peer-reads", "16", "rdma-allow-peers", "10.0.0.0/8", "rdma-session-idle", "1m",
		"rdma-max-sessions", "7", "rdma-max-sessions-per-user", "5", "rdma-dc-initiators", "9")
	if err != nil {
		t.Fatal(err)
	}
	want := verbs.Options{
		Devices: []string{"no-such-device", "10.1.2.3:2"}, GIDIndex: 3, AllowPeers: s.AllowPeers,
		MaxSessions: 7, MaxPerOwner: 5, IdleAfter: time.Minute, PeerTimeout: 3 * time.Second, UnknownPeerReads: 16,
		TrafficClass: 106, ServiceLevel: 3, SelfTest: true, DCKey: 0x10, DCInitiators: 9,
	}
	if diff := cmp.Diff(want, s.Verbs, cmpopts.EquateComparable(netip.Prefix{}), cmpopts.IgnoreUnexported(verbs.Options{})); diff != "" || !s.ConnectUnsigned {
		t.Errorf("unsigned %t, %s", s.ConnectUnsigned, diff)
	}
	_, err = s.Open(EventListener{})
	var se *SettingError
	if !errors.As(err, &se) || se.Name != "rdma-device" || !errors.Is(err, verbs.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
}
