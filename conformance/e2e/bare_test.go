// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/s3rdma/s3rdma/conformance"
)

// ofRDMACore matches the names of rdma-core's libraries.
var ofRDMACore = regexp.MustCompile(`lib(ibverbs|mlx5|rdmacm)[^/]*$`)

// bareRoot makes a file system with the binary and what its dynamic linker needs to start
// it, and nothing else: no rdma-core.
func bareRoot(t *testing.T, binary string) string {
	t.Helper()
	root := t.TempDir()
	files := []string{binary}
	out, err := exec.Command("ldd", binary).CombinedOutput()
	if err == nil {
		files = append(files, regexp.MustCompile(`/\S+`).FindAllString(string(out), -1)...)
	} else if !strings.Contains(string(out), "not a dynamic executable") {
		t.Fatalf("ldd %s: %v\n%s", binary, err, out)
	}
	for _, f := range files {
		f = strings.TrimSuffix(f, ":")
		to := filepath.Join(root, f)
		if f == binary {
			to = filepath.Join(root, "minio")
		} else if ofRDMACore.MatchString(f) {
			t.Fatalf("the binary is linked against %s: it cannot start without", f)
		}
		if err := copyFile(to, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"dev", "tmp", "data1", "data2", "data3", "data4"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	// MinIO asks for mount points on its drives; to mount a real /proc takes more rights
	// than a container may have.
	if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/mounts"), []byte("rootfs / rootfs rw 0 0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

func copyFile(to, from string) (err error) {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// TestWithoutRDMACore runs the fork's binary where no library of rdma-core is: it serves,
// and says what is wrong when it is asked for verbs.
func TestWithoutRDMACore(t *testing.T) {
	fork := binary(t, "S3RDMA_FORK")
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: only root can give a process another root directory")
	}
	root := bareRoot(t, fork)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const user, password = "bare-root", "bare-root-secret"
	address := l.Addr().String()
	l.Close()
	run := func(ctx context.Context, out io.Writer, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "/minio", append(append([]string{"server", "--quiet", "--address", address, "--rdma=on"}, args...),
			"/data1", "/data2", "/data3", "/data4")...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Pdeathsig: syscall.SIGKILL}
		cmd.Dir = "/"
		cmd.Env = []string{"HOME=/tmp", "MINIO_CI_CD=1", "MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_ROOT_USER=" + user, "MINIO_ROOT_PASSWORD=" + password}
		cmd.Stdout, cmd.Stderr = out, out
		return cmd
	}

	t.Run("serves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		log, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd := run(ctx, log, "--rdma-fabric=shm,tcp", "--rdma-staging-size=16MiB")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			cmd.Wait()
			close(ended)
		}()
		ready := func() bool {
			c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
			resp, err := c.Get("http://" + address + "/minio/health/cluster")
			if err == nil {
				resp.Body.Close()
			}
			return err == nil && resp.StatusCode == http.StatusOK
		}
		end := time.After(soon)
		for !ready() {
			select {
			case <-ended:
			case <-end:
			case <-time.After(50 * time.Millisecond):
				continue
			}
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("the server does not start:\n%s", text)
		}
		report, err := conformance.Run(ctx, conformance.Options{Endpoint: "http://" + address, AccessKey: user, SecretKey: password,
			Fabric: "tcp", Select: "put/size/65537,get/size/65537"})
		if err != nil || report.Passed != 2 {
			t.Errorf("a PUT and a GET over tcp: %s %v", report.Summary(), err)
		}
		cancel()
		<-ended
	})

	t.Run("verbs", func(t *testing.T) {
		var out strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		err := run(ctx, &out, "--rdma-fabric=verbs").Run()
		if err == nil || ctx.Err() != nil {
			t.Fatalf("it runs, or hangs: %v\n%s", err, out.String())
		}
		for _, want := range []string{"--rdma-fabric", "MINIO_RDMA_FABRIC", "libibverbs", "apt install"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the error does not say %q:\n%s", want, out.String())
			}
		}
		if strings.Contains(out.String(), "goroutine ") {
			t.Errorf("it crashed:\n%s", out.String())
		}
	})
}
