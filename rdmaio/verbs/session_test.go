// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package verbs

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// patience bounds what ends by itself, on a machine of any speed.
const patience = 2 * time.Minute

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// memory returns n bytes off the heap.
func memory(t *testing.T, n int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

func newFabric(t *testing.T, o Options) *Fabric {
	t.Helper()
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close the fabric: %v", err)
		}
	})
	return f
}

// join connects a new target; change may alter the hello on its way.
func join(t *testing.T, f *Fabric, o Options, change func(*rdmaio.Hello)) *Target {
	t.Helper()
	tg := NewTarget(o)
	t.Cleanup(func() {
		if err := tg.Close(); err != nil {
			t.Errorf("close the target: %v", err)
		}
	})
	ctx := context.Background()
	h, err := tg.Hello(ctx)
	if err != nil {
		t.Fatal(err)
	}
	h.Owner = "me"
	if change != nil {
		change(&h)
	}
	w, err := f.Accept(ctx, h)
	if err != nil {
		t.Fatal(err)
	}
	if err := tg.Connect(ctx, w); err != nil {
		t.Fatal(err)
	}
	return tg
}

// move makes one transfer of the whole region.
func move(f *Fabric, d rdmaio.Descriptor, r rdmaio.Region, write bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := f.Open(ctx, d, "me")
	if err != nil {
		return err
	}
	defer l.Close()
	post := l.Read
	if write {
		post = l.Write
	}
	if err := post(ctx, rdmaio.Slice{Region: r, Len: len(r.Bytes())}, 0); err != nil {
		return err
	}
	return l.Fence(ctx)
}

func describe(t *testing.T, x rdmaio.Exposed) rdmaio.Descriptor {
	t.Helper()
	d, err := x.Describe(0, len(x.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A peer that knows nothing of our extension: transfers work, one READ at a time; a
// refused one ends the session, and both ends learn of it.
func TestForeignPeer(t *testing.T) {
	fo, to := devices(t)
	f := newFabric(t, fo)
	tg := join(t, f, to, func(h *rdmaio.Hello) {
		id, err := parseIdentity(h.Token, h.PSN)
		if err != nil {
			t.Fatal(err)
		}
		id.extended = false
		if h.Token, err = id.token(); err != nil {
			t.Fatal(err)
		}
	})
	r, err := f.Register(memory(t, 3<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	x, err := tg.Alloc(3<<20, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	d := describe(t, x)
	for _, write := range []bool{true, false, true, false} {
		if err := move(f, d, r, write); err != nil {
			t.Fatalf("write %v: %v", write, err)
		}
	}
	d.RKey ^= 0x5500
	if err := move(f, d, r, true); !errors.Is(err, rdmaio.ErrStaleKey) {
		t.Errorf("wrong key: error %v, want ErrStaleKey", err)
	}
	eventually(t, "the session is gone", func() bool { return f.live() == 0 })
	if _, err := f.Open(context.Background(), d, "me"); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("open: error %v, want ErrNoSession", err)
	}
	eventually(t, "the target notices", func() bool {
		_, err := x.Describe(0, 1)
		return errors.Is(err, rdmaio.ErrNoSession)
	})
}

// Windows work on Soft-RoCE too, but for their bounds.
func TestWindows(t *testing.T) {
	fo, to := devices(t)
	to.Windows = WindowsOn
	f := newFabric(t, fo)
	tg := join(t, f, to, nil)
	r, err := f.Register(memory(t, 100000))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	x, err := tg.Alloc(100000, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if x.(*exposed).window == nil {
		t.Skip("the device has no type 2 windows")
	}
	old := describe(t, x)
	for _, write := range []bool{true, false} {
		if err := move(f, old, r, write); err != nil {
			t.Fatalf("write %v: %v", write, err)
		}
	}
	if again := describe(t, x); again != old {
		t.Error("a second descriptor of the same window is another")
	}
	if err := x.Rekey(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := move(f, old, r, true); !errors.Is(err, rdmaio.ErrStaleKey) {
			t.Errorf("old key: error %v, want ErrStaleKey", err)
		}
		// The refusal has cost the queue pair, and the window with it.
		eventually(t, "the window works again", func() bool { return move(f, describe(t, x), r, i%2 == 0) == nil })
	}
	// A window is good for its own session only.
	other := join(t, f, to, nil)
	d := describe(t, x)
	s, err := other.current()
	if err != nil {
		t.Fatal(err)
	}
	d.Session = s.id
	if err := move(f, d, r, true); !errors.Is(err, rdmaio.ErrStaleKey) {
		t.Errorf("another session's window: error %v, want ErrStaleKey", err)
	}
}

// A fence that is cancelled, and has no time to let transfers complete, breaks the
// connection at both ends. Afterwards no byte moves, and the session works.
func TestForcedFence(t *testing.T) {
	fo, to := devices(t)
	fo.FenceLimit = 2 * time.Millisecond
	f := newFabric(t, fo)
	tg := join(t, f, to, nil)
	const size = 16 << 20
	r, err := f.Register(memory(t, size))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	x, err := tg.Alloc(size, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	d := describe(t, x)
	forced := 0
	for round := range 8 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		l, err := f.Open(ctx, d, "me")
		if errors.Is(err, rdmaio.ErrNoSession) || errors.Is(err, rdmaio.ErrPeerGone) {
			// With such a limit the peer may not have been in time: the session is lost.
			eventually(t, "the session is gone", func() bool { return f.live() == 0 })
			tg = join(t, f, Options{Devices: tg.opt.Devices}, nil)
			if x, err = tg.Alloc(size, rdmaio.RemoteRead|rdmaio.RemoteWrite); err != nil {
				t.Fatal(err)
			}
			d = describe(t, x)
			l, err = f.Open(ctx, d, "me")
		}
		if err != nil {
			t.Fatal(err)
		}
		write := round%2 == 0
		from, to := x.Bytes(), r.Bytes()
		if write {
			from, to = to, from
		}
		for i := range from {
			from[i] = byte(round + 1)
		}
		clear(to)
		post := l.Read
		if write {
			post = l.Write
		}
		if err := post(ctx, rdmaio.Slice{Region: r, Len: size}, 0); err != nil {
			t.Fatal(err)
		}
		eventually(t, "bytes arrive", func() bool { return to[0] != 0 })
		cancel()
		switch err := l.Fence(ctx); {
		case errors.Is(err, context.Canceled):
			forced++
		case err != nil:
			t.Fatalf("round %d: error %v, want context.Canceled", round, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		// Whatever is still under way would bring this.
		for i := range from {
			from[i] = 0xff
		}
		time.Sleep(20 * time.Millisecond)
		for i, b := range to {
			if b == 0xff {
				t.Fatalf("round %d: byte %d was moved after the fence", round, i)
			}
		}
	}
	if forced == 0 {
		t.Error("no fence was cancelled in time")
	}
}

func TestDMABuf(t *testing.T) {
	_, to := devices(t)
	tg := NewTarget(to)
	defer tg.Close()
	// A memfd is no dma-buf: what the device cannot do it says first.
	fd, err := unix.MemfdCreate("test", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	x, err := tg.RegisterDMABuf(fd, 0, 4096, 1<<40, rdmaio.RemoteWrite)
	if err == nil {
		x.Close()
		t.Fatal("a memfd was taken for a dma-buf")
	}
	r, oerr := tg.open()
	if oerr != nil {
		t.Fatal(oerr)
	}
	if can := supportsDMABuf(r) == yes; !can && !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("error %v, want EOPNOTSUPP", err)
	}
}

// Registering more than may be locked says how to mend that. (Root may lock all.)
func TestMemlockExplained(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was); err != nil {
		t.Fatal(err)
	}
	limited := was
	limited.Cur = min(was.Cur, 64<<10)
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limited); err != nil {
		t.Skip(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &was)
	err := fakeRail().explain(syscall.ENOMEM)
	for _, want := range []string{"RLIMIT_MEMLOCK", "64 KiB", "ulimit -l", "LimitMEMLOCK"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not mention %s", err, want)
		}
	}
	if !errors.Is(err, syscall.ENOMEM) {
		t.Error("the cause is lost")
	}
	if c := checkMemlock(64 << 10); c.OK || c.Remedy == "" {
		t.Errorf("the probe finds nothing wrong with 64 KiB: %+v", c)
	}
}

func TestIdleSessions(t *testing.T) {
	fo, to := devices(t)
	fo.IdleAfter = 2 * time.Second // time to join
	f := newFabric(t, fo)
	a := join(t, f, to, nil)
	x, err := a.Alloc(4096, rdmaio.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "an idle session is retired, and its target told", func() bool {
		_, err := x.Describe(0, 1)
		return f.live() == 0 && errors.Is(err, rdmaio.ErrNoSession)
	})
}

func TestBounds(t *testing.T) {
	fo, to := devices(t)
	fo.MaxPerOwner = 2
	fo.MaxLinks = 3
	f := newFabric(t, fo)
	tg := join(t, f, to, nil)
	join(t, f, to, nil)
	third := NewTarget(to)
	defer third.Close()
	h, err := third.Hello(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	h.Owner = "me"
	if _, err := f.Accept(context.Background(), h); !errors.Is(err, rdmaio.ErrTooMany) {
		t.Errorf("third session: error %v, want ErrTooMany", err)
	}
	x, err := tg.Alloc(4096, rdmaio.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	d := describe(t, x)
	for i := range 4 {
		l, err := f.Open(context.Background(), d, "me")
		if i < 3 {
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		} else if !errors.Is(err, rdmaio.ErrTooMany) {
			t.Errorf("fourth link: error %v, want ErrTooMany", err)
		}
	}
}

func TestAllowPeers(t *testing.T) {
	fo, to := devices(t)
	fo.AllowPeers = nil
	f := newFabric(t, fo)
	tg := NewTarget(to)
	defer tg.Close()
	h, err := tg.Hello(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	h.Owner = "me"
	for _, wrong := range []bool{true, false} {
		h.Peer = tg.Addr()
		if wrong {
			h.Peer = h.Peer.Next()
		}
		_, err := f.Accept(context.Background(), h)
		if wrong && !errors.Is(err, rdmaio.ErrRefused) || !wrong && err != nil {
			t.Errorf("wrong %v: error %v", wrong, err)
		}
	}
}

// softRoCE makes a device of its own for a test.
func softRoCE(t *testing.T, name, addr string) {
	t.Helper()
	netdev := "net-" + name
	for _, c := range []string{
		"ip link add " + netdev + " mtu 4200 type dummy",
		"ip link set " + netdev + " up",
		"ip addr add " + addr + "/24 dev " + netdev,
		"rdma link add " + name + " type rxe netdev " + netdev,
	} {
		run(t, c)
	}
	t.Cleanup(func() {
		run(t, "rdma link delete "+name)
		run(t, "ip link delete "+netdev)
	})
}

func run(t *testing.T, command string) {
	t.Helper()
	f := strings.Fields(command)
	if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// One of two rails goes down in the middle: what runs over the other goes on, new
// sessions go over the other, and when it comes back it is used again.
func TestRailFails(t *testing.T) {
	if os.Getenv("SOFTROCE") == "" {
		t.Skip("NOT TESTED: needs devices that it may take down (conformance/softroce)")
	}
	softRoCE(t, "ra", "10.78.0.1")
	softRoCE(t, "rb", "10.79.0.1")
	fo, _ := devices(t)
	fo.Devices = []string{"ra", "10.79.0.1"} // by name, and by address
	f := newFabric(t, fo)
	rails := f.Rails()
	if len(rails) != 2 || !rails[0].Up || !rails[1].Up || rails[0].Device != "ra" || rails[1].Device != "rb" {
		t.Fatalf("rails %+v, want ra and rb up", rails)
	}

	const size = 1 << 20
	r, err := f.Register(memory(t, size))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	joinAt := func(device string) (*Target, rdmaio.Exposed) {
		tg := NewTarget(Options{Devices: []string{"net-" + device}}) // by interface
		t.Cleanup(func() { tg.Close() })
		h, err := tg.Hello(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		h.Owner, h.Local = "me", tg.Addr()
		w, err := f.Accept(context.Background(), h)
		if err != nil {
			t.Fatal(err)
		}
		if err := tg.Connect(context.Background(), w); err != nil {
			t.Fatal(err)
		}
		x, err := tg.Alloc(size, rdmaio.RemoteRead|rdmaio.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		return tg, x
	}
	_, xa := joinAt("ra")
	_, xb := joinAt("rb")
	if rails = f.Rails(); rails[0].Connections != 1 || rails[1].Connections != 1 {
		t.Fatalf("rails %+v, want a connection on each", rails)
	}
	da, db := describe(t, xa), describe(t, xb)

	failed := make(chan error, 1)
	go func() {
		for {
			if err := move(f, db, r, true); err != nil {
				failed <- err
				return
			}
		}
	}()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := move(f, da, r, false); err != nil {
				stopped <- err
				return
			}
		}
	}()
	run(t, "ip link set net-rb down")
	if err := ended(t, failed); !errors.Is(err, rdmaio.ErrPeerGone) && !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("on the rail that failed: error %v, want ErrPeerGone or ErrNoSession", err)
	}
	eventually(t, "the rail is seen to be down", func() bool { return !f.Rails()[1].Up })
	if s := f.Rails()[1]; s.Failures != 1 || s.Why == "" {
		t.Errorf("status %+v, want a failure and its reason", s)
	}
	for range 20 {
		if err := move(f, da, r, true); err != nil {
			t.Fatalf("on the other rail: %v", err)
		}
	}
	close(stop)
	if err := ended(t, stopped); err != nil {
		t.Errorf("what ran on the other rail: %v", err)
	}
	if _, index, err := f.pick(netip.MustParseAddr("10.79.0.1")); err != nil || index != 0 {
		t.Errorf("a new session would go to rail %d, %v, want 0", index, err)
	} else {
		f.leave(index)
	}

	run(t, "ip link set net-rb up")
	eventually(t, "the rail is up again", func() bool { return f.Rails()[1].Up })
	_, again := joinAt("rb")
	if err := move(f, describe(t, again), r, true); err != nil {
		t.Errorf("over the rail that came back: %v", err)
	}
	if s := f.Rails()[1]; s.Connections != 1 {
		t.Errorf("status %+v, want one connection", s)
	}
}

// Idle connections are looked after: those whose peer is there stay, and a client that
// died without a word loses its place long before the idle time, with our extension and
// without.
func TestKeepAlive(t *testing.T) {
	for _, name := range []string{"Ours", "Foreign"} {
		t.Run(name, func(t *testing.T) {
			fo, to := devices(t)
			fo.KeepAlive, fo.PeerTimeout = 100*time.Millisecond, time.Second
			f := newFabric(t, fo)
			change := func(h *rdmaio.Hello) {
				id, err := parseIdentity(h.Token, h.PSN)
				if err != nil {
					t.Fatal(err)
				}
				id.extended = name == "Ours"
				if h.Token, err = id.token(); err != nil {
					t.Fatal(err)
				}
			}
			alive, dying := join(t, f, to, change), join(t, f, to, change)
			// More than one beat of each: they are answered.
			conns := func() (all []*conn) {
				f.conns.Lock()
				defer f.conns.Unlock()
				for c := range f.conns.all {
					all = append(all, c)
				}
				return all
			}
			eventually(t, "three answers of each peer", func() bool {
				all := conns()
				for _, c := range all {
					c.mu.Lock()
					n := c.head
					c.mu.Unlock()
					if n < 3 {
						return false
					}
				}
				return len(all) == 2
			})
			dying.mu.Lock()
			victim := dying.session
			dying.mu.Unlock()
			victim.kill()
			eventually(t, "the dead client's session is gone", func() bool { return f.Sessions() == 1 })

			x, err := alive.Alloc(4096, rdmaio.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			r, err := f.Register(memory(t, 4096))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if err := move(f, describe(t, x), r, true); err != nil {
				t.Errorf("the session of the one that lives: %v", err)
			}
		})
	}
}
