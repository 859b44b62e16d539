// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/adapters/client"
	"github.com/s3rdma/s3rdma/conformance"
)

// The transfers' memory: a few parts, whatever the file's size.
const (
	partSize    = 64 << 20
	partsAtOnce = 3
)

// errNoKeys: a request without keys could only be refused, in words that do not help.
var errNoKeys = errors.New("no keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --access-key and --secret-key")

// transferFlags say which server is meant and how bytes go there.
type transferFlags struct {
	serverFlags
	SessionToken string `help:"Session token of temporary keys." env:"S3RDMA_SESSION_TOKEN,AWS_SESSION_TOKEN"`
	Fabric       string `help:"How bytes go: shm (same host), tcp, rc (RDMA devices), hipobj (the same by hipobj-rc-v2), or none (plain HTTP)." enum:"shm,tcp,rc,hipobj,none" default:"shm" env:"S3RDMA_FABRIC"`
	deviceFlags
	Only bool `help:"Fail instead of falling back to HTTP when the server declines."`
}

func (f transferFlags) client() (*client.Client, error) {
	if f.AccessKey == "" || f.SecretKey == "" {
		return nil, errNoKeys
	}
	tlsConfig, err := f.tls()
	if err != nil {
		return nil, err
	}
	o := client.Options{Endpoint: f.Endpoint, Region: f.Region, TLS: tlsConfig,
		Credentials: func(context.Context) (client.Credentials, error) {
			return client.Credentials{AccessKey: f.AccessKey, SecretKey: f.SecretKey, SessionToken: f.SessionToken}, nil
		}}
	if f.Fabric != "none" {
		if o.Target, err = conformance.NewTarget(f.Fabric, f.device()); err != nil {
			return nil, err
		}
	}
	c, err := client.New(o)
	if err != nil && o.Target != nil {
		o.Target.Close()
	}
	return c, err
}

func (f transferFlags) force() client.Force {
	if f.Only {
		return client.ForceFabric
	}
	return client.Auto
}

// say tells which way the bytes went.
func (f transferFlags) say(what string, n int64, took time.Duration, s client.Stats) {
	fmt.Printf("%s: %d bytes in %.2f s (%.0f MiB/s), %d over the fabric (%s), %d by HTTP\n", what, n, took.Seconds(),
		float64(n)/(1<<20)/max(took.Seconds(), 1e-6), s.FabricBytes(), f.Fabric, s.HTTPBytes())
}

// objectURL is s3://bucket/key.
type objectURL struct{ bucket, key string }

// UnmarshalText reads s3://bucket/key.
func (u *objectURL) UnmarshalText(text []byte) error {
	rest, ok := strings.CutPrefix(string(text), "s3://")
	bucket, key, found := strings.Cut(rest, "/")
	if !ok || !found || bucket == "" || key == "" {
		return fmt.Errorf("%q is not s3://bucket/key", text)
	}
	u.bucket, u.key = bucket, key
	return nil
}

type putCommand struct {
	transferFlags
	File        string    `arg:"" type:"existingfile" help:"File to store."`
	Object      objectURL `arg:"" help:"s3://bucket/key."`
	ContentType string    `help:"Media type."`
	MakeBucket  bool      `help:"Make the bucket first, if it is not there."`
}

// Help gives examples.
func (*putCommand) Help() string {
	return "The bucket must exist, or --make-bucket be given. Example:\n\n    s3rdma put --endpoint http://host:9000 --fabric tcp FILE s3://bucket/key\n\n" +
		"Files of more than 64 MiB go in parts. The last line says how many bytes went over the fabric and how many by HTTP."
}

// Run stores the file: small ones in one request, others in parts.
func (p *putCommand) Run(ctx context.Context) (err error) {
	f, err := os.Open(p.File)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	c, err := p.client()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if p.MakeBucket {
		if err := c.CreateBucket(ctx, p.Object.bucket); err != nil {
			return err
		}
	}
	started := time.Now()
	o := client.PutOptions{ContentType: p.ContentType}
	if info.Size() <= partSize {
		err = p.putWhole(ctx, c, f, int(info.Size()), o)
	} else {
		err = p.putParts(ctx, c, f, info.Size(), o)
	}
	if err != nil {
		return fmt.Errorf("put %s: %w", p.File, err)
	}
	p.say("put", info.Size(), time.Since(started), c.Stats())
	return nil
}

func (p *putCommand) putWhole(ctx context.Context, c *client.Client, f *os.File, n int, o client.PutOptions) error {
	if n > 0 {
		o.Force = p.force() // an empty object has no bytes for a fabric
	}
	buf, err := c.Alloc(max(n, 1))
	if err != nil {
		return err
	}
	defer buf.Close()
	v := buf.View(0, n)
	if _, err := io.ReadFull(f, v.Bytes()); err != nil {
		return err
	}
	_, err = c.Put(ctx, p.Object.bucket, p.Object.key, v, o)
	return err
}

func (p *putCommand) putParts(ctx context.Context, c *client.Client, f *os.File, size int64, o client.PutOptions) error {
	u, err := c.CreateMultipartUpload(ctx, p.Object.bucket, p.Object.key, o)
	if err != nil {
		return err
	}
	// S3 takes at most 10000 parts.
	each := max(int64(partSize), (size+9999)/10000)
	var mu sync.Mutex
	var parts []client.Part
	err = eachPart(ctx, c, size, each, func(ctx context.Context, v client.View, at int64) error {
		if _, err := f.ReadAt(v.Bytes(), at); err != nil {
			return err
		}
		part, _, err := c.UploadPart(ctx, u, int(at/each)+1, v, client.PartOptions{Force: p.force()})
		mu.Lock()
		defer mu.Unlock()
		parts = append(parts, part)
		return err
	})
	if err == nil {
		slices.SortFunc(parts, func(a, b client.Part) int { return a.Number - b.Number })
		_, err = c.CompleteMultipartUpload(ctx, u, parts, client.CompleteOptions{})
	}
	if err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(err, c.AbortMultipartUpload(cleanup, u))
	}
	return nil
}

// eachPart calls move for each part of size bytes, a few at a time, each with memory
// of its own, and returns the first error.
func eachPart(ctx context.Context, c *client.Client, size, each int64, move func(ctx context.Context, v client.View, at int64) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	free := make(chan *client.Buffer, partsAtOnce)
	for range min(partsAtOnce, (size+each-1)/each) {
		buf, err := c.Alloc(int(min(each, size)))
		if err != nil {
			return err
		}
		defer buf.Close()
		free <- buf
	}
	var wg sync.WaitGroup
	for at := int64(0); at < size && ctx.Err() == nil; at += each {
		buf := <-free
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := move(ctx, buf.View(0, int(min(each, size-at))), at); err != nil {
				cancel(err)
			}
			free <- buf
		}()
	}
	wg.Wait()
	return context.Cause(ctx)
}

type getCommand struct {
	transferFlags
	Object objectURL `arg:"" help:"s3://bucket/key."`
	File   string    `arg:"" type:"path" help:"File to write."`
}

// Help gives an example.
func (*getCommand) Help() string {
	return "Example:\n\n    s3rdma get --endpoint http://host:9000 --fabric tcp s3://bucket/key FILE\n\n" +
		"The file appears under its name only when all of it is there. The last line says how many bytes went over the fabric and how many by HTTP."
}

// Run fetches the object by ranges of one version of it.
func (g *getCommand) Run(ctx context.Context) (err error) {
	c, err := g.client()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	started := time.Now()
	info, err := c.Head(ctx, g.Object.bucket, g.Object.key, client.HeadOptions{})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(g.File), ".s3rdma-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already if all went well
	defer f.Close()
	err = eachPart(ctx, c, info.Size, partSize, func(ctx context.Context, v client.View, at int64) error {
		o := client.GetOptions{IfMatch: info.ETag, Force: g.force()}
		if info.Size > partSize {
			o.Range = client.Range{Offset: at, Length: int64(v.Len())}
		}
		got, err := c.Get(ctx, g.Object.bucket, g.Object.key, v, o)
		if err != nil {
			return err
		}
		if got.N != v.Len() {
			return fmt.Errorf("%d bytes at offset %d, want %d", got.N, at, v.Len())
		}
		_, err = f.WriteAt(v.Bytes(), at)
		return err
	})
	if err != nil {
		return fmt.Errorf("get s3://%s/%s: %w", g.Object.bucket, g.Object.key, err)
	}
	if err := errors.Join(f.Chmod(0o644), f.Close(), os.Rename(f.Name(), g.File)); err != nil {
		return err
	}
	g.say("get", info.Size, time.Since(started), c.Stats())
	return nil
}

type statCommand struct {
	transferFlags
	Object objectURL `arg:"" help:"s3://bucket/key."`
}

// Run shows what a HEAD says, and whether the fabric can be used.
func (s *statCommand) Run(ctx context.Context) (err error) {
	c, err := s.client()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	info, err := c.Head(ctx, s.Object.bucket, s.Object.key, client.HeadOptions{})
	if err != nil {
		return err
	}
	fmt.Printf("size:          %d\netag:          %s\ncontent-type:  %s\nmodified:      %s\n", info.Size, info.ETag, info.ContentType, info.Modified.UTC().Format(time.RFC3339))
	if info.VersionID != "" {
		fmt.Println("version:       " + info.VersionID)
	}
	for _, sum := range info.Checksums {
		fmt.Println("checksum:      " + sum.String())
	}
	for name, value := range info.Metadata {
		fmt.Printf("metadata:      %s=%s\n", name, value)
	}
	if s.Fabric != "none" {
		state := "a session can be opened"
		if err := c.Connect(ctx); err != nil {
			state = err.Error()
		}
		fmt.Printf("fabric (%s):  %s; 0 bytes of the object went over it\n", s.Fabric, state)
	}
	return nil
}
