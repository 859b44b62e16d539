// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/s3rdma/s3rdma/conformance"
)

// startWithin is how long a gateway may take to answer.
const startWithin = 30 * time.Second

// versitygw tries versitygw's gateway over a folder. Its RDMA build needs NVIDIA's closed
// library; this one, from its module, knows nothing of descriptors.
func (r *run) versitygw(ctx context.Context) error {
	if !r.there("versitygw", r.o.Versitygw) {
		return nil
	}
	folder := filepath.Join(r.dir, "versitygw")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := l.Addr().String()
	l.Close()
	const access, secret = "trial", "trial-secret"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, r.o.Versitygw, "--port", address, "--access", access, "--secret", secret, "--quiet", "posix", folder)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start versitygw: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() // it is told to end
	}()
	stop := func() {
		cancel()
		<-ended
	}
	defer stop()
	if err := answers(ctx, "http://"+address, ended); err != nil {
		stop()
		return fmt.Errorf("versitygw: %w; it said: %s", err, bytes.TrimSpace(log.Bytes()))
	}
	report, err := r.suite(ctx, "versitygw", conformance.Options{Endpoint: "http://" + address, AccessKey: access, SecretKey: secret})
	if err != nil {
		return err
	}
	return r.knowsNothing("versitygw", report, LosersAtStock)
}

// answers waits until something answers at url.
func answers(ctx context.Context, url string, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := client.Get(url)
		if err == nil {
			resp.Body.Close()
			return nil
		}
		select {
		case <-tick.C:
		case <-ended:
			return errors.New("the process ended")
		case <-ctx.Done():
			return fmt.Errorf("no answer within %v: %w", startWithin, ctx.Err())
		}
	}
}
