// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
)

// Tests that need two processes run this binary again, as the other end. It obeys
// lines on its standard input and answers each with a line.
const childEnv = "S3RDMA_SHM_TEST_CHILD"

const childSize = 32 << 20

// child is the other process: a client, or a server.
func child() int {
	var obey func(words []string) (string, error)
	if os.Getenv(childEnv) == "client" {
		obey = newChildClient()
	} else {
		obey = newChildServer()
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		answer, err := obey(strings.Fields(in.Text()))
		if err != nil {
			fmt.Println("error", err)
			return 1
		}
		fmt.Println(answer)
	}
	return 0
}

func newChildClient() func([]string) (string, error) {
	target := NewTarget(TargetOptions{})
	var x rdmaio.Exposed
	return func(words []string) (string, error) {
		switch words[0] {
		case "connect": // session, token: answers with a descriptor
			id, err := rdmaio.ParseSessionID(words[1])
			if err != nil {
				return "", err
			}
			if err := target.Connect(context.Background(), rdmaio.Welcome{Session: id, Token: words[2]}); err != nil {
				return "", err
			}
			if x, err = target.Alloc(childSize, rdmaio.RemoteRead|rdmaio.RemoteWrite); err != nil {
				return "", err
			}
			d, err := x.Describe(0, childSize)
			if err != nil {
				return "", err
			}
			return d.Encode(rdmaio.EncodingSession)
		case "sum":
			return fmt.Sprintf("%x", sha256.Sum256(x.Bytes())), nil
		case "close":
			return "closed", target.Close()
		}
		return "", errors.New("what?")
	}
}

func newChildServer() func([]string) (string, error) {
	f, err := New(Options{})
	return func(words []string) (string, error) {
		if err != nil {
			return "", err
		}
		switch words[0] {
		case "accept":
			w, err := f.Accept(context.Background(), rdmaio.Hello{Token: version, Owner: owner})
			return w.Session.Hex() + " " + w.Token, err
		case "write": // descriptor: writes to it for ever
			d, _, err := rdmaio.Parse(words[1], rdmaio.ParseOptions{})
			if err != nil {
				return "", err
			}
			go func() {
				b := bytes.Repeat([]byte{1}, int(d.Size))
				for {
					for i := range b {
						b[i]++
					}
					if transfer(f, d, b, true) != nil {
						return
					}
				}
			}()
			return "writing", nil
		}
		return "", errors.New("what?")
	}
}

// process is a child.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(t *testing.T, role string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	// A server that is killed leaves its socket behind.
	cmd.Env = append(os.Environ(), childEnv+"="+role, "TMPDIR="+t.TempDir())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t, cmd, in, bufio.NewReader(out)}
	t.Cleanup(p.kill)
	return p
}

// tell sends a line and returns the answer's words.
func (p *process) tell(words ...string) []string {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, strings.Join(words, " ")); err != nil {
		p.t.Fatalf("tell the child: %v", err)
	}
	line, err := p.out.ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error") {
		p.t.Fatalf("the child answers %q (%v)", line, err)
	}
	return strings.Fields(line)
}

// kill is kill -9.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// connectChild connects a client in another process, and returns its descriptor.
func connectChild(t *testing.T, f *Fabric) (*process, rdmaio.Descriptor) {
	t.Helper()
	p := start(t, "client")
	w := welcome(t, f)
	d, _, err := rdmaio.Parse(p.tell("connect", w.Session.Hex(), w.Token)[0], rdmaio.ParseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p, d
}

func TestTwoProcesses(t *testing.T) {
	f := newFabric(t, Options{})
	p, d := connectChild(t, f)
	out := make([]byte, childSize)
	for i := range out {
		out[i] = byte(i*31 + i>>12)
	}
	if err := transfer(f, d, out, true); err != nil {
		t.Fatalf("write: %v", err)
	}
	if got, want := p.tell("sum")[0], fmt.Sprintf("%x", sha256.Sum256(out)); got != want {
		t.Error("the other process sees other bytes")
	}
	back := make([]byte, childSize)
	if err := transfer(f, d, back, false); err != nil {
		t.Fatalf("read: %v", err)
	}
	if !bytes.Equal(back, out) {
		t.Error("other bytes came back")
	}
	p.tell("close")
	if err := transfer(f, d, back, false); !errors.Is(err, rdmaio.ErrNoSession) {
		t.Errorf("read after the client has closed: error %v, want ErrNoSession", err)
	}
	if s := f.Stats(); s != (Stats{}) {
		t.Errorf("the server still holds %+v", s)
	}
}

// The client is killed while bytes move to and from its memory.
func TestClientKilled(t *testing.T) {
	f := newFabric(t, Options{})
	p, d := connectChild(t, f)
	before := openFiles(t)
	const workers = 3
	ended := make(chan error, workers)
	var moved atomic.Int64
	for i := range workers {
		go func() {
			b := make([]byte, childSize)
			r, err := f.Register(b)
			if err != nil {
				ended <- err
				return
			}
			l, err := f.Open(context.Background(), d, owner)
			if err != nil {
				ended <- err
				return
			}
			defer l.Close()
			s := rdmaio.Slice{Region: r, Len: len(b)}
			for err == nil {
				if i%2 == 0 {
					err = l.Write(context.Background(), s, 0)
				} else {
					err = l.Read(context.Background(), s, 0)
				}
				moved.Add(1)
			}
			ended <- err
		}()
	}
	until(t, "bytes move", func() bool { return moved.Load() >= 2*workers })
	p.kill()
	for range workers {
		select {
		case err := <-ended:
			if !errors.Is(err, rdmaio.ErrPeerGone) {
				t.Errorf("error %v, want ErrPeerGone", err)
			}
		case <-time.After(f.Capabilities().FenceLimit + 5*time.Second):
			t.Fatal("a transfer goes on with a dead client")
		}
	}
	until(t, "the server lets go", func() bool { return f.Stats() == Stats{} })
	if n := memfdMappings(t); n != 0 {
		t.Errorf("%d mappings are left", n)
	}
	// The session's socket, and the pipes of the child.
	if now := openFiles(t); now >= before {
		t.Errorf("%d open files, %d when the client lived", now, before)
	}
	works(t, f)
	next, d := connectChild(t, f)
	if err := transfer(f, d, make([]byte, childSize), true); err != nil {
		t.Errorf("the next process: %v", err)
	}
	next.kill()
}

// The server is killed while it writes: the target learns that, and its memory is
// its own again.
func TestServerKilled(t *testing.T) {
	p := start(t, "server")
	target := NewTarget(TargetOptions{})
	defer target.Close()
	answer := p.tell("accept")
	id, err := rdmaio.ParseSessionID(answer[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Connect(context.Background(), rdmaio.Welcome{Session: id, Token: answer[1]}); err != nil {
		t.Fatal(err)
	}
	x, err := target.Alloc(childSize, rdmaio.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	d, err := x.Describe(0, childSize)
	if err != nil {
		t.Fatal(err)
	}
	text, err := d.Encode(rdmaio.EncodingSession)
	if err != nil {
		t.Fatal(err)
	}
	p.tell("write", text)
	mem := x.Bytes()
	until(t, "bytes arrive", func() bool { return bytes.Count(mem[len(mem)-1:], []byte{0}) == 0 })
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := x.Rekey(ctx); err != nil {
		t.Fatalf("rekey: %v", err)
	}
	after := bytes.Clone(mem)
	time.Sleep(20 * time.Millisecond)
	if !bytes.Equal(mem, after) {
		t.Error("the memory changed after Rekey had returned")
	}
	until(t, "the target notices", func() bool {
		_, err := x.Describe(0, 1)
		return errors.Is(err, rdmaio.ErrNoSession)
	})
}
