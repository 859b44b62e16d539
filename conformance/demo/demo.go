// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/conformance"
	"github.com/s3rdma/s3rdma/conformance/minioproc"
)

// Options of a demonstration. The zero value is the full one, over shm.
type Options struct {
	// Fabric is shm ("" too) or tcp.
	Fabric string
	// Binary is a MinIO with the plugin; "" builds one.
	Binary string
	// Files is the folder whose files are moved; "" is the Go distribution.
	Files string
	// FileBytes is how many bytes of files are moved over the fabric at least, both
	// ways together, and LargeBytes the size of the one large object; 0 is 1 GiB.
	FileBytes, LargeBytes int64
	// Keep leaves drives and logs where they are, and says where.
	Keep bool
	// Out gets what happens as it happens, nil nobody.
	Out io.Writer
}

// Result is what a demonstration measured.
type Result struct {
	// Passed, Failed and Skipped are the suite's cases, against the server in three
	// forms: plain, with TLS, and switched off.
	Passed, Failed, Skipped int
	// Objects is how many objects were moved over the fabric and compared, Bytes how
	// many bytes the fabric moved for that, both ways.
	Objects, Bytes int64
	// Payload is the number of payload bytes on the fabric client's HTTP
	// connections in the requests that moved objects.
	Payload int64
	// Steps are the table's rows.
	Steps []Step
	// Reports are the suite's.
	Reports []conformance.Report
}

// Line is the result in one line, for programs to read.
func (r Result) Line() string {
	return fmt.Sprintf("demo: passed=%d failed=%d skipped=%d objects=%d bytes=%d payload_bytes=%d",
		r.Passed, r.Failed, r.Skipped, r.Objects, r.Bytes, r.Payload)
}

// OK tells whether the demonstration showed what it is there to show.
func (r Result) OK() bool { return r.Failed == 0 && r.Payload == 0 && r.Passed > 0 && r.Objects > 0 }

// Step is one thing that was done and measured.
type Step struct {
	Name    string
	Objects int64
	Bytes   int64
	Took    time.Duration
	// CPU is what this process, the client, used; 0 where it says nothing.
	CPU time.Duration
	// Note is the finding, where there is one.
	Note string
}

const (
	gib     = 1 << 30
	bucket  = "s3rdma-demo"
	movers  = 4
	largest = 300
	others  = 300
)

type demonstration struct {
	o      Options
	dir    string
	result Result
}

// Run demonstrates, and removes what it made, whatever happens. An error means that
// something could not be shown; Result has what was found until then.
func Run(ctx context.Context, o Options) (result Result, err error) {
	if o.Fabric == "" {
		o.Fabric = "shm"
	}
	if o.FileBytes == 0 {
		o.FileBytes = gib
	}
	if o.LargeBytes == 0 {
		o.LargeBytes = gib
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	d := &demonstration{o: o}
	if o.Binary == "" {
		d.say("building MinIO with the plugin (the first time takes some minutes)")
		if d.o.Binary, err = BuildMinIO(ctx, false, o.Out); err != nil {
			return d.result, err
		}
	}
	if d.dir, err = os.MkdirTemp("", "s3rdma-demo-"); err != nil {
		return d.result, err
	}
	defer func() { err = errors.Join(err, d.cleanUp(ctx, err)) }()
	// Four drives hold each byte twice; files are written both ways.
	if err := needSpace(d.dir, 2*(2*o.FileBytes+o.LargeBytes)+gib/2); err != nil {
		return d.result, err
	}
	for _, step := range []func(context.Context) error{d.move, d.secure, d.off} {
		if err := step(ctx); err != nil {
			return d.result, err
		}
	}
	return d.result, nil
}

// cleanUp removes the drives, and after a failure all but the log.
func (d *demonstration) cleanUp(ctx context.Context, failed error) error {
	switch {
	case d.o.Keep:
		d.say("drives and log are kept in %s", d.dir)
		return nil
	case failed == nil || ctx.Err() != nil:
		return os.RemoveAll(d.dir)
	}
	drives, err := filepath.Glob(filepath.Join(d.dir, "drive*"))
	for _, drive := range drives {
		err = errors.Join(err, os.RemoveAll(drive))
	}
	d.say("the server's log is kept in %s", d.dir)
	return err
}

// inOrder runs each of fs until one fails.
func inOrder(fs ...func() error) error {
	for _, f := range fs {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (d *demonstration) say(format string, args ...any) {
	fmt.Fprintf(d.o.Out, format+"\n", args...)
}

// step runs f and notes what it took.
func (d *demonstration) step(s Step, f func() error) error {
	d.say("%s", s.Name)
	started, cpu := time.Now(), cpuTime()
	if err := f(); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	s.Took, s.CPU = time.Since(started), cpuTime()-cpu
	d.result.Steps = append(d.result.Steps, s)
	return nil
}

// serve starts the server for f, and stops it when f returns.
func (d *demonstration) serve(ctx context.Context, o minioproc.Options, f func(*minioproc.Server) error) error {
	o.Binary, o.Dir = d.o.Binary, d.dir
	s, err := minioproc.Start(ctx, o)
	if err != nil {
		return err
	}
	defer s.Stop()
	return f(s)
}

func (d *demonstration) on() []string {
	return []string{"--rdma=on", "--rdma-fabric=" + d.o.Fabric}
}

// move is the main part: files and the large object, both ways, and the suite.
func (d *demonstration) move(ctx context.Context) error {
	d.say("starting MinIO over four drives in %s with --rdma=on --rdma-fabric=%s", d.dir, d.o.Fabric)
	return d.serve(ctx, minioproc.Options{Args: d.on(), KMS: true}, func(s *minioproc.Server) error {
		if err := d.transfers(ctx, s); err != nil {
			return err
		}
		second, err := s.AddUser(ctx)
		if err != nil {
			return err
		}
		return d.suite(ctx, "conformance suite, "+d.o.Fabric, conformance.Options{Endpoint: s.Endpoint,
			AccessKey: s.Root.AccessKey, SecretKey: s.Root.SecretKey, Second: &second, Fabric: d.o.Fabric})
	})
}

func (d *demonstration) transfers(ctx context.Context, s *minioproc.Server) (err error) {
	e, err := connect(ctx, s, d.o.Fabric)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.plain.MakeBucket(ctx, bucket, minio.MakeBucketOptions{}); err != nil {
		return fmt.Errorf("make a bucket: %w", err)
	}
	if err := d.files(ctx, e); err != nil {
		return err
	}
	if err := d.large(ctx, e); err != nil {
		return err
	}
	stats := e.fabric.Stats()
	d.result.Bytes = stats.FabricBytes()
	d.result.Payload = e.payload()
	if n := stats.HTTPBytes(); n != 0 {
		return fmt.Errorf("%d object bytes went by HTTP, though only the fabric was allowed", n)
	}
	// The counter must have seen the requests, or its zero would mean nothing.
	wire := e.fabricWire.Of("PUT", "GET")
	if want := stats.Puts[client.Fabric].Requests + stats.Gets[client.Fabric].Requests; wire.Responses < want {
		return fmt.Errorf("the fabric client made %d requests, its connections show %d", want, wire.Responses)
	}
	plain := e.plainWire.Of("PUT", "GET")
	d.result.Steps = append(d.result.Steps,
		Step{Name: "fabric client's connections, PUT and GET", Objects: wire.Responses, Bytes: wire.Payload(),
			Note: fmt.Sprintf("payload on the wire; heads %d bytes", wire.Sent.Heads+wire.Received.Heads)},
		Step{Name: "minio-go's connections, PUT and GET", Objects: plain.Responses, Bytes: plain.Payload(), Note: "payload on the wire, for comparison"})
	return nil
}

// files moves files until enough bytes have gone over the fabric.
func (d *demonstration) files(ctx context.Context, e *ends) error {
	dir := d.o.Files
	if dir == "" {
		var err error
		if dir, err = goroot(ctx); err != nil {
			return err
		}
	}
	files, err := pick(dir, largest, others)
	if err != nil {
		return err
	}
	var total int64
	most := int64(1)
	for _, f := range files {
		total, most = total+f.size, max(most, f.size)
	}
	workers := make([]worker, movers)
	for i := range workers {
		w := &workers[i]
		if w.send, err = e.fabric.Alloc(int(most)); err != nil {
			return err
		}
		defer w.send.Close()
		if w.receive, err = e.fabric.Alloc(int(most)); err != nil {
			return err
		}
		defer w.receive.Close()
	}
	n := int64(len(files))
	for pass, moved := 1, int64(0); moved < d.o.FileBytes; pass++ {
		each := func(what string, do func(ctx context.Context, w worker, f file, key string) error) func() error {
			work := func(ctx context.Context, w worker, f file) error {
				if err := f.content(w.send.Bytes()); err != nil {
					return err
				}
				return do(ctx, w, f, fmt.Sprintf("%d/%s", pass, f.name))
			}
			return func() error {
				return d.step(Step{Name: what, Objects: n, Bytes: total}, func() error { return e.forEach(ctx, workers, files, work) })
			}
		}
		fabric := d.o.Fabric
		err := inOrder(
			each(fmt.Sprintf("files, pass %d: PUT over %s", pass, fabric), func(ctx context.Context, w worker, f file, key string) error {
				_, err := e.fabric.Put(ctx, bucket, "rdma/"+key, w.send.View(0, int(f.size)), onlyPut)
				return err
			}),
			each(fmt.Sprintf("files, pass %d: GET over %s, compare", pass, fabric), func(ctx context.Context, w worker, f file, key string) error {
				return e.wantFabric(ctx, bucket, "rdma/"+key, w.receive.View(0, int(f.size)), w.send.Bytes()[:f.size], onlyGet)
			}),
			each(fmt.Sprintf("files, pass %d: minio-go GET over HTTP, compare", pass), func(ctx context.Context, w worker, f file, key string) error {
				return e.wantPlain(ctx, bucket, "rdma/"+key, w.send.Bytes()[:f.size], minio.GetObjectOptions{})
			}),
		)
		if err != nil {
			return err
		}
		moved += 2 * total
		d.result.Objects += n
		if pass > 1 {
			continue
		}
		err = inOrder(
			each("files: minio-go PUT over HTTP", func(ctx context.Context, w worker, f file, key string) error {
				return e.putPlain(ctx, bucket, "http/"+key, w.send.Bytes()[:f.size], minio.PutObjectOptions{})
			}),
			each(fmt.Sprintf("files: GET of those over %s, compare", fabric), func(ctx context.Context, w worker, f file, key string) error {
				return e.wantFabric(ctx, bucket, "http/"+key, w.receive.View(0, int(f.size)), w.send.Bytes()[:f.size], onlyGet)
			}),
		)
		if err != nil {
			return err
		}
		moved += total
		d.result.Objects += n
	}
	return nil
}

// large moves one large object, written each way and read the other.
func (d *demonstration) large(ctx context.Context, e *ends) error {
	n := int(d.o.LargeBytes)
	src, err := e.fabric.Alloc(n)
	if err != nil {
		return err
	}
	defer src.Close()
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], uint64(time.Now().UnixNano()))
	rand.NewChaCha8(key).Read(src.Bytes()) // never fails
	size := int64(n)
	step := func(name string, f func() error) func() error {
		return func() error { return d.step(Step{Name: name, Objects: 1, Bytes: size}, f) }
	}
	fabric := d.o.Fabric
	// One buffer is enough: after the PUT the object is read back into it, and the
	// plain reader compares what arrived; the checksum of what was sent is the third
	// witness.
	var sum client.PutResult
	err = inOrder(
		step("large object: PUT over "+fabric, func() (err error) {
			sum, err = e.fabric.Put(ctx, bucket, "large", src.All(), onlyPut)
			return err
		}),
		step("large object: GET over "+fabric, func() error {
			clear(src.Bytes())
			got, err := e.fabric.Get(ctx, bucket, "large", src.All(), onlyGet)
			if err != nil {
				return err
			}
			if got.N != n || got.Verified != sum.Sum {
				return fmt.Errorf("%d bytes with checksum %v, sent were %d with %v", got.N, got.Verified, n, sum.Sum)
			}
			return nil
		}),
		step("large object: minio-go GET over HTTP, compare", func() error {
			return e.wantPlain(ctx, bucket, "large", src.Bytes(), minio.GetObjectOptions{})
		}),
	)
	if err != nil {
		return err
	}
	d.result.Objects++
	return e.plain.RemoveObject(ctx, bucket, "large", minio.RemoveObjectOptions{})
}

// secure runs what needs TLS.
func (d *demonstration) secure(ctx context.Context) error {
	return d.serve(ctx, minioproc.Options{Args: d.on(), KMS: true, TLS: true}, func(s *minioproc.Server) error {
		return d.suite(ctx, "conformance suite, "+d.o.Fabric+" with TLS", conformance.Options{Endpoint: s.Endpoint, TLS: s.TLS,
			AccessKey: s.Root.AccessKey, SecretKey: s.Root.SecretKey, Fabric: d.o.Fabric, Select: "encryption,session/connect,lifecycle/payload"})
	})
}

// off runs what must hold with the plugin switched off.
func (d *demonstration) off(ctx context.Context) error {
	return d.serve(ctx, minioproc.Options{}, func(s *minioproc.Server) error {
		return d.suite(ctx, "conformance suite, switched off", conformance.Options{Endpoint: s.Endpoint,
			AccessKey: s.Root.AccessKey, SecretKey: s.Root.SecretKey, Off: true})
	})
}

func (d *demonstration) suite(ctx context.Context, name string, o conformance.Options) error {
	o.Progress = func(r conformance.Result) {
		if r.Status == conformance.Failed {
			d.say("%s", r.Detail())
		}
	}
	var report conformance.Report
	err := d.step(Step{Name: name}, func() (err error) {
		report, err = conformance.Run(ctx, o)
		return err
	})
	if err != nil {
		return err
	}
	d.result.Reports = append(d.result.Reports, report)
	d.result.Passed += report.Passed
	d.result.Failed += report.Failed
	d.result.Skipped += report.Skipped
	last := &d.result.Steps[len(d.result.Steps)-1]
	last.CPU, last.Note = 0, fmt.Sprintf("%d passed, %d failed, %d skipped", report.Passed, report.Failed, report.Skipped)
	return nil
}
