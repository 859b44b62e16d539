// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// network is the kind of socket: packets, in order, on a connection.
const network = "unixpacket"

// listener is a unix socket and its file.
type listener struct {
	path string
	l    *net.UnixListener
	dir  string      // a directory of our own to remove, or empty
	file os.FileInfo // the socket file that is ours

	once sync.Once
	err  error
}

// listen makes the socket at path, or in a fresh directory if path is empty.
func listen(path string, mode os.FileMode) (_ *listener, err error) {
	l := &listener{}
	if path == "" {
		if l.dir, err = os.MkdirTemp("", "s3rdma-shm-"); err != nil { // mode 0700
			return nil, fmt.Errorf("make a directory for the socket: %w", err)
		}
		path = filepath.Join(l.dir, "s")
	}
	defer func() {
		if err != nil && l.dir != "" {
			os.RemoveAll(l.dir)
		}
	}()
	if l.path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("Path: %w", err)
	}
	if len(l.path) > maxPath {
		return nil, fmt.Errorf("Path (or TMPDIR) makes a socket path of %d bytes, a unix socket's can have %d at most", len(l.path), maxPath)
	}
	unlock, err := lockDir(filepath.Dir(l.path))
	if err != nil {
		return nil, fmt.Errorf("Path: %w", err)
	}
	defer unlock()
	if err := removeStale(l.path); err != nil {
		return nil, fmt.Errorf("Path: %w", err)
	}
	if l.l, err = net.ListenUnix(network, &net.UnixAddr{Name: l.path, Net: network}); err != nil {
		return nil, fmt.Errorf("Path: %w", err)
	}
	// The file is removed by close, and only if it is still this one.
	l.l.SetUnlinkOnClose(false)
	err = os.Chmod(l.path, mode)
	if err == nil {
		l.file, err = os.Lstat(l.path)
	}
	if err != nil {
		l.l.Close()
		os.Remove(l.path)
		return nil, fmt.Errorf("Path: %w", err)
	}
	return l, nil
}

// lockDir keeps other servers from looking for a stale socket in dir at the same
// time: each would find it stale, and the second would remove the first one's.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		d.Close()
		return nil, fmt.Errorf("lock directory %s: %w", dir, err)
	}
	return func() { d.Close() }, nil
}

// removeStale removes a socket that a server left behind. One that lives, and a
// file that is no socket, is an error.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is no socket", path)
	}
	conn, err := net.DialUnix(network, nil, &net.UnixAddr{Name: path, Net: network})
	if err == nil {
		conn.Close()
		return fmt.Errorf("a server listens on %s", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%s exists, and whether a server listens there cannot be told: %w", path, err)
	}
	return os.Remove(path)
}

func (l *listener) accept() (*net.UnixConn, error) { return l.l.AcceptUnix() }

// close stops listening and removes the file. A second call returns what the first
// did.
func (l *listener) close() error {
	l.once.Do(func() {
		l.err = l.l.Close()
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.file) {
			os.Remove(l.path)
		}
		if l.dir != "" {
			os.RemoveAll(l.dir)
		}
	})
	return l.err
}
