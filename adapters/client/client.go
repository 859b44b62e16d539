// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/rdmaio"
)

// Credentials sign requests.
type Credentials struct {
	AccessKey, SecretKey string
	// SessionToken comes with temporary credentials, else it is empty.
	SessionToken string
}

// String shows the access key only.
func (c Credentials) String() string { return "credentials of " + c.AccessKey }

// GoString is String, so that %#v leaks nothing either.
func (c Credentials) GoString() string { return c.String() }

// StaticCredentials returns credentials that never change, for
// [Options.Credentials].
func StaticCredentials(accessKey, secretKey string) func(context.Context) (Credentials, error) {
	return func(context.Context) (Credentials, error) {
		return Credentials{AccessKey: accessKey, SecretKey: secretKey}, nil
	}
}

// Options configure a [Client]. Endpoint is required; every other zero value is
// useful.
type Options struct {
	// Endpoint is the server's URL: http or https, host and port, no path.
	Endpoint string

	// Region is the region that requests are signed for; "" is us-east-1.
	Region string

	// VirtualHost puts the bucket into the host name instead of the path.
	VirtualHost bool

	// Credentials are asked before every request, and may be called at once from
	// many goroutines. nil sends anonymous requests, which cannot use a fabric. When
	// the access key changes, the session is opened anew: it belongs to the key.
	Credentials func(ctx context.Context) (Credentials, error)

	// Target owns the memory that servers transfer with. From New on it is the
	// client's: nobody else may connect or close it. nil means plain HTTP only.
	Target rdmaio.Target

	// Transport sends the requests; nil is one of the client's own, for HTTP/1.1.
	// One given here must not send a request twice on its own, must not compress,
	// and is not closed by the client.
	Transport http.RoundTripper

	// TLS configures the client's own transport.
	TLS *tls.Config

	// Threshold is the size in bytes below which a PUT goes by HTTP. The default 0
	// sends all by the fabric: whoever holds registered memory wants it used, and a
	// descriptor costs the server a fixed time, about what it takes to copy some
	// tens of KiB. A GET knows no size beforehand and is not held to it. Empty
	// objects always go by HTTP.
	Threshold int64

	// Timeout is the time that a request may take on the fabric, plus the time for
	// its bytes at MinRate; 0 is 10 s, what the known clients allow. Only the
	// request's context bounds plain HTTP.
	Timeout time.Duration

	// MinRate is the slowest transfer that is still worth waiting for, in bytes a
	// second; 0 is 32 MiB/s.
	MinRate int64

	// ConnectTimeout bounds opening a session; 0 is 5 s.
	ConnectTimeout time.Duration

	// Reconnect is the time between two attempts to open a session. It doubles with
	// each failure up to a minute; 0 is 1 s. Meanwhile requests go by HTTP.
	Reconnect time.Duration

	// Unsupported is the time for which a server that answered the connect like
	// one that has never heard of it (HTTP 400, 404, 405, 501) is not asked again;
	// 0 is a minute.
	Unsupported time.Duration

	// Checksum is the algorithm of the checksum that every PUT carries, and of those
	// that are asked for over received bytes; 0 is CRC64NVME. XXH64 is refused: servers do not know it, so it would not keep one
	// that ignores the descriptor from storing an empty object.
	Checksum checksum.Algorithm

	// Policy is the least that servers are asked to do for the integrity of what goes
	// by the fabric. The zero value, region, asks for a checksum over exactly the bytes
	// that moved, and verifies it. A server that does not know what it is asked leaves
	// bytes unverified that S3's own checksums do not cover; the results tell. With
	// envelope, or both, the whole message is signed, its empty payload included.
	Policy checksum.Policy
}

// The defaults of Options.
const (
	defaultTimeout     = 10 * time.Second
	defaultMinRate     = 32 << 20
	defaultConnect     = 5 * time.Second
	defaultReconnect   = time.Second
	defaultUnsupported = time.Minute

	// rekeyTimeout bounds taking a buffer back. It has nothing to do with how long
	// the request may take: it starts when that is over.
	rekeyTimeout = 30 * time.Second
	// cleanupTimeout bounds disconnecting and aborting.
	cleanupTimeout = 5 * time.Second
)

// Client talks to one S3 endpoint. Its methods may be called from any number of
// goroutines.
type Client struct {
	opt       Options
	endpoint  *url.URL
	target    rdmaio.Target
	pairs     rdmaio.PairTarget // target, if it is one
	pairing   pairing
	transport http.RoundTripper
	own       *http.Transport // if transport is the client's
	signer    *v4.Signer
	session   session
	stats     counters
	now       func() time.Time

	// life ends when the client is closed, and with it what runs in the
	// background.
	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	quiet   sync.Cond // signalled when active drops to 0
	active  int       // calls under way
	closed  bool
	buffers map[*Buffer]struct{}
	done    chan struct{}
	err     error
}

// New makes a client. It connects to nothing yet. If it fails, the target is still
// the caller's.
func New(o Options) (*Client, error) {
	fail := func(format string, args ...any) (*Client, error) {
		return nil, fmt.Errorf("make an S3 client: %s: %w", fmt.Sprintf(format, args...), ErrInvalid)
	}
	u, err := url.Parse(o.Endpoint)
	if err != nil {
		// url.Error repeats the text, which may hold a password.
		return fail("Endpoint is no URL")
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fail("Endpoint is not http://HOST:PORT or https://HOST:PORT")
	case u.User != nil, u.RawQuery != "", u.Fragment != "", u.Path != "" && u.Path != "/":
		return fail("Endpoint has more than a scheme, a host and a port")
	case o.Target != nil && o.Credentials == nil:
		return fail("Target without Credentials: a descriptor must be signed")
	case o.Transport != nil && o.TLS != nil:
		return fail("TLS configures the client's own transport, and Transport is set")
	case o.Threshold < 0, o.Timeout < 0, o.MinRate < 0, o.ConnectTimeout < 0, o.Reconnect < 0, o.Unsupported < 0:
		return fail("Threshold, MinRate and times cannot be negative")
	}
	setDefault(&o.Region, "us-east-1")
	setDefault(&o.Timeout, defaultTimeout)
	setDefault(&o.MinRate, defaultMinRate)
	setDefault(&o.ConnectTimeout, defaultConnect)
	setDefault(&o.Reconnect, defaultReconnect)
	setDefault(&o.Unsupported, defaultUnsupported)
	setDefault(&o.Checksum, checksum.CRC64NVME)
	if _, err := o.Policy.MarshalText(); err != nil {
		return fail("Policy: %v", err)
	}
	if !o.Checksum.Valid() || o.Checksum == checksum.XXH64 {
		return fail("Checksum %v is none that S3 servers verify", o.Checksum)
	}

	c := &Client{
		opt:       o,
		endpoint:  &url.URL{Scheme: u.Scheme, Host: u.Host},
		target:    o.Target,
		transport: o.Transport,
		signer:    v4.NewSigner(func(s *v4.SignerOptions) { s.DisableURIPathEscaping = true }),
		now:       time.Now,
		buffers:   make(map[*Buffer]struct{}),
		done:      make(chan struct{}),
	}
	c.quiet.L = &c.mu
	c.life, c.end = context.WithCancel(context.Background())
	c.session.init(c)
	c.pairs, _ = o.Target.(rdmaio.PairTarget)
	if c.transport == nil {
		c.own = newTransport(o.TLS)
		c.transport = c.own
	}
	return c, nil
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// newTransport makes a transport that does not compress (the bytes must be the
// object's), keeps one idle connection for each of many concurrent requests, and
// speaks HTTP/1.1: there a cancelled request closes its connection, which is how
// the server learns of it.
func newTransport(t *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: defaultConnect, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSClientConfig:     t,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		TLSHandshakeTimeout: defaultConnect,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     30 * time.Second,
		ReadBufferSize:      64 << 10,
		WriteBufferSize:     64 << 10,
	}
}

// enter counts a call in, and makes ctx end with the client. leave must be called.
func (c *Client) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, fmt.Errorf("client: %w", ErrClosed)
	}
	c.active++
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.life, func() { cancel(fmt.Errorf("client: %w", ErrClosed)) })
	return ctx, func() {
		stop()
		cancel(nil)
		c.mu.Lock()
		c.active--
		if c.active == 0 {
			c.quiet.Broadcast()
		}
		c.mu.Unlock()
	}, nil
}

// Close cancels the calls under way and waits for them, ends the session (the
// server is told, and has 5 s to answer), closes the buffers that are still open,
// and the target. A second call waits for the first, and returns the same.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.done
		return c.err
	}
	c.closed = true
	c.end()
	for c.active > 0 {
		c.quiet.Wait()
	}
	open := make([]*Buffer, 0, len(c.buffers))
	for b := range c.buffers {
		open = append(open, b)
	}
	c.mu.Unlock()

	c.session.close()
	var errs []error
	for _, b := range open {
		errs = append(errs, b.Close())
	}
	if c.target != nil {
		errs = append(errs, c.target.Close())
	}
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
	c.err = errors.Join(errs...)
	close(c.done)
	return c.err
}

// budget bounds a request for n bytes on the fabric.
func (c *Client) budget(n int) time.Duration {
	return c.opt.Timeout + time.Duration(float64(n)/float64(c.opt.MinRate)*float64(time.Second))
}
