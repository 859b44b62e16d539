// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/shm"
	"github.com/s3rdma/s3rdma/rdmaio/staging"
	"github.com/s3rdma/s3rdma/rdmaio/tcp"
)

// The two identities, both of which may do everything.
const (
	AccessKey       = "first"
	SecretKey       = "secret-of-the-first"
	SecondAccessKey = "second"
	SecondSecretKey = "secret-of-the-second"
)

// ErrSwitch is the error for a switch that does not exist; it names it.
var ErrSwitch = errors.New("no such switch")

// Options say how a server is broken. The zero value is correct.
type Options struct {
	// Broken are names of Switches.
	Broken []string
	// Off switches RDMA off: there is no fabric, and descriptors are declined.
	Off bool
	// Certificate, if not nil, serves https.
	Certificate *tls.Certificate
	// Address to listen on, "" is 127.0.0.1 and a free port.
	Address string
}

// Server is a running server.
type Server struct {
	// Endpoint is http(s)://host:port.
	Endpoint string

	secrets map[string]string
	broken  []string
	off     bool
	store   *store
	fabrics map[string]rdmaio.Fabric // by name
	pool    *staging.Pool            // nil if off
	http    *http.Server
	served  chan struct{}  // closed when the listener's goroutine has ended
	late    sync.WaitGroup // what goes on after an answer
	failed  atomic.Int64   // transfers
}

// Start serves until Close.
func Start(o Options) (*Server, error) {
	for _, name := range o.Broken {
		if !slices.ContainsFunc(switches, func(s Switch) bool { return s.Name == name }) {
			return nil, fmt.Errorf("%w: %q", ErrSwitch, name)
		}
	}
	s := &Server{secrets: map[string]string{AccessKey: SecretKey, SecondAccessKey: SecondSecretKey},
		broken: o.Broken, off: o.Off, fabrics: map[string]rdmaio.Fabric{}, served: make(chan struct{})}
	s.store = newStore(s.on)
	if err := s.listen(o); err != nil {
		s.closeFabrics() // what was opened before the error
		return nil, err
	}
	return s, nil
}

func (s *Server) listen(o Options) error {
	if !o.Off {
		if err := s.openFabrics(); err != nil {
			return err
		}
	}
	address := o.Address
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	s.Endpoint = "http://" + l.Addr().String()
	if o.Certificate != nil {
		s.Endpoint = "https://" + l.Addr().String()
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*o.Certificate}, MinVersion: tls.VersionTLS12})
	}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.served)
		s.http.Serve(l) // ends by Close
	}()
	return nil
}

func (s *Server) openFabrics() error {
	overTCP, err := tcp.New(tcp.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		return fmt.Errorf("open tcp: %w", err)
	}
	s.fabrics["tcp"] = overTCP
	overSHM, err := shm.New(shm.Options{})
	if err != nil {
		return fmt.Errorf("open shm: %w", err)
	}
	s.fabrics["shm"] = overSHM
	s.pool, err = staging.New(staging.Options{Size: 64 << 20, MaxPerLease: 1, MaxPerCaller: 1, HugePages: staging.HugePagesOff}, overTCP, overSHM)
	if err != nil {
		return fmt.Errorf("make staging memory: %w", err)
	}
	return nil
}

// Close ends the server, and waits until no byte moves any more. The objects are gone.
func (s *Server) Close() error {
	err := s.http.Close()
	<-s.served
	s.late.Wait()
	return errors.Join(err, s.closeFabrics())
}

func (s *Server) closeFabrics() error {
	var errs []error
	if s.pool != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		errs = append(errs, s.pool.Close(ctx)) // first, for its memory is registered
	}
	for _, f := range s.fabrics {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Leftovers are what clients have left behind: buckets, unfinished uploads and
// sessions.
func (s *Server) Leftovers() (buckets, uploads, sessions int) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for _, f := range s.fabrics {
		sessions += f.(interface{ Sessions() int }).Sessions()
	}
	return len(s.store.buckets), len(s.store.uploads), sessions
}

// on tells whether a switch is.
func (s *Server) on(name string) bool { return slices.Contains(s.broken, name) }

// peerOf is the address of the HTTP connection's other end.
func peerOf(r *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap()
}

// localOf is this end's.
func localOf(r *http.Request) netip.Addr {
	if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
