// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// wire is a network between the client, which is here, and the server: a veth pair whose
// far end is in a network namespace of its own, or interfaces that were there already.
// The namespace has no name, and ends, with the pair, when the last process in it has
// ended: nothing stays behind, however this process ends.
type wire struct {
	// server and client are the addresses of the two.
	server, client string
	ns             *os.File // the server's namespace; nil: it is here, too
	ends           []wireEnd
	near           string // the client's interface
	own            bool   // the pair is ours
}

// wireEnd is an interface and where it is.
type wireEnd struct {
	ns     *os.File // nil: here
	device string
	shaped bool // it has a qdisc of ours
}

// wires counts those of this process, whose interfaces need different names.
var wires atomic.Int32

// newWire makes a wire as o says.
func newWire(ctx context.Context, o Network) (*wire, error) {
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: a network needs %q (Debian's package is called iproute2)", ErrUnsupported, tool)
		}
	}
	if o.Server != "" {
		w := &wire{server: o.Server, client: o.Client, near: o.Links[0]}
		for _, l := range o.Links {
			w.ends = append(w.ends, wireEnd{device: l})
		}
		return w, nil
	}
	ns, err := newNamespace()
	if err != nil {
		return nil, fmt.Errorf("%w: make a network namespace (this needs root): %w", ErrUnsupported, err)
	}
	// Addresses are of the range that is for benchmarks, 198.18.0.0/15 (RFC 2544): there is
	// room for 32768 networks of two.
	n := int(wires.Add(1))
	net := (os.Getpid() + n) % (1 << 15) * 4
	address := func(host int) string {
		return fmt.Sprintf("198.%d.%d.%d", 18+net>>16, net>>8&255, net&255+host)
	}
	w := &wire{ns: ns, own: true, near: fmt.Sprintf("s3r%dn%d", os.Getpid(), n%1000), client: address(1), server: address(2)}
	const far = "wire"
	w.ends = []wireEnd{{device: w.near}, {ns: ns, device: far}}
	steps := []struct {
		ns   *os.File
		args string
	}{
		{nil, "link add " + w.near + " type veth peer name " + far + " netns /proc/self/fd/3"},
		{nil, "addr add " + w.client + "/30 dev " + w.near},
		{nil, "link set " + w.near + " up"},
		{ns, "addr add " + w.server + "/30 dev " + far},
		{ns, "link set " + far + " up"},
		{ns, "link set lo up"},
	}
	for _, s := range steps {
		if err := w.run(ctx, s.ns, "ip", strings.Fields(s.args)...); err != nil {
			return nil, errors.Join(fmt.Errorf("make a veth pair: %w", err), w.close())
		}
	}
	return w, nil
}

// close takes away what newWire and shape have made.
func (w *wire) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := w.clear(ctx)
	if !w.own {
		return err
	}
	// With one end the other one goes, too.
	if _, gone := os.Stat(filepath.Join("/sys/class/net", w.near)); gone == nil {
		err = errors.Join(err, w.run(ctx, nil, "ip", "link", "del", w.near))
	}
	return errors.Join(err, w.ns.Close())
}

// shape gives the interfaces a qdisc, in the words of tc: what leaves them is treated so.
// An error that is ErrUnsupported means that this kernel has no such qdisc.
func (w *wire) shape(ctx context.Context, qdisc string) error {
	if err := w.clear(ctx); err != nil || qdisc == "" {
		return err
	}
	for i := range w.ends {
		e := &w.ends[i]
		if err := w.run(ctx, e.ns, "tc", append([]string{"qdisc", "replace", "dev", e.device, "root"}, strings.Fields(qdisc)...)...); err != nil {
			if strings.Contains(err.Error(), "qdisc kind is unknown") || strings.Contains(err.Error(), "Unknown qdisc") {
				err = fmt.Errorf("%w: %w", ErrUnsupported, err)
			}
			return errors.Join(err, w.clear(context.WithoutCancel(ctx)))
		}
		e.shaped = true
	}
	return nil
}

// clear takes the qdiscs away.
func (w *wire) clear(ctx context.Context) (err error) {
	for i := range w.ends {
		if e := &w.ends[i]; e.shaped {
			e.shaped = false
			err = errors.Join(err, w.run(ctx, e.ns, "tc", "qdisc", "del", "dev", e.device, "root"))
		}
	}
	return err
}

// run runs a command in a namespace, with the server's as file 3.
func (w *wire) run(ctx context.Context, ns *os.File, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if w.ns != nil {
		cmd.ExtraFiles = []*os.File{w.ns}
	}
	err := launchIn(ns, (*exec.Cmd).Start)(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return nil
}

// bytes is how many bytes the client's interface has received and sent.
func (w *wire) bytes() (int64, error) {
	var sum int64
	for _, name := range []string{"rx_bytes", "tx_bytes"} {
		n, err := readNumber(filepath.Join("/sys/class/net", w.near, "statistics", name))
		if err != nil {
			return 0, err
		}
		sum += int64(n)
	}
	return sum, nil
}

// launchIn starts processes by start in a network namespace; nil is this one.
func launchIn(ns *os.File, start launcher) launcher {
	if ns == nil {
		return start
	}
	return func(cmd *exec.Cmd) error {
		done := make(chan error)
		go func() {
			done <- inNamespace(func() error { return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET) }, func() error { return start(cmd) })
		}()
		return <-done
	}
}

// newNamespace makes a network namespace, which lasts until the file is closed and the
// last process in it has ended.
func newNamespace() (ns *os.File, err error) {
	done := make(chan error)
	go func() {
		done <- inNamespace(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() error {
			ns, err = os.Open("/proc/thread-self/ns/net")
			return err
		})
	}()
	if err := <-done; err != nil {
		return nil, err
	}
	return ns, nil
}

// inNamespace lets enter change the calling thread's network namespace, calls f, and
// goes back. It must have a goroutine to itself: if there is no way back, the goroutine's
// end is the thread's.
func inNamespace(enter, f func() error) (err error) {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	if err := enter(); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, fmt.Errorf("leave the network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return err
}
