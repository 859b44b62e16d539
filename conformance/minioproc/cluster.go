// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package minioproc

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

const (
	defaultNodes      = 4
	defaultNodeDrives = 1
)

// ClusterOptions say how a cluster is run. Binary and Dir are needed.
type ClusterOptions struct {
	// Binary is the minio executable of all nodes.
	Binary string
	// Dir holds a folder for each node (node0...) with its drives and its log. It is
	// made if it is not there, and never removed by this package.
	Dir string
	// Nodes is the number of servers; 0 is 4.
	Nodes int
	// Drives is the number of drives of each node; 0 is 1.
	Drives int
	// Args follow "server" on all nodes, before the drives.
	Args []string
	// Env is added to the environment of all nodes, "NAME=value".
	Env []string
	// NodeEnv, if not nil, is what node i, from 0, has beside that: for what nodes on
	// one host cannot share, such as a socket. MinIO starts only if the MINIO_ variables
	// of all nodes are the same, but for those of the plugin.
	NodeEnv func(i int) []string
	// Root are the root user's keys; those that are zero are made at random, once for
	// each Dir.
	Root rawhttp.Credentials
	// Ready bounds the time until all nodes answer; 0 is 60 s.
	Ready time.Duration
}

// Cluster is one MinIO of several processes on this host, each with an address of its
// own (127.0.0.2 and up, which Linux has without being told) and drives of its own, in
// one erasure set or several. All methods may be called at once.
type Cluster struct {
	o         ClusterOptions
	addresses []string // of the nodes, host:port
	drives    []string // all, as MinIO's arguments

	mu    sync.Mutex
	nodes []*Server
}

// StartCluster runs the nodes and waits until each of them is ready. When ctx ends
// before, or a node does not start, nothing is left running; afterwards ctx has no
// meaning, and the caller must call Stop.
func StartCluster(ctx context.Context, o ClusterOptions) (*Cluster, error) {
	if o.Nodes == 0 {
		o.Nodes = defaultNodes
	}
	if o.Drives == 0 {
		o.Drives = defaultNodeDrives
	}
	if o.Ready == 0 {
		o.Ready = readyWithin
	}
	if o.Root == (rawhttp.Credentials{}) {
		var err error
		if o.Root, err = rootUser(o.Dir); err != nil {
			return nil, err
		}
	}
	return untilBound(func() (*Cluster, error) { return startCluster(ctx, o) })
}

func startCluster(ctx context.Context, o ClusterOptions) (*Cluster, error) {
	c := &Cluster{o: o, nodes: make([]*Server, o.Nodes)}
	ports := make(map[int]bool)
	for len(c.addresses) < o.Nodes {
		host := net.IPv4(127, 0, 0, byte(2+len(c.addresses))).String()
		port, err := freePort(host)
		if err != nil {
			return nil, err
		}
		// MinIO takes every loopback address for its own; what is another node's it
		// tells by the port.
		if ports[port] {
			continue
		}
		ports[port] = true
		c.addresses = append(c.addresses, net.JoinHostPort(host, strconv.Itoa(port)))
	}
	for i, address := range c.addresses {
		drives, err := makeDrives(c.nodeDir(i), o.Drives)
		if err != nil {
			return nil, err
		}
		for _, drive := range drives {
			c.drives = append(c.drives, "http://"+address+drive)
		}
	}
	for i := range c.nodes {
		var err error
		if c.nodes[i], err = c.launch(i); err != nil {
			c.Stop()
			return nil, err
		}
	}
	err := c.waitReady(ctx)
	if err == nil {
		err = c.Settle(ctx)
	}
	if err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// waitReady waits for all nodes. No node becomes ready without the others: the first
// that fails ends the waiting for them.
func (c *Cluster) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var once sync.Once
	var failed error
	for i, s := range c.nodes {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := s.waitReady(ctx, c.o.Ready); err != nil {
				once.Do(func() { failed = fmt.Errorf("node %d: %w", i, s.notStarted(err)) })
				cancel()
			}
		}()
	}
	wg.Wait()
	return failed
}

func (c *Cluster) nodeDir(i int) string {
	return filepath.Join(c.o.Dir, "node"+strconv.Itoa(i))
}

// launch starts node i.
func (c *Cluster) launch(i int) (*Server, error) {
	s, err := newServer(c.nodeDir(i), c.addresses[i], c.o.Root)
	if err != nil {
		return nil, err
	}
	args := append([]string{"--address", c.addresses[i]}, c.o.Args...)
	// In a container MinIO waits for names that are no loopback addresses, unless it
	// is told which one is its own.
	env := append([]string{"_MINIO_SERVER_LOCAL=" + c.addresses[i]}, c.o.Env...)
	if c.o.NodeEnv != nil {
		env = append(env, c.o.NodeEnv(i)...)
	}
	if err := s.launch(nil, c.o.Binary, append(args, c.drives...), env); err != nil {
		return nil, fmt.Errorf("node %d: %w", i, err)
	}
	return s, nil
}

// Nodes are the servers as they run now.
func (c *Cluster) Nodes() []*Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Server(nil), c.nodes...)
}

// Drives are the folders of node i's drives.
func (c *Cluster) Drives(i int) (drives []string) {
	for k := range c.o.Drives {
		drives = append(drives, filepath.Join(c.nodeDir(i), "drive"+strconv.Itoa(k+1)))
	}
	return drives
}

// Settle waits until each node that runs writes to the drives of all nodes that run:
// after a start it takes them up to 15 s to notice a drive that they have not found at
// first, and nothing that MinIO tells about itself shows it. So objects are stored in a
// bucket that is removed again.
func (c *Cluster) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.o.Ready)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i, s := range c.Nodes() {
		for s.running() {
			missed, err := c.probe(ctx, s)
			if err == nil && missed == "" {
				break
			}
			select {
			case <-ctx.Done():
				if err == nil {
					err = fmt.Errorf("it does not write to %s", missed)
				}
				return fmt.Errorf("node %d: not settled within %v: %w", i, c.o.Ready, err)
			case <-tick.C:
			}
		}
	}
	return nil
}

const (
	probeBucket = "minioproc-probe"
	probes      = 16 // so many that each erasure set gets one
)

// probe stores objects at a node, removes them, and returns a drive that got nothing,
// or "".
func (c *Cluster) probe(ctx context.Context, s *Server) (missed string, err error) {
	client, err := rawhttp.New(rawhttp.Config{Endpoint: s.Endpoint, Credentials: s.Root})
	if err != nil {
		return "", err
	}
	defer client.Close()
	do := func(method, path string, accept ...int) error {
		resp, err := client.Do(ctx, rawhttp.Request{Method: method, Path: path})
		if err == nil && !slices.Contains(accept, resp.Status) {
			err = fmt.Errorf("%s %s: %d %s", method, path, resp.Status, resp.Body)
		}
		return err
	}
	err = do("PUT", "/"+probeBucket, 200, 409)
	for i := 0; i < probes && err == nil; i++ {
		err = do("PUT", fmt.Sprintf("/%s/%d", probeBucket, i), 200)
	}
	if err != nil {
		return "", err
	}
	for i, other := range c.Nodes() {
		for _, drive := range c.Drives(i) {
			if got, _ := filepath.Glob(filepath.Join(drive, probeBucket, "*", "xl.meta")); len(got) == 0 && other.running() {
				missed = drive
			}
		}
	}
	for i := 0; i < probes && err == nil; i++ {
		err = do("DELETE", fmt.Sprintf("/%s/%d", probeBucket, i), 204)
	}
	if err == nil {
		err = do("DELETE", "/"+probeBucket, 204)
	}
	return missed, err
}

// running tells whether the process has not ended.
func (s *Server) running() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// Restart starts node i anew, at the same address and over the same drives, when it
// has been stopped or killed, and waits until it is ready and all nodes that
// run write to its drives, as Settle does.
func (c *Cluster) Restart(ctx context.Context, i int) (*Server, error) {
	c.Nodes()[i].Stop()
	s, err := c.launch(i)
	if err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx, c.o.Ready); err != nil {
		s.Stop()
		return nil, fmt.Errorf("node %d: %w", i, s.notStarted(err))
	}
	c.mu.Lock()
	c.nodes[i] = s
	c.mu.Unlock()
	return s, c.Settle(ctx)
}

// Stop ends all nodes and waits, as [Server.Stop] does.
func (c *Cluster) Stop() {
	var wg sync.WaitGroup
	for _, s := range c.Nodes() {
		if s != nil {
			wg.Add(1)
			go func() {
				defer wg.Done()
				s.Stop()
			}()
		}
	}
	wg.Wait()
}
