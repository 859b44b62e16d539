// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// Flows are other people's traffic: TCP connections that carry as much as they can from
// the server's end of the network to the client's. Each end is a process of its own, so
// that what they cost is nobody's who is measured.

// ServeFlow is the process of one end: "sink ADDRESS" listens, writes the address with
// the port to out, and reads what comes; "source ADDRESS N" sends over N connections. It
// returns when ctx ends, or its connections.
func ServeFlow(ctx context.Context, args []string, out io.Writer) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	carry := func(c net.Conn, f func(net.Conn)) {
		stop := context.AfterFunc(ctx, func() { c.Close() })
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer stop()
			defer c.Close()
			f(c)
		}()
	}
	switch n := 0; {
	case len(args) == 2 && args[0] == "sink":
		l, err := net.Listen("tcp", args[1])
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { l.Close() })()
		defer l.Close()
		fmt.Fprintln(out, l.Addr())
		for {
			c, err := l.Accept()
			if err != nil {
				return errors.Join(ctx.Err(), err)
			}
			carry(c, func(c net.Conn) { io.Copy(io.Discard, c) })
		}
	case len(args) == 3 && args[0] == "source":
		if _, err := fmt.Sscanf(args[2], "%d", &n); err != nil || n < 1 || n > 1000 {
			return fmt.Errorf("%w: %q flows", ErrOptions, args[2])
		}
		for range n {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", args[1])
			if err != nil {
				return err
			}
			carry(c, func(c net.Conn) {
				for b := make([]byte, 256*kib); ; {
					if _, err := c.Write(b); err != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		return nil
	}
	return fmt.Errorf("%w: want sink ADDRESS, or source ADDRESS N", ErrOptions)
}

// startFlows starts both ends of n flows; stop ends them.
func startFlows(o Options, n int, w *wire) (stop func(), err error) {
	var started []*exec.Cmd
	stop = func() {
		for _, c := range started {
			c.Process.Kill()
			c.Wait()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	start := func(launch launcher, args ...string) (io.Reader, error) {
		cmd := exec.Command(o.Network.Flow[0], append(o.Network.Flow[1:len(o.Network.Flow):len(o.Network.Flow)], args...)...)
		cmd.Env = append(os.Environ(), o.Network.FlowEnv...)
		cmd.Stderr = os.Stderr
		apart(cmd)
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := launch(cmd); err != nil {
			return nil, fmt.Errorf("start a competing flow: %w", err)
		}
		started = append(started, cmd)
		return out, nil
	}
	out, err := start((*exec.Cmd).Start, "sink", net.JoinHostPort(w.client, "0"))
	if err != nil {
		return nil, err
	}
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("start a competing flow: %w", err)
	}
	if _, err := start(launchIn(w.ns, (*exec.Cmd).Start), "source", strings.TrimSpace(address), fmt.Sprint(n)); err != nil {
		return nil, err
	}
	return stop, nil
}
