// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package minioproc

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// ErrStart: the server ended, or was not ready in time. The error shows the end of
// its log.
var ErrStart = errors.New("minio did not start")

const (
	defaultDrives  = 4
	readyWithin    = 60 * time.Second
	stopWithin     = 15 * time.Second
	shownLog       = 3000 // bytes of the log's end in an error
	attemptsToBind = 5
)

// Options say how the server is run. Binary and Dir are needed.
type Options struct {
	// Binary is the minio executable.
	Binary string
	// Dir holds the drives (drive1...), the certificate, keys and the log. It is made if
	// it is not there, and never removed by this package: a second server can be
	// started on the same drives when the first one has stopped.
	Dir string
	// Drives is the number of drives; 0 is 4.
	Drives int
	// Args follow "server", before the drives, such as "--rdma=on".
	Args []string
	// Env is added to the environment, "NAME=value".
	Env []string
	// Host is the address that it is reached at; "" is 127.0.0.1.
	Host string
	// Launch starts the process, for example pinned to CPUs; nil is (*exec.Cmd).Start.
	Launch func(*exec.Cmd) error
	// AnyAddress lets the server be reached at all addresses of this host, not only at
	// Host.
	AnyAddress bool
	// TLS serves https with a certificate of its own making.
	TLS bool
	// KMS lets the server encrypt with a key that is made once and kept in Dir.
	KMS bool
	// Ready bounds the time until the server answers; 0 is 60 s.
	Ready time.Duration
}

// Server is a running MinIO. All methods may be called at once.
type Server struct {
	// Endpoint is http(s)://host:port; a cluster's nodes have an address each.
	Endpoint string
	// Root are the root user's keys, made at random once for each Dir.
	Root rawhttp.Credentials
	// TLS trusts the server's certificate; nil without TLS.
	TLS *tls.Config
	// CertFile is that certificate; "" without TLS.
	CertFile string
	// Log is the path of the file with all that the server printed.
	Log string

	dir    string
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended
	err    error         // how; valid then
	stop   sync.Once
}

// Start runs a server and waits until it is ready. When ctx ends before, or the
// server does not start, nothing is left running; afterwards ctx has no meaning,
// and the caller must call Stop.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Drives == 0 {
		o.Drives = defaultDrives
	}
	if o.Ready == 0 {
		o.Ready = readyWithin
	}
	if o.Host == "" {
		o.Host = loopback
	}
	return untilBound(func() (*Server, error) { return start(ctx, o) })
}

// untilBound calls start again while a port is the reason why it fails: one that was free
// when it was chosen may be taken when the server binds it.
func untilBound[T any](start func() (*T, error)) (*T, error) {
	var err error
	for range attemptsToBind {
		var s *T
		if s, err = start(); err == nil {
			return s, nil
		}
		if !portTaken(err) {
			break
		}
	}
	return nil, err
}

// portTaken tells whether a server has not started because of its port.
func portTaken(err error) bool {
	return strings.Contains(err.Error(), "address already in use") || strings.Contains(err.Error(), "port is already in use")
}

func start(ctx context.Context, o Options) (*Server, error) {
	port, err := freePort(loopback)
	if err != nil {
		return nil, err
	}
	root, err := rootUser(o.Dir)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(o.Host, strconv.Itoa(port))
	s, err := newServer(o.Dir, address, root)
	if err != nil {
		return nil, err
	}
	listen := address
	if o.AnyAddress {
		listen = net.JoinHostPort("", strconv.Itoa(port))
	}
	args := append([]string{"--address", listen}, o.Args...)
	var env []string
	if o.TLS {
		certs := filepath.Join(o.Dir, "certs")
		pool, err := makeCertificate(certs)
		if err != nil {
			return nil, fmt.Errorf("make a certificate: %w", err)
		}
		s.Endpoint = "https://" + address
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
		s.CertFile = filepath.Join(certs, certName)
		args = append(args, "--certs-dir", certs)
	}
	if o.KMS {
		key, err := keep(filepath.Join(o.Dir, "kms.key"), func() string {
			b := make([]byte, 32)
			rand.Read(b)
			return base64.StdEncoding.EncodeToString(b)
		})
		if err != nil {
			return nil, fmt.Errorf("make an encryption key: %w", err)
		}
		env = append(env, "MINIO_KMS_SECRET_KEY=test-key:"+key)
	}
	env = append(env, o.Env...)
	drives, err := makeDrives(o.Dir, o.Drives)
	if err != nil {
		return nil, err
	}
	if err := s.launch(o.Launch, o.Binary, append(args, drives...), env); err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx, o.Ready); err != nil {
		s.Stop()
		return nil, s.notStarted(err)
	}
	return s, nil
}

// loopback is where a single server listens, if nothing else is said.
const loopback = "127.0.0.1"

// rootUser is the root user of the servers over dir, which is made if need be.
func rootUser(dir string) (rawhttp.Credentials, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return rawhttp.Credentials{}, err
	}
	secret, err := keep(filepath.Join(dir, "root.key"), func() string { return randomHex(20) })
	if err != nil {
		return rawhttp.Credentials{}, fmt.Errorf("make the root user's key: %w", err)
	}
	return rawhttp.Credentials{AccessKey: "s3rdma-root", SecretKey: secret}, nil
}

// makeDrives makes n drives in dir, where there are none yet.
func makeDrives(dir string, n int) (drives []string, err error) {
	for i := range n {
		drive := filepath.Join(dir, "drive"+strconv.Itoa(i+1))
		if err := os.MkdirAll(drive, 0o755); err != nil {
			return nil, err
		}
		drives = append(drives, drive)
	}
	return drives, nil
}

// newServer is a server in dir that is to be launched.
func newServer(dir, address string, root rawhttp.Credentials) (*Server, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Server{
		Endpoint: "http://" + address,
		Root:     root,
		Log:      filepath.Join(dir, "minio.log"),
		dir:      dir,
		exited:   make(chan struct{}),
	}, nil
}

// launch starts the process, by start if that is not nil.
func (s *Server) launch(start func(*exec.Cmd) error, binary string, args, env []string) error {
	if start == nil {
		start = (*exec.Cmd).Start
	}
	binary, err := filepath.Abs(binary) // the child begins elsewhere
	if err != nil {
		return err
	}
	log, err := os.Create(s.Log)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	s.cmd = exec.Command(binary, append([]string{"server", "--quiet"}, args...)...)
	s.cmd.Env = append(os.Environ(), "MINIO_CI_CD=1", "MINIO_BROWSER=off", "MINIO_UPDATE=off",
		"MINIO_ROOT_USER="+s.Root.AccessKey, "MINIO_ROOT_PASSWORD="+s.Root.SecretKey)
	s.cmd.Env = append(s.cmd.Env, env...)
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.Dir = log, log, s.dir
	s.cmd.SysProcAttr = childAttributes()
	if err := start(s.cmd); err != nil {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.exited)
	}()
	return nil
}

// notStarted is ErrStart with the reason and the log's end.
func (s *Server) notStarted(err error) error {
	return fmt.Errorf("%w: %w; %s ends with:\n%s", ErrStart, err, s.Log, s.LogTail())
}

// waitReady polls the health endpoint, which answers 200 when S3 is served.
func (s *Server) waitReady(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	transport := &http.Transport{TLSClientConfig: s.TLS, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint+"/minio/health/cluster", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-s.exited:
			return fmt.Errorf("the process ended: %w", exitError(s.err))
		case <-ctx.Done():
			return fmt.Errorf("not ready within %v: %w", within, ctx.Err())
		case <-tick.C:
		}
	}
}

func exitError(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// Stop ends the server, by force if it takes longer than 15 s, and waits. Calls
// after the first do nothing but wait.
func (s *Server) Stop() {
	s.stop.Do(func() {
		s.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended
		select {
		case <-s.exited:
		case <-time.After(stopWithin):
			s.cmd.Process.Kill()
		}
	})
	<-s.exited
}

// Kill ends the server at once, as a crash would, and waits. Stop may follow.
func (s *Server) Kill() {
	s.cmd.Process.Kill() // fails only if it has ended
	<-s.exited
}

// Exited is closed when the process has ended, whoever ended it.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// PID is the process's id.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// LogTail is the end of the log.
func (s *Server) LogTail() string {
	b, err := os.ReadFile(s.Log)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(b[max(0, len(b)-shownLog):]))
}

// freePort finds a port of host that nobody listens on.
func freePort(host string) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// keep returns the secret in the file, made on first use: what one server encrypted
// with it the next one must read.
func keep(file string, make func() string) (string, error) {
	if b, err := os.ReadFile(file); err == nil {
		return string(b), nil
	}
	secret := make()
	return secret, os.WriteFile(file, []byte(secret), 0o600)
}

// poolOf trusts one certificate.
func poolOf(pem []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("no certificate in the file")
	}
	return pool, nil
}
