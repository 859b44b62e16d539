// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: AGPL-3.0-only

//go:build s3rdma

package cmd

import (
	"context"
	"net/http"
	"strings"

	"github.com/minio/mux"
	"github.com/minio/pkg/v3/env"

	"github.com/s3rdma/s3rdma/plugin"

	"github.com/minio/minio/internal/auth"
	"github.com/minio/minio/internal/logger"
	"github.com/minio/minio/internal/mcontext"
)

// rdmaSessionRoute makes POST /.s3rdma-NAME/connect reach the middlewares at
// all: mux runs them for requests only that match a route, and no route of
// MinIO's matches. It comes after every other POST route of a bucket and takes
// what is left; what is not the plugin's is answered as without it.
var rdmaSessionRoute = rejectedAPI{api: "rdmasession", methods: []string{http.MethodPost}}

// rdmaUnmatched answers what rdmaSessionRoute took without being the plugin's,
// as the router does for requests that match no route.
var rdmaUnmatched = collectAPIStats("methodnotallowed", httpTraceAll(methodNotAllowedHandler("S3")))

// rdmaTookRoute tells whether r matched rdmaSessionRoute and would have matched
// nothing without it.
func rdmaTookRoute(r *http.Request) bool {
	route := mux.CurrentRoute(r)
	if r.Method != http.MethodPost || route == nil {
		return false
	}
	if strings.HasPrefix(r.URL.Path, minioReservedBucketPath+SlashSeparator) {
		return false // MinIO's own: some of those have a bucket too
	}
	vars := mux.Vars(r)
	_, object := vars["object"]
	queries, _ := route.GetQueriesTemplates()
	return vars["bucket"] != "" && !object && len(queries) == 0 && !isRequestPostPolicySignatureV4(r)
}

// rdmaKey is the type of this file's context keys.
type rdmaKey int

const (
	rdmaHiddenKey rdmaKey = iota // http.Header: what rdmaHideMiddleware took away
	rdmaCallKey                  // *rdmaCall
	rdmaDivertKey                // *rdmaDiverted
)

// rdmaRedacted stands in traces, audit and logs where a descriptor was.
const rdmaRedacted = "*REDACTED*"

// rdmaHideMiddleware takes the values of RDMA headers out of the request's
// header, in place, before anything of MinIO's sees it: the tracer and the
// audit log copy the header at several places, also when a request is refused
// early. What follows finds the values in the context.
func rdmaHideMiddleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rdmaTookRoute(r) && !plugin.IsSessionPath(r.URL.Path) {
			rdmaUnmatched(w, r)
			return
		}
		var hidden http.Header
		for name, values := range r.Header {
			if plugin.IsControlHeader(name) {
				if hidden == nil {
					hidden = make(http.Header)
				}
				hidden[name] = values
				r.Header[name] = []string{rdmaRedacted}
			}
		}
		if hidden != nil {
			r = r.WithContext(context.WithValue(r.Context(), rdmaHiddenKey, hidden))
		}
		next.ServeHTTP(w, r)
	})
}

// rdmaCall is a request on its way through the plugin.
type rdmaCall struct {
	outer  *http.Request // as MinIO's middlewares see it, RDMA headers redacted
	api    string        // MinIO's name of the API
	cred   auth.Credentials
	status int // what MinIO's own handler answered, 0 if it was not asked
}

// rdmaBegin returns r as the client sent it, with the call in its context.
func rdmaBegin(r *http.Request, api string) *http.Request {
	call := &rdmaCall{outer: r, api: api}
	restored := r.WithContext(context.WithValue(r.Context(), rdmaCallKey, call))
	restored.Header = r.Header.Clone()
	hidden, _ := r.Context().Value(rdmaHiddenKey).(http.Header)
	for name, values := range hidden {
		restored.Header[name] = values
	}
	return restored
}

// rdmaCallOf returns the call that r belongs to. Only requests from rdmaBegin,
// and what was derived from them, get where it is asked for.
func rdmaCallOf(r *http.Request) *rdmaCall {
	return r.Context().Value(rdmaCallKey).(*rdmaCall)
}

// rdmaSessionAPIs are the names of the plugin's own calls, by the end of their path.
var rdmaSessionAPIs = map[string]string{
	"connect": "RDMAConnect", "disconnect": "RDMADisconnect",
	"prepare": "RDMAPrepare", "ready": "RDMAReady", "cancel": "RDMACancel",
}

// rdmaSessionMiddleware answers connects and disconnects, and the calls of hipobj-rc-v2,
// which lead to MinIO's handlers.
func rdmaSessionMiddleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !plugin.IsSessionPath(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		api, ok := rdmaSessionAPIs[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]
		if !ok {
			api = "RDMAConnect"
		}
		if tc, ok := r.Context().Value(mcontext.ContextTraceKey).(*mcontext.TraceCtxt); ok {
			tc.FuncName = "s3." + api
		}
		handler := rdmaCurrent.Load().plugin.Handler(rdmaServer{}, rdmaInner(next))
		restored := rdmaBegin(r, api)
		call := rdmaCallOf(restored)
		collectAPIStats(strings.ToLower(api), func(w http.ResponseWriter, _ *http.Request) {
			handler.ServeHTTP(w, restored)
		})(w, r)
		// The answer is on its way; net/http has copied its header. What is
		// recorded of it must not show the session.
		for name := range w.Header() {
			if plugin.IsControlHeader(name) {
				w.Header()[name] = []string{rdmaRedacted}
			}
		}
		call.audit(w)
	})
}

// rdmaObjectMiddleware leads requests with a descriptor through the plugin.
// Every other request goes its way.
func rdmaObjectMiddleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		current := rdmaCurrent.Load()
		if r.URL.Path == rdmaMetricsPath && r.Method == http.MethodGet && current.metrics != nil {
			current.metrics.ServeHTTP(w, r)
			return
		}
		if r.Context().Value(rdmaHiddenKey) == nil {
			var inQuery http.Header
			if r.URL.RawQuery != "" && rdmaClassify(r) != plugin.OpOther {
				inQuery = rdmaFromQuery(r)
			}
			if inQuery == nil {
				next.ServeHTTP(w, r)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), rdmaHiddenKey, inQuery))
		}
		restored := rdmaBegin(r, rdmaAPIName(rdmaClassify(r)))
		current.plugin.Handler(rdmaServer{}, rdmaInner(next)).ServeHTTP(w, restored)
	})
}

// rdmaFromQuery finds descriptors among the query's parameters, where presigners
// put the x-amz headers of a request, and redacts them there. They are not served:
// the plugin refuses them, as they are not among the signed headers. But a PUT
// must not pass as one of an empty object.
func rdmaFromQuery(r *http.Request) http.Header {
	var found http.Header
	for name, values := range r.Form {
		if name = http.CanonicalHeaderKey(name); plugin.IsControlHeader(name) {
			if found == nil {
				found = make(http.Header)
			}
			found[name] = values
		}
	}
	if found != nil {
		query := r.URL.Query()
		for name := range query {
			if plugin.IsControlHeader(http.CanonicalHeaderKey(name)) {
				query.Set(name, rdmaRedacted)
			}
		}
		r.URL.RawQuery = query.Encode() // in place: the tracer has the same URL
	}
	return found
}

// rdmaInner is the handler behind the plugin: MinIO's own, for the request with
// a diverted body, or for a request on which a descriptor has no effect.
func rdmaInner(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d, ok := r.Context().Value(rdmaDivertKey).(*rdmaDiverted); ok {
			d.serve(w, r)
			return
		}
		stripped, ok := rdmaStrip(r)
		if !ok {
			// The signature is wrong. It is so with the redacted values too,
			// and MinIO says so in its own words.
			stripped = rdmaCallOf(r).outer
		}
		next.ServeHTTP(w, stripped)
	})
}

// audit writes the audit entry for an answer that is not MinIO's own handler's.
func (c *rdmaCall) audit(w http.ResponseWriter) {
	ctx := newContext(c.outer, w, c.api)
	logger.GetReqInfo(ctx).Cred = c.cred
	logger.AuditLog(ctx, w, c.outer, mustGetClaimsFromToken(c.outer))
}

// rdmaMetricsPath is a path below MinIO's metrics/v3, so that its checks let it
// pass; MinIO itself has no collector of that name.
const rdmaMetricsPath = minioReservedBucketPath + metricsV3Path + "/rdma"

// rdmaMetricsHandler puts MinIO's own authentication for metrics before h.
func rdmaMetricsHandler(h http.Handler) http.Handler {
	traced := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tc, ok := r.Context().Value(mcontext.ContextTraceKey).(*mcontext.TraceCtxt); ok {
			tc.FuncName = "handler.MetricsRDMA"
			tc.ResponseRecorder.LogErrBody = true
		}
		h.ServeHTTP(w, r)
	})
	if strings.EqualFold(env.Get(EnvPrometheusAuthType, string(prometheusJWT)), string(prometheusPublic)) {
		return NoAuthMiddleware(traced)
	}
	return AuthMiddleware(traced)
}
