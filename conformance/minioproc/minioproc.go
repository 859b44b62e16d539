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
	// AnyAddress lets the server be reached at all addresses of this host, not only at
	// 127.0.0.1.
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
	// Endpoint is http(s)://127.0.0.1:port.
	Endpoint string
	// Root are the root user's keys, made at random once for each Dir.
	Root rawhttp.Credentials
	// TLS trusts the server's certificate; nil without TLS.
	TLS *tls.Config
	// CertFile is that certificate; "" without TLS.
	CertFile string
	// Log is the path of the file with all that the server printed.
	Log string

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
	var err error
	// A port that is free now may be taken when the server binds it.
	for range attemptsToBind {
		var s *Server
		s, err = start(ctx, o)
		if err == nil {
			return s, nil
		}
		if !strings.Contains(err.Error(), "address already in use") && !strings.Contains(err.Error(), "port is already in use") {
			break
		}
	}
	return nil, err
}

func start(ctx context.Context, o Options) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	secret, err := keep(filepath.Join(o.Dir, "root.key"), func() string { return randomHex(20) })
	if err != nil {
		return nil, fmt.Errorf("make the root user's key: %w", err)
	}
	s := &Server{
		Root:   rawhttp.Credentials{AccessKey: "s3rdma-root", SecretKey: secret},
		Log:    filepath.Join(o.Dir, "minio.log"),
		exited: make(chan struct{}),
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	listen := address
	if o.AnyAddress {
		listen = net.JoinHostPort("", strconv.Itoa(port))
	}
	args := []string{"server", "--quiet", "--address", listen}
	args = append(args, o.Args...)
	env := append(os.Environ(), "MINIO_CI_CD=1", "MINIO_BROWSER=off", "MINIO_UPDATE=off",
		"MINIO_ROOT_USER="+s.Root.AccessKey, "MINIO_ROOT_PASSWORD="+s.Root.SecretKey)
	s.Endpoint = "http://" + address
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
	for i := range o.Drives {
		drive := filepath.Join(o.Dir, "drive"+strconv.Itoa(i+1))
		if err := os.MkdirAll(drive, 0o755); err != nil {
			return nil, err
		}
		args = append(args, drive)
	}
	log, err := os.Create(s.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own descriptor

	s.cmd = exec.Command(o.Binary, args...)
	s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr, s.cmd.Dir = env, log, log, o.Dir
	s.cmd.SysProcAttr = childAttributes()
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.exited)
	}()
	if err := s.waitReady(ctx, o.Ready); err != nil {
		s.Stop()
		return nil, fmt.Errorf("%w: %w; %s ends with:\n%s", ErrStart, err, s.Log, s.LogTail())
	}
	return s, nil
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

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
