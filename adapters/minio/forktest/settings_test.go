// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

package forktest

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/plugin"
)

func TestHelpShowsFlags(t *testing.T) {
	out, err := exec.Command(forkBinary(t), "server", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, s := range plugin.SettingsTable() {
		if !strings.Contains(string(out), "--"+s.Name+" ") || !strings.Contains(string(out), s.Env("MINIO_")) {
			t.Errorf("help lacks --%s or %s", s.Name, s.Env("MINIO_"))
		}
	}
}

func TestVersion(t *testing.T) {
	out, err := exec.Command(forkBinary(t), "--version").CombinedOutput()
	if err != nil || strings.Contains(string(out), "GOGET") || !strings.Contains(string(out), ".s3rdma") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestBadSettings: a setting that cannot work ends the start with its name, also
// if RDMA is off.
func TestBadSettings(t *testing.T) {
	for _, c := range []struct {
		name string
		env  []string
		args []string
		want string
	}{
		{"switch", nil, []string{"--rdma=maybe"}, "rdma"},
		{"fabric", nil, []string{"--rdma=on", "--rdma-fabric=telepathy"}, "rdma-fabric"},
		{"size in the environment", []string{"MINIO_RDMA_STAGING_SIZE=lots"}, nil, "MINIO_RDMA_STAGING_SIZE"},
		{"network", nil, []string{"--rdma-allow-peers=10.0.0.0/99"}, "rdma-allow-peers"},
		{"address in use by nobody here", nil, []string{"--rdma=on", "--rdma-fabric=tcp", "--rdma-tcp-listen=192.0.2.1:9999"}, "rdma-tcp-listen"},
		{"socket in no folder", nil, []string{"--rdma=on", "--rdma-fabric=shm", "--rdma-shm-socket=/nonexistent/folder/s"}, "rdma-shm-socket"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd, log := setup{drives: freshDrives(t, 4), env: c.env, args: append([]string{"--address", "127.0.0.1:0"}, c.args...)}.command(t)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			select {
			case err := <-done:
				if err == nil {
					t.Error("exit status 0")
				}
			case <-time.After(30 * time.Second):
				cmd.Process.Kill()
				t.Fatalf("it runs\n%s", log)
			}
			for _, w := range []string{"FATAL", c.want} {
				if !strings.Contains(log.String(), w) {
					t.Errorf("the message lacks %q:\n%s", w, log)
				}
			}
			if strings.Contains(log.String(), "goroutine ") {
				t.Errorf("a panic:\n%s", log)
			}
		})
	}
}
