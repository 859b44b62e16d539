// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package nethttp_test

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/s3rdma/s3rdma/adapters/nethttp"
	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/plugin"
)

// memoryS3 is a small S3 server that knows nothing of descriptors: buckets are not
// kept, objects are in memory. It verifies the signature of every request, so that
// the tests show that a diverted request still bears the client's.
type memoryS3 struct {
	auth nethttp.Authenticator

	mu      sync.Mutex
	objects map[string]*object // by path
	uploads map[string]*upload // by id
	seen    []http.Header      // of GETs and PUTs of objects

	// direct has GETs put their bytes into staging memory, where there is one.
	direct atomic.Bool

	// before, if set, is called before an object request is served.
	before func(r *http.Request)
}

type object struct {
	data   []byte
	etag   string
	header http.Header
}

type upload struct {
	path   string
	header http.Header
	parts  map[int]*object
}

func newMemoryS3(auth nethttp.Authenticator) *memoryS3 {
	return &memoryS3{auth: auth, objects: map[string]*object{}, uploads: map[string]*upload{}}
}

func (s *memoryS3) object(path string) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[path]
}

func s3Error(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
}

func (s *memoryS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := s.auth.Authenticate(r); err != nil {
		s3Error(w, http.StatusForbidden, "AccessDenied")
		return
	}
	if s.before != nil {
		s.before(r)
	}
	q := r.URL.Query()
	_, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case key == "":
		w.WriteHeader(http.StatusOK)
	case r.Method == http.MethodPut:
		s.put(w, r, q.Get("uploadId"), q.Get("partNumber"))
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		s.get(w, r)
	case r.Method == http.MethodDelete && q.Get("uploadId") != "":
		s.mu.Lock()
		delete(s.uploads, q.Get("uploadId"))
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete:
		s.mu.Lock()
		delete(s.objects, r.URL.Path)
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPost && q.Has("uploads"):
		s.mu.Lock()
		id := "upload-" + strconv.Itoa(len(s.uploads)+1)
		s.uploads[id] = &upload{path: r.URL.Path, header: kept(r.Header), parts: map[int]*object{}}
		s.mu.Unlock()
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
	case r.Method == http.MethodPost && q.Has("uploadId"):
		s.complete(w, r, q.Get("uploadId"))
	default:
		s3Error(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

// kept are the headers that an object keeps.
func kept(h http.Header) http.Header {
	out := http.Header{}
	for name, values := range h {
		if strings.HasPrefix(name, "X-Amz-Meta-") || name == "Content-Type" ||
			strings.HasPrefix(name, "X-Amz-Checksum-Crc") || strings.HasPrefix(name, "X-Amz-Checksum-Sha") {
			out[name] = values
		}
	}
	return out
}

func (s *memoryS3) put(w http.ResponseWriter, r *http.Request, uploadID, part string) {
	data, err := io.ReadAll(r.Body)
	if err != nil || int64(len(data)) != r.ContentLength {
		s3Error(w, http.StatusBadRequest, "IncompleteBody")
		return
	}
	sum := md5.Sum(data)
	o := &object{data: data, etag: `"` + hex.EncodeToString(sum[:]) + `"`, header: kept(r.Header)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r.Header)
	if uploadID != "" {
		u := s.uploads[uploadID]
		n, err := strconv.Atoi(part)
		if u == nil || u.path != r.URL.Path || err != nil {
			s3Error(w, http.StatusNotFound, "NoSuchUpload")
			return
		}
		u.parts[n] = o
		w.Header().Set("ETag", o.etag)
		w.WriteHeader(http.StatusOK)
		return
	}
	old := s.objects[r.URL.Path]
	if m := r.Header.Get("If-Match"); m != "" && (old == nil || old.etag != m) || r.Header.Get("If-None-Match") == "*" && old != nil {
		s3Error(w, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	s.objects[r.URL.Path] = o
	w.Header().Set("ETag", o.etag)
	w.WriteHeader(http.StatusOK)
}

func (s *memoryS3) get(w http.ResponseWriter, r *http.Request) {
	o := s.object(r.URL.Path)
	if o == nil {
		s3Error(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	s.mu.Lock()
	s.seen = append(s.seen, r.Header)
	s.mu.Unlock()
	for name, values := range o.header {
		if !strings.HasPrefix(name, "X-Amz-Checksum-") || r.Header.Get("x-amz-checksum-mode") == "ENABLED" {
			w.Header()[name] = values
		}
	}
	w.Header().Set("ETag", o.etag)
	if sink, ok := plugin.SinkOf(r.Context()); ok && s.direct.Load() {
		w = sinkWriter{w, sink}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(o.data))
}

// sinkWriter puts a GET's bytes into staging memory itself, as servers do that read from
// drives.
type sinkWriter struct {
	http.ResponseWriter
	sink *plugin.Sink
}

func (w sinkWriter) Write(p []byte) (n int, err error) {
	for n < len(p) {
		room, err := w.sink.Next(1)
		if err != nil {
			return n, err
		}
		c := copy(room, p[n:])
		if err := w.sink.Commit(c); err != nil {
			return n, err
		}
		n += c
	}
	return n, nil
}

func (s *memoryS3) complete(w http.ResponseWriter, r *http.Request, id string) {
	var doc struct {
		Part []struct {
			PartNumber        int
			ETag              string
			ChecksumCRC64NVME string
		}
	}
	if err := xml.NewDecoder(r.Body).Decode(&doc); err != nil {
		s3Error(w, http.StatusBadRequest, "MalformedXML")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uploads[id]
	if u == nil {
		s3Error(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	o := &object{header: u.header}
	for _, p := range doc.Part {
		part := u.parts[p.PartNumber]
		if part == nil || part.etag != p.ETag || checksum.Of(checksum.CRC64NVME, part.data).Base64() != p.ChecksumCRC64NVME {
			s3Error(w, http.StatusBadRequest, "InvalidPart")
			return
		}
		o.data = append(o.data, part.data...)
	}
	if v := r.Header.Get("x-amz-checksum-crc64nvme"); v != "" {
		if checksum.Of(checksum.CRC64NVME, o.data).Base64() != v {
			// As S3 does when it has begun its answer already.
			s3Error(w, http.StatusOK, "BadDigest")
			return
		}
		o.header.Set("x-amz-checksum-crc64nvme", v)
	}
	o.etag = fmt.Sprintf(`"multi-%d"`, len(doc.Part))
	s.objects[u.path] = o
	delete(s.uploads, id)
	fmt.Fprintf(w, "<CompleteMultipartUploadResult><ETag>%s</ETag></CompleteMultipartUploadResult>", strings.ReplaceAll(o.etag, `"`, "&quot;"))
}
