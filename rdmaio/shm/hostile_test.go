// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/session"
)

// raw is a client that can say anything.
type raw struct {
	t    *testing.T
	conn *net.UnixConn
	id   rdmaio.SessionID
}

const owner = "a"

func welcome(t testing.TB, f *Fabric) rdmaio.Welcome {
	t.Helper()
	w, err := f.Accept(context.Background(), rdmaio.Hello{Token: version, Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func dialRaw(t *testing.T, f *Fabric) *raw {
	t.Helper()
	conn, err := net.DialUnix(network, nil, &net.UnixAddr{Name: f.Path(), Net: network})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	t.Cleanup(func() { conn.Close() })
	return &raw{t: t, conn: conn}
}

// connectRaw is dialRaw with a session.
func connectRaw(t *testing.T, f *Fabric) *raw {
	t.Helper()
	w := welcome(t, f)
	secret, _, err := parseWelcome(w.Token)
	if err != nil {
		t.Fatal(err)
	}
	c := dialRaw(t, f)
	c.id = w.Session
	c.send(helloOf(secret))
	if err := c.ack(); err != nil {
		t.Fatalf("hello: %v", err)
	}
	return c
}

func helloOf(secret session.Secret) []byte {
	m := message{kind: kindHello, secret: secret}
	return m.append(nil)
}

func (c *raw) send(b []byte, fds ...int) {
	c.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.conn.WriteMsgUnix(b, oob, nil); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// ack reads the server's answer.
func (c *raw) ack() error {
	c.t.Helper()
	b := make([]byte, maxMessage+1)
	n, err := c.conn.Read(b)
	if err != nil {
		return err
	}
	m, err := parseMessage(b[:n])
	if err != nil || m.kind != kindAck {
		c.t.Fatalf("answer is no ack: %v", err)
	}
	return m.err()
}

// ended checks that the server hangs up without another word.
func (c *raw) ended(what string) {
	c.t.Helper()
	n, err := c.conn.Read(make([]byte, maxMessage+1))
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Errorf("%s: the server went on (%d bytes, error %v)", what, n, err)
	}
}

func add(rkey uint32, size uint64) []byte {
	m := message{kind: kindAdd, rkey: rkey, access: rdmaio.RemoteRead | rdmaio.RemoteWrite, base: 1 << 20, size: size}
	return m.append(nil)
}

// memfd makes one with the given seals.
func memfd(t testing.TB, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("s3rdma-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

const goodSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

func openFiles(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// memfdMappings counts the mappings of memfds, ours and the tests', in this process.
func memfdMappings(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "memfd:s3rdma")
}

func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// works checks that the fabric serves an honest client.
func works(t *testing.T, f *Fabric) {
	t.Helper()
	target := NewTarget(TargetOptions{})
	defer target.Close()
	if err := target.Connect(context.Background(), welcome(t, f)); err != nil {
		t.Fatalf("an honest client: %v", err)
	}
	x, err := target.Alloc(5000, rdmaio.RemoteWrite)
	if err != nil {
		t.Fatalf("an honest client: %v", err)
	}
	d, err := x.Describe(0, 5000)
	if err != nil {
		t.Fatal(err)
	}
	if err := transfer(f, d, []byte(strings.Repeat("y", 5000)), true); err != nil {
		t.Fatalf("an honest client: %v", err)
	}
	if strings.Trim(string(x.Bytes()), "y") != "" {
		t.Error("an honest client got wrong bytes")
	}
}

// transfer moves b once. A CPU copies from the heap as well as from elsewhere.
func transfer(f *Fabric, d rdmaio.Descriptor, b []byte, write bool) error {
	r, err := f.Register(b)
	if err != nil {
		return err
	}
	defer r.Close()
	ctx := context.Background()
	l, err := f.Open(ctx, d, owner)
	if err != nil {
		return err
	}
	defer l.Close()
	s := rdmaio.Slice{Region: r, Len: len(b)}
	if write {
		return l.Write(ctx, s, 0)
	}
	return l.Read(ctx, s, 0)
}

// Every packet that breaks the rules ends its session, and leaves nothing behind.
func TestBrokenRules(t *testing.T) {
	f := newFabric(t, Options{})
	works(t, f)
	fd := memfd(t, 1<<16, goodSeals)
	msg := func(m message) []byte { return m.append(nil) }
	type packet struct {
		b   []byte
		fds int
	}
	cases := map[string]packet{
		"hello again":                       {helloOf(sampleSecret), 0},
		"ack":                               {msg(message{kind: kindAck}), 0},
		"add without a file":                {add(2, 4096), 0},
		"add with two files":                {add(2, 4096), 2},
		"add with as many as we can take":   {add(2, 4096), maxFDs},
		"add with more than we can take":    {add(2, 4096), maxFDs + 1},
		"add with as many as can be":        {add(2, 4096), 253},
		"revoke with a file":                {msg(message{kind: kindRevoke, rkey: 1}), 1},
		"rekey with a file":                 {msg(message{kind: kindRekey, rkey: 1, fresh: 2}), 1},
		"add under a key in use":            {add(1, 4096), 1},
		"revoke of a key not in use":        {msg(message{kind: kindRevoke, rkey: 2}), 0},
		"rekey of a key not in use":         {msg(message{kind: kindRekey, rkey: 2, fresh: 3}), 0},
		"rekey to a key in use":             {msg(message{kind: kindRekey, rkey: 1, fresh: 1}), 0},
		"oversized":                         {bytes.Repeat([]byte{2}, 4096), 0},
		"oversized with files":              {bytes.Repeat([]byte{2}, 60000), 3},
		"nothing, but a file":               {nil, 1},
		"a broken packet with a file":       {[]byte{0x55}, 1},
		"oversized, well formed at the top": {append(add(2, 4096), make([]byte, 500)...), 1},
	}
	for what, b := range brokenPackets() {
		cases[what] = packet{b, 0}
		cases[what+", with a file"] = packet{b, 1}
	}
	for what, p := range cases {
		c := connectRaw(t, f)
		c.send(add(1, 4096), fd)
		if err := c.ack(); err != nil {
			t.Fatalf("add: %v", err)
		}
		before := openFiles(t)
		fds := make([]int, p.fds)
		for i := range fds {
			fds[i] = fd
		}
		c.send(p.b, fds...)
		c.ended(what)
		// The server's socket was one of them.
		until(t, what+": all files are closed", func() bool { return openFiles(t) == before-1 })
		until(t, what+": the session is gone", func() bool { return f.Stats() == Stats{} })
		c.conn.Close()
		if n := memfdMappings(t); n != 0 {
			t.Fatalf("%s: %d mappings are left", what, n)
		}
	}
	works(t, f)
}

func TestBrokenHello(t *testing.T) {
	f := newFabric(t, Options{})
	fd := memfd(t, 4096, goodSeals)
	w := welcome(t, f)
	secret, _, err := parseWelcome(w.Token)
	if err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	for what, c := range map[string]func(*raw){
		"add first":         func(c *raw) { c.send(add(1, 4096), fd) },
		"hello with a file": func(c *raw) { c.send(helloOf(secret), fd) },
		"cut":               func(c *raw) { c.send(helloOf(secret)[:20]) },
		"another magic":     func(c *raw) { b := helloOf(secret); b[headLen] ^= 1; c.send(b) },
		"another version":   func(c *raw) { b := helloOf(secret); b[headLen+8] = 2; c.send(b) },
		"wrong secret": func(c *raw) {
			wrong := secret
			wrong[0] ^= 1
			c.send(helloOf(wrong))
			if err := c.ack(); !errors.Is(err, rdmaio.ErrNoSession) {
				t.Errorf("wrong secret: error %v, want ErrNoSession", err)
			}
		},
	} {
		r := dialRaw(t, f)
		c(r)
		r.ended(what)
		r.conn.Close()
	}
	until(t, "all files are closed", func() bool { return openFiles(t) == before })
	// None of them has used the offer up.
	target := NewTarget(TargetOptions{})
	defer target.Close()
	if err := target.Connect(context.Background(), w); err != nil {
		t.Errorf("connect: %v", err)
	}
}

// Files that could fault under the server are refused; the session goes on.
func TestRefusedFiles(t *testing.T) {
	f := newFabric(t, Options{})
	c := connectRaw(t, f)
	const size = 2 << 20 // a huge page, as the smallest of these can be
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	files := map[string]int{
		"a file":                        open(filepath.Join(t.TempDir(), "x")),
		"a memfd without seals":         memfd(t, size, 0),
		"a memfd that can shrink":       memfd(t, size, unix.F_SEAL_GROW),
		"a memfd that can grow":         memfd(t, size, unix.F_SEAL_SHRINK),
		"a memfd that is too small":     memfd(t, size-1, goodSeals),
		"a memfd that is empty":         memfd(t, 0, goodSeals),
		"a memfd that is not writeable": memfd(t, size, goodSeals|unix.F_SEAL_WRITE),
	}
	if dir, err := os.MkdirTemp("/dev/shm", "s3rdma-test-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		files["a file on tmpfs"] = open(filepath.Join(dir, "x"))
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pipe[0]); unix.Close(pipe[1]) })
	files["a pipe"] = pipe[0]
	if null, err := unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		t.Cleanup(func() { unix.Close(null) })
		files["a device"] = null
	}
	if huge, err := unix.MemfdCreate("s3rdma-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB); err == nil {
		t.Cleanup(func() { unix.Close(huge) })
		if err := unix.Ftruncate(huge, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(huge), unix.F_ADD_SEALS, goodSeals); err != nil {
			t.Fatal(err)
		}
		files["a memfd of huge pages"] = huge
	} else {
		t.Logf("no memfd of huge pages to try: %v", err)
	}
	before := openFiles(t)
	for what, fd := range files {
		c.send(add(1, size), fd)
		err := c.ack()
		if err == nil {
			t.Errorf("%s was accepted", what)
		} else if what != "a memfd that is not writeable" && !errors.Is(err, rdmaio.ErrUnsupported) {
			t.Errorf("%s: error %v, want ErrUnsupported", what, err)
		}
	}
	if s := f.Stats(); s.Regions != 0 || s.Bytes != 0 {
		t.Errorf("refused regions count: %+v", s)
	}
	if now := openFiles(t); now != before {
		t.Errorf("%d open files, %d before", now, before)
	}
	c.send(add(1, size), memfd(t, size, goodSeals))
	if err := c.ack(); err != nil {
		t.Errorf("a good memfd: %v", err)
	}
}

func TestAllowUIDs(t *testing.T) {
	me := uint32(os.Getuid())
	for _, c := range []struct {
		allow []uint32
		want  error
	}{{nil, nil}, {[]uint32{me + 1, me}, nil}, {[]uint32{me + 1}, rdmaio.ErrRefused}, {[]uint32{}, rdmaio.ErrRefused}} {
		f := newFabric(t, Options{AllowUIDs: c.allow})
		target := NewTarget(TargetOptions{})
		if err := target.Connect(context.Background(), welcome(t, f)); !errors.Is(err, c.want) {
			t.Errorf("AllowUIDs %v: error %v, want %v", c.allow, err, c.want)
		}
		target.Close()
	}
}

func TestCredentials(t *testing.T) {
	f := newFabric(t, Options{})
	c := connectRaw(t, f)
	lease, err := f.table.Acquire(c.id, owner)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	cred := lease.Value().cred
	if int(cred.Pid) != os.Getpid() || int(cred.Uid) != os.Getuid() || int(cred.Gid) != os.Getgid() {
		t.Errorf("recorded %+v, want this process", cred)
	}
}

func TestBounds(t *testing.T) {
	const page = 4096
	connect := func(f *Fabric) *Target {
		target := NewTarget(TargetOptions{})
		t.Cleanup(func() { target.Close() })
		if err := target.Connect(context.Background(), welcome(t, f)); err != nil {
			t.Fatal(err)
		}
		return target
	}
	for what, o := range map[string]Options{
		"MaxRegions":      {MaxRegions: 2},
		"MaxBytes":        {MaxBytes: 2 * page},
		"MaxTotalRegions": {MaxTotalRegions: 2},
		"MaxTotalBytes":   {MaxTotalBytes: 2 * page},
	} {
		f := newFabric(t, o)
		a, b := connect(f), connect(f)
		other := a
		if strings.Contains(what, "Total") {
			other = b
		}
		first, err := a.Alloc(page, rdmaio.RemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Alloc(page, rdmaio.RemoteRead); err != nil {
			t.Fatal(err)
		}
		_, err = a.Alloc(page, rdmaio.RemoteRead)
		if !errors.Is(err, rdmaio.ErrTooMany) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: error %v, want ErrTooMany that names it", what, err)
		}
		if n := len(a.regions) + len(b.regions); n != 2 {
			t.Errorf("%s: the targets keep %d regions, want 2: one was refused", what, n)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Alloc(page, rdmaio.RemoteRead); err != nil {
			t.Errorf("%s: after one was closed: %v", what, err)
		}
		a.Close()
		b.Close()
		until(t, "all is given back", func() bool { return f.Stats() == Stats{} })
	}
	f := newFabric(t, Options{MaxSessions: 2})
	welcome(t, f)
	welcome(t, f)
	if _, err := f.Accept(context.Background(), rdmaio.Hello{Token: version, Owner: owner}); !errors.Is(err, rdmaio.ErrTooMany) {
		t.Errorf("a third session: error %v, want ErrTooMany", err)
	}
}

// Connections that say nothing are bounded, and do not keep a fabric from closing.
func TestSilentConnections(t *testing.T) {
	f := newFabric(t, Options{})
	silent := make([]*raw, maxGreeting)
	for i := range silent {
		silent[i] = dialRaw(t, f)
	}
	until(t, "all are greeted", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.greeting) == maxGreeting
	})
	dialRaw(t, f).ended("one too many")
	silent[0].conn.Close()
	until(t, "one has gone", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.greeting) == maxGreeting-1
	})
	works(t, f)
	closing := time.Now()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(closing); took > greetWithin/2 {
		t.Errorf("close took %v with connections that say nothing", took)
	}
	silent[1].ended("closed")
}

// A client that does not read its acks is cut off, or harmless.
func TestDeafClient(t *testing.T) {
	f := newFabric(t, Options{})
	c := connectRaw(t, f)
	fd := memfd(t, 4096, goodSeals)
	c.conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	oob := unix.UnixRights(fd)
	revoke := message{kind: kindRevoke, rkey: 1}
	for range 100_000 {
		if _, _, err := c.conn.WriteMsgUnix(add(1, 4096), oob, nil); err != nil {
			break
		}
		if _, err := c.conn.Write(revoke.append(nil)); err != nil {
			break
		}
	}
	works(t, f) // others are not held up
	c.conn.Close()
	until(t, "the session is gone", func() bool { return f.Stats() == Stats{} })
}

// A client that keeps a descriptor, punches holes into its memory, or tries to
// shrink it, gets an error at most.
func TestMemoryPulledAway(t *testing.T) {
	f := newFabric(t, Options{})
	target := NewTarget(TargetOptions{})
	defer target.Close()
	if err := target.Connect(context.Background(), welcome(t, f)); err != nil {
		t.Fatal(err)
	}
	const size = 1 << 20
	x, err := target.Alloc(size, rdmaio.RemoteRead|rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	d, err := x.Describe(0, size)
	if err != nil {
		t.Fatal(err)
	}
	b := bytes.Repeat([]byte{7}, size)
	if err := transfer(f, d, b, true); err != nil {
		t.Fatal(err)
	}
	fd := x.(*exposed).fd
	for _, n := range []int64{0, size / 2, size + 4096} {
		if err := unix.Ftruncate(fd, n); err == nil {
			t.Errorf("the memfd could be resized to %d", n)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err == nil {
		t.Error("the seals could be changed")
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size); err != nil {
		t.Fatal(err)
	}
	if err := transfer(f, d, b, false); err != nil {
		t.Errorf("read a hole: %v", err)
	}
	if bytes.Count(b, []byte{0}) != size {
		t.Error("a hole does not read as zeros")
	}
	l, err := f.Open(context.Background(), d, owner)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := f.Register(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Write(context.Background(), rdmaio.Slice{Region: r, Len: size}, 0); !errors.Is(err, rdmaio.ErrStaleKey) {
		t.Errorf("an open link to a closed region: error %v, want ErrStaleKey", err)
	}
	if err := transfer(f, d, b, true); !errors.Is(err, rdmaio.ErrStaleKey) {
		t.Errorf("a closed region: error %v, want ErrStaleKey", err)
	}
	target.Close()
	if err := transfer(f, d, b, true); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("a closed target: error %v, want ErrNoSession", err)
	}
	works(t, f)
}
