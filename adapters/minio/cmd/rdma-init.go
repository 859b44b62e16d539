// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

//go:build s3rdma

package cmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/cli"
	"github.com/minio/mux"
	"github.com/minio/pkg/v3/env"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/s3rdma/s3rdma/plugin"
	"github.com/s3rdma/s3rdma/rdmaio"

	"github.com/minio/minio/internal/logger"
)

// rdmaEnvPrefix begins the names of the plugin's environment variables.
const rdmaEnvPrefix = "MINIO_"

// rdmaRuntime is the plugin as this server runs it.
type rdmaRuntime struct {
	plugin  *plugin.Plugin
	metrics http.Handler // nil until the server has started
	etag    plugin.ETagPolicy
}

// rdmaCurrent is the plugin that requests meet. It is switched off (and so
// declines) until the server command has read its settings.
var rdmaCurrent atomic.Pointer[rdmaRuntime]

// init hooks the plugin in. It starts nothing and touches no device: other
// commands than server run it too.
func init() {
	off, err := plugin.New(plugin.Config{})
	if err != nil {
		panic(fmt.Sprintf("rdma: a plugin that is switched off cannot be made: %v", err))
	}
	rdmaCurrent.Store(&rdmaRuntime{plugin: off})

	for _, s := range plugin.SettingsTable() {
		name := s.Env(rdmaEnvPrefix)
		serverCmd.Flags = append(serverCmd.Flags, cli.StringFlag{
			Name:   s.Name,
			Value:  s.Default,
			Usage:  s.Usage,
			EnvVar: name,
		})
		// The nodes of a cluster may differ in these: addresses, devices.
		skipEnvs[name] = struct{}{}
	}

	run, ok := serverCmd.Action.(func(*cli.Context))
	if !ok {
		panic(fmt.Sprintf("rdma: serverCmd.Action is a %T, this MinIO is not known", serverCmd.Action))
	}
	serverCmd.Action = func(c *cli.Context) {
		rdmaStart(c)
		run(c)
	}

	globalMiddlewares = rdmaMiddlewares(globalMiddlewares)
	rejectedBucketAPIs = append(rejectedBucketAPIs, rdmaSessionRoute)
}

// rdmaMiddlewares adds three to MinIO's: around all of them the one that hides
// descriptors from traces, audit and logs; before the validity check, which
// knows bucket names only, the one for the session endpoints; innermost the one
// for object requests, when the route is known and all checks have been passed.
func rdmaMiddlewares(list []mux.MiddlewareFunc) []mux.MiddlewareFunc {
	name := func(f mux.MiddlewareFunc) string {
		return runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
	}
	all := []mux.MiddlewareFunc{rdmaHideMiddleware}
	placed := false
	for _, m := range list {
		if strings.HasSuffix(name(m), ".setRequestValidityMiddleware") {
			all = append(all, rdmaSessionMiddleware)
			placed = true
		}
		all = append(all, m)
	}
	if !placed {
		panic("rdma: setRequestValidityMiddleware is not among globalMiddlewares, this MinIO is not known")
	}
	return append(all, rdmaObjectMiddleware)
}

// rdmaStart reads the settings and starts what they ask for. A setting that
// cannot work ends the process, with the setting's name.
func rdmaStart(c *cli.Context) {
	// MINIO_CONFIG_ENV_FILE may hold some of ours. MinIO reads it only inside
	// of serverMain; to read it twice does no harm.
	loadEnvVarsFromFiles()
	names := make(map[string]string)
	for _, s := range plugin.SettingsTable() {
		names[s.Name] = s.Env(rdmaEnvPrefix)
	}
	settings, err := plugin.ParseSettings(func(name string) string {
		if c.IsSet(name) {
			return c.String(name)
		}
		return env.Get(names[name], "")
	})
	if err != nil {
		logger.Fatal(rdmaSettingHint(err, names), "Invalid RDMA setting")
	}
	metrics := plugin.NewMetrics()
	p, err := settings.Open(plugin.Tee(metrics.Listener(), plugin.EventListener{RequestDone: rdmaLogFailure}))
	if err != nil {
		logger.Fatal(rdmaSettingHint(err, names), "Unable to start RDMA")
	}
	metrics.Watch(p)
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	rdmaCurrent.Store(&rdmaRuntime{
		plugin:  p,
		etag:    settings.ETag,
		metrics: rdmaMetricsHandler(promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry})),
	})
	if p.Enabled() {
		logger.Info("S3 over RDMA is on: %s", strings.Join(settings.Fabrics, ", "))
	}
	// MinIO calls this at its end, before it stops listening, exits or starts anew.
	cancel := cancelGlobalContext
	cancelGlobalContext = func() {
		cancel()
		rdmaClose(p)
	}
}

// rdmaCloseLimit bounds how long a handler that hangs, on a drive perhaps, may hold
// up the end of the process.
const rdmaCloseLimit = 10 * time.Second

// rdmaClose closes the plugin: when it returns no byte can move any more and the
// sockets are gone, or the limit is reached.
func rdmaClose(p *plugin.Plugin) {
	done := make(chan error, 1)
	go func() { done <- p.Close() }()
	select {
	case err := <-done:
		shutdownLogIf(context.Background(), err)
	case <-time.After(rdmaCloseLimit):
		shutdownLogIf(context.Background(), fmt.Errorf("RDMA requests have not ended within %s", rdmaCloseLimit))
	}
}

// rdmaSettingHint says of every setting in err how it is set here.
func rdmaSettingHint(err error, names map[string]string) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, rdmaSettingHint(e, names))
		}
		return errors.Join(all...)
	}
	var s *plugin.SettingError
	if errors.As(err, &s) {
		return fmt.Errorf("--%s=%q (environment variable %s): %w", s.Name, s.Value, names[s.Name], s.Err)
	}
	return err
}

// rdmaLogFailure logs transfers that broke on this side. What clients do, and they
// can do it as often as they like, is in traces and metrics.
func rdmaLogFailure(i plugin.RequestInfo) {
	if i.Outcome == plugin.OutcomeFailed && i.Err != nil && !rdmaClientsFault(i.Err) {
		internalLogOnceIf(GlobalContext, fmt.Errorf("%s over %s failed: %w", i.Op, i.Transport, i.Err), "rdma-"+i.Transport)
	}
}

func rdmaClientsFault(err error) bool {
	for _, kind := range []error{rdmaio.ErrPeerGone, rdmaio.ErrStaleKey, rdmaio.ErrOutOfBounds, rdmaio.ErrNoSession, context.Canceled} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
