// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/s3rdma/s3rdma/checksum"
)

const unsignedPayload = "UNSIGNED-PAYLOAD"

// store is as much of S3 in memory as the suite touches: objects, versions, ranges,
// conditions, checksums, tags, copies, multipart uploads, listings. It knows nothing of
// RDMA.
type store struct {
	on func(name string) bool // which switches are on

	mu      sync.Mutex
	buckets map[string]*bucket
	uploads map[string]*upload
	serial  int
}

type bucket struct {
	objects   map[string][]*object // versions of a key, the newest last; never empty
	versioned bool
	open      bool // everybody may read and write
}

type object struct {
	data    []byte
	header  http.Header // what was sent and is kept
	etag    string
	tags    url.Values
	parts   []int // sizes, of a multipart upload
	stored  time.Time
	version string // "null" where the bucket keeps none
	deleted bool   // a delete marker
	sseC    string // MD5 of the customer's key
}

type upload struct {
	bucket, key string
	header      http.Header
	parts       map[int]*object
}

func newStore(on func(string) bool) *store {
	return &store{on: on, buckets: map[string]*bucket{}, uploads: map[string]*upload{}}
}

// writeError answers with an S3 error document.
func writeError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	var text bytes.Buffer
	xml.EscapeText(&text, []byte(message)) // a bytes.Buffer takes everything
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, text.String())
}

// serve answers a request of who's whose signature has been verified, with body in
// place of its own.
func (s *store) serve(w http.ResponseWriter, r *http.Request, who identity, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	b, exists := s.buckets[name]
	switch {
	case who.name == "" && !(exists && b.open && key != ""):
		writeError(w, 403, "AccessDenied", "nobody has signed")
	case name == "":
		io.WriteString(w, "<ListAllMyBucketsResult/>")
	case key == "" && r.Method == http.MethodPut && !exists:
		s.buckets[name] = &bucket{objects: map[string][]*object{}}
	case !exists:
		writeError(w, 404, "NoSuchBucket", "no such bucket")
	case key == "":
		s.serveBucket(w, r, name, b, body)
	default:
		s.serveObject(w, r, name, b, key, body)
	}
}

func (s *store) serveBucket(w http.ResponseWriter, r *http.Request, name string, b *bucket, body []byte) {
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodPut && q.Has("policy"):
		b.open = true
		w.WriteHeader(204)
	case r.Method == http.MethodPut && q.Has("versioning"):
		b.versioned = bytes.Contains(body, []byte("Enabled"))
	case r.Method == http.MethodDelete && len(b.objects) > 0:
		writeError(w, 409, "BucketNotEmpty", "there are objects in it")
	case r.Method == http.MethodDelete:
		delete(s.buckets, name)
		w.WriteHeader(204)
	case r.Method == http.MethodPost && q.Has("delete"):
		var list struct{ Object []struct{ Key string } }
		xml.Unmarshal(body, &list) // nothing is deleted of what cannot be read
		for _, o := range list.Object {
			s.remove(b, o.Key, "")
		}
		io.WriteString(w, "<DeleteResult/>")
	case r.Method == http.MethodGet && q.Has("uploads"):
		io.WriteString(w, "<ListMultipartUploadsResult>")
		for id, u := range s.uploads {
			if u.bucket == name {
				fmt.Fprintf(w, "<Upload><Key>%s</Key><UploadId>%s</UploadId></Upload>", escape(u.key), id)
			}
		}
		io.WriteString(w, "</ListMultipartUploadsResult>")
	case r.Method == http.MethodGet && q.Has("versions"):
		io.WriteString(w, "<ListVersionsResult>")
		for key, versions := range b.objects {
			for _, o := range versions {
				element := "Version"
				if o.deleted {
					element = "DeleteMarker"
				}
				fmt.Fprintf(w, "<%s><Key>%s</Key><VersionId>%s</VersionId><Size>%d</Size></%s>", element, escape(key), o.version, len(o.data), element)
			}
		}
		io.WriteString(w, "</ListVersionsResult>")
	case r.Method == http.MethodGet && !q.Has("location") && !q.Has("policy") && !q.Has("versioning"):
		io.WriteString(w, "<ListBucketResult>")
		for key := range b.objects {
			if o := b.current(key); strings.HasPrefix(key, q.Get("prefix")) && o != nil && !o.deleted {
				fmt.Fprintf(w, "<Contents><Key>%s</Key><Size>%d</Size></Contents>", escape(key), len(o.data))
			}
		}
		io.WriteString(w, "</ListBucketResult>")
	case r.Method == http.MethodGet:
		io.WriteString(w, "<Answer/>")
	}
}

func escape(s string) string {
	var b bytes.Buffer
	xml.EscapeText(&b, []byte(s))
	return b.String()
}

// current is the newest version, a delete marker too; nil if there is none.
func (b *bucket) current(key string) *object {
	if v := b.objects[key]; len(v) > 0 {
		return v[len(v)-1]
	}
	return nil
}

// find is the version that is asked for, "" the newest.
func (b *bucket) find(key, version string) *object {
	if version == "" {
		return b.current(key)
	}
	for _, o := range b.objects[key] {
		if o.version == version {
			return o
		}
	}
	return nil
}

// put makes o the newest version.
func (s *store) put(w http.ResponseWriter, b *bucket, key string, o *object) {
	if !b.versioned {
		o.version = "null"
		b.objects[key] = []*object{o}
		return
	}
	s.serial++
	o.version = "version-" + strconv.Itoa(s.serial)
	b.objects[key] = append(b.objects[key], o)
	w.Header().Set("X-Amz-Version-Id", o.version)
}

// remove deletes a version, or puts a delete marker where versions are kept.
func (s *store) remove(b *bucket, key, version string) {
	switch {
	case version != "":
		b.objects[key] = slices.DeleteFunc(b.objects[key], func(o *object) bool { return o.version == version })
	case b.versioned:
		s.serial++
		b.objects[key] = append(b.objects[key], &object{deleted: true, version: "version-" + strconv.Itoa(s.serial)})
	default:
		delete(b.objects, key)
	}
	if len(b.objects[key]) == 0 {
		delete(b.objects, key)
	}
}

// verify checks the declared checksums against data.
func (s *store) verify(h http.Header, data []byte) (code string, sums []checksum.Sum) {
	sums, err := checksum.FromHeader(h)
	if err != nil {
		return "InvalidDigest", nil
	}
	for _, sum := range sums {
		if checksum.Of(sum.Algorithm(), data) != sum {
			return "BadDigest", nil
		}
	}
	if hash := h.Get("X-Amz-Content-Sha256"); len(hash) == 64 && checksum.Of(checksum.SHA256, data).Hex() != hash {
		return "XAmzContentSHA256Mismatch", nil
	}
	return "", sums
}

// kept are the headers of a PUT that a GET repeats.
func kept(name string) bool {
	return slices.Contains([]string{"Content-Type", "Cache-Control", "Content-Disposition", "Content-Language", "X-Amz-Server-Side-Encryption"}, name) ||
		strings.HasPrefix(name, "X-Amz-Meta-") || strings.HasPrefix(name, "X-Amz-Checksum-") && name != "X-Amz-Checksum-Algorithm"
}

func newObject(h http.Header, data []byte) *object {
	sum := md5.Sum(data)
	o := &object{data: data, header: http.Header{}, etag: `"` + hex.EncodeToString(sum[:]) + `"`, stored: time.Now(),
		sseC: h.Get("X-Amz-Server-Side-Encryption-Customer-Key-Md5")}
	for name, values := range h {
		if kept(name) {
			o.header[name] = values
		}
	}
	o.tags, _ = url.ParseQuery(h.Get("X-Amz-Tagging"))
	return o
}

// isSubresource tells whether the query asks for something else than the object.
func isSubresource(q url.Values) bool {
	return q.Has("acl") || q.Has("attributes") || q.Has("retention") || q.Has("legal-hold") || q.Has("tagging")
}

func (s *store) serveObject(w http.ResponseWriter, r *http.Request, name string, b *bucket, key string, body []byte) {
	q := r.URL.Query()
	o := b.find(key, q.Get("versionId"))
	switch source := r.Header.Get("X-Amz-Copy-Source"); {
	case r.Method == http.MethodPut && source != "":
		s.serveCopy(w, b, key, source, q)
		return
	case q.Has("uploadId") || q.Has("uploads"):
		s.serveUpload(w, r, name, b, key, q, body)
		return
	case isSubresource(q) && !q.Has("tagging"):
		io.WriteString(w, "<Answer>")
		if o != nil && q.Has("attributes") {
			for _, alg := range checksum.Algorithms() {
				io.WriteString(w, "<Checksum>"+o.header.Get(alg.Header())+"</Checksum>")
			}
		}
		io.WriteString(w, "</Answer>")
		return
	case q.Has("tagging") && o != nil:
		serveTags(w, r, o, body)
		return
	}
	switch r.Method {
	case http.MethodDelete:
		s.remove(b, key, q.Get("versionId"))
		w.WriteHeader(204)
	case http.MethodPut:
		if exists := o != nil && !o.deleted; exists && r.Header.Get("If-None-Match") == "*" || exists && r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != o.etag {
			writeError(w, 412, "PreconditionFailed", "the condition does not hold")
			return
		}
		if code, _ := s.verify(r.Header, body); code != "" {
			writeError(w, 400, code, "the bytes are not those declared")
			return
		}
		o := newObject(r.Header, body)
		s.put(w, b, key, o)
		w.Header().Set("Etag", o.etag)
		if sse := o.header.Get("X-Amz-Server-Side-Encryption"); sse != "" {
			w.Header().Set("X-Amz-Server-Side-Encryption", sse)
		}
	case http.MethodGet, http.MethodHead:
		switch {
		case o == nil:
			writeError(w, 404, "NoSuchKey", "no such object")
		case o.deleted:
			w.Header().Set("X-Amz-Delete-Marker", "true")
			writeError(w, 404, "NoSuchKey", "the object is deleted")
		case o.sseC != r.Header.Get("X-Amz-Server-Side-Encryption-Customer-Key-Md5"):
			writeError(w, 400, "InvalidRequest", "that is not the object's key")
		default:
			s.serveContent(w, r, o, q)
		}
	}
}

func (s *store) serveCopy(w http.ResponseWriter, b *bucket, key, source string, q url.Values) {
	plain, _ := url.PathUnescape(source)
	from, name, _ := strings.Cut(strings.TrimPrefix(plain, "/"), "/")
	var o *object
	if src := s.buckets[from]; src != nil {
		o = src.current(name)
	}
	if o == nil {
		writeError(w, 404, "NoSuchKey", "no such object")
		return
	}
	c := *o
	if u := s.uploads[q.Get("uploadId")]; u != nil {
		n, _ := strconv.Atoi(q.Get("partNumber"))
		u.parts[n] = &c
	} else {
		s.put(w, b, key, &c)
	}
	io.WriteString(w, "<CopyResult/>")
}

func (s *store) serveContent(w http.ResponseWriter, r *http.Request, o *object, q url.Values) {
	h := w.Header()
	h.Set("Etag", o.etag)
	for name, values := range o.header {
		if !strings.HasPrefix(name, "X-Amz-Checksum-") || r.Header.Get("X-Amz-Checksum-Mode") != "" {
			h[name] = values
		}
	}
	if v := q.Get("response-content-type"); v != "" {
		h.Set("Content-Type", v)
	}
	if len(o.tags) > 0 {
		h.Set("X-Amz-Tagging-Count", strconv.Itoa(len(o.tags)))
	}
	if o.version != "null" {
		h.Set("X-Amz-Version-Id", o.version)
	}
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "binary/octet-stream")
	}
	r = r.Clone(r.Context())
	if n, err := strconv.Atoi(q.Get("partNumber")); err == nil {
		parts := o.parts
		if parts == nil {
			parts = []int{len(o.data)}
		}
		if n < 1 || n > len(parts) {
			writeError(w, 416, "InvalidPartNumber", "no such part")
			return
		}
		from := 0
		for _, p := range parts[:n-1] {
			from += p
		}
		h.Set("X-Amz-Mp-Parts-Count", strconv.Itoa(len(parts)))
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, from+parts[n-1]-1))
	}
	if strings.Contains(r.Header.Get("Range"), ",") && !s.on("get-multipart-ranges") {
		r.Header.Del("Range") // the whole object, as S3 does
	}
	http.ServeContent(w, r, "", o.stored, bytes.NewReader(o.data)) // ranges and conditions
}

func serveTags(w http.ResponseWriter, r *http.Request, o *object, body []byte) {
	switch r.Method {
	case http.MethodPut:
		var t struct {
			TagSet struct{ Tag []struct{ Key, Value string } }
		}
		if xml.Unmarshal(body, &t) != nil {
			writeError(w, 400, "MalformedXML", "no tags")
			return
		}
		o.tags = url.Values{}
		for _, tag := range t.TagSet.Tag {
			o.tags.Set(tag.Key, tag.Value)
		}
	case http.MethodGet:
		io.WriteString(w, "<Tagging><TagSet>")
		for k, v := range o.tags {
			fmt.Fprintf(w, "<Tag><Key>%s</Key><Value>%s</Value></Tag>", escape(k), escape(v[0]))
		}
		io.WriteString(w, "</TagSet></Tagging>")
	case http.MethodDelete:
		o.tags = nil
		w.WriteHeader(204)
	}
}

func (s *store) serveUpload(w http.ResponseWriter, r *http.Request, name string, b *bucket, key string, q url.Values, body []byte) {
	if q.Has("uploads") {
		s.serial++
		id := "upload-" + strconv.Itoa(s.serial)
		s.uploads[id] = &upload{bucket: name, key: key, header: r.Header.Clone(), parts: map[int]*object{}}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
		return
	}
	u := s.uploads[q.Get("uploadId")]
	if u == nil || u.key != key || u.bucket != name {
		writeError(w, 404, "NoSuchUpload", "no such upload")
		return
	}
	numbers := make([]int, 0, len(u.parts))
	for n := range u.parts {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	switch r.Method {
	case http.MethodPut:
		code, sums := s.verify(r.Header, body)
		if code != "" {
			writeError(w, 400, code, "the bytes are not those declared")
			return
		}
		n, err := strconv.Atoi(q.Get("partNumber"))
		if err != nil || n < 1 || n > 10_000 {
			writeError(w, 400, "InvalidArgument", "part numbers are 1 to 10000")
			return
		}
		u.parts[n] = newObject(r.Header, body)
		w.Header().Set("Etag", u.parts[n].etag)
		for _, sum := range sums {
			w.Header().Set(sum.Algorithm().Header(), sum.Base64())
		}
	case http.MethodGet:
		io.WriteString(w, "<ListPartsResult>")
		for _, n := range numbers {
			fmt.Fprintf(w, "<Part><PartNumber>%d</PartNumber><Size>%d</Size></Part>", n, len(u.parts[n].data))
		}
		io.WriteString(w, "</ListPartsResult>")
	case http.MethodPost:
		s.complete(w, b, key, u, body)
		delete(s.uploads, q.Get("uploadId"))
	case http.MethodDelete:
		delete(s.uploads, q.Get("uploadId"))
		w.WriteHeader(204)
	}
}

// complete puts together the parts that the body lists.
func (s *store) complete(w http.ResponseWriter, b *bucket, key string, u *upload, body []byte) {
	var list struct {
		Part []struct {
			PartNumber int
			ETag       string
		}
	}
	if xml.Unmarshal(body, &list) != nil {
		writeError(w, 400, "MalformedXML", "no list of parts")
		return
	}
	var data []byte
	var sizes []int
	for _, p := range list.Part {
		part := u.parts[p.PartNumber]
		if part == nil || strings.Trim(part.etag, `"`) != strings.Trim(p.ETag, `"`) {
			writeError(w, 400, "InvalidPart", "no such part")
			return
		}
		data = append(data, part.data...)
		sizes = append(sizes, len(part.data))
	}
	o := newObject(u.header, data)
	o.parts = sizes
	o.etag = fmt.Sprintf(`"%s-%d"`, strings.Trim(o.etag, `"`), len(sizes))
	s.put(w, b, key, o)
	io.WriteString(w, "<CompleteMultipartUploadResult/>")
}
