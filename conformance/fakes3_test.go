// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
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

// fakeS3 is as much of S3 in memory as the suite touches: signatures, objects,
// ranges, conditions, checksums, tags, copies, multipart uploads, listings. It
// knows nothing of RDMA; fakeRDMA stands in front of it.
type fakeS3 struct {
	secrets map[string]string // by access key

	mu      sync.Mutex
	buckets map[string]map[string]*fakeObject
	open    map[string]bool // buckets that everybody may use
	uploads map[string]*fakeUpload
	serial  int
}

type fakeObject struct {
	data   []byte
	header http.Header // what was sent and is kept
	etag   string
	tags   url.Values
	parts  []int
	stored time.Time
}

type fakeUpload struct {
	bucket, key string
	header      http.Header
	parts       map[int]*fakeObject
}

func newFakeS3(secrets map[string]string) *fakeS3 {
	return &fakeS3{secrets: secrets, buckets: map[string]map[string]*fakeObject{}, open: map[string]bool{}, uploads: map[string]*fakeUpload{}}
}

// fakeIdentity is who sent a request, and which headers the signature covers.
type fakeIdentity struct {
	name   string // "" is anonymous
	signed []string
}

func fakeError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, message)
}

// authenticate verifies a Signature V4 in the header or in the query.
func (s *fakeS3) authenticate(r *http.Request) (fakeIdentity, bool) {
	q := r.URL.Query()
	var credential, names, signature string
	presigned := q.Has("X-Amz-Signature")
	switch auth := r.Header.Get("Authorization"); {
	case presigned:
		credential, names, signature = q.Get("X-Amz-Credential"), q.Get("X-Amz-SignedHeaders"), q.Get("X-Amz-Signature")
		q.Del("X-Amz-Signature")
	case auth == "":
		return fakeIdentity{}, true
	default:
		for _, part := range strings.Split(strings.TrimPrefix(auth, "AWS4-HMAC-SHA256 "), ", ") {
			name, value, _ := strings.Cut(part, "=")
			switch name {
			case "Credential":
				credential = value
			case "SignedHeaders":
				names = value
			case "Signature":
				signature = value
			}
		}
	}
	c := strings.Split(credential, "/")
	secret, ok := s.secrets[c[0]]
	if !ok || len(c) != 5 {
		return fakeIdentity{}, false
	}
	signed := strings.Split(names, ";")
	var lines strings.Builder
	for _, name := range signed {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.FormatInt(r.ContentLength, 10)
		}
		lines.WriteString(name + ":" + strings.Join(strings.Fields(value), " ") + "\n")
	}
	hash, date := r.Header.Get("X-Amz-Content-Sha256"), r.Header.Get("X-Amz-Date")
	if presigned {
		hash, date = "UNSIGNED-PAYLOAD", q.Get("X-Amz-Date")
	}
	canonical := strings.Join([]string{r.Method, r.URL.EscapedPath(), strings.ReplaceAll(q.Encode(), "+", "%20"), lines.String(), names, hash}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + secret)
	hm := func(text string) {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		key = h.Sum(nil)
	}
	for _, part := range c[1:] {
		hm(part)
	}
	hm(strings.Join([]string{"AWS4-HMAC-SHA256", date, strings.Join(c[1:], "/"), hex.EncodeToString(sum[:])}, "\n"))
	return fakeIdentity{name: c[0], signed: signed}, hex.EncodeToString(key) == signature
}

// ServeHTTP serves a request whose body is the object's, if it is about one.
func (s *fakeS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, ok := s.authenticate(r)
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if !ok {
		fakeError(w, 403, "SignatureDoesNotMatch", "no")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if who.name == "" && !(s.open[bucket] && key != "") {
		fakeError(w, 403, "AccessDenied", "no")
		return
	}
	q := r.URL.Query()
	if r.Header.Get("X-Amz-Server-Side-Encryption") != "" || q.Has("versioning") || q.Has("versions") {
		fakeError(w, 501, "NotImplemented", "not in this fake")
		return
	}
	objects, exists := s.buckets[bucket]
	switch {
	case bucket == "":
		io.WriteString(w, "<ListAllMyBucketsResult/>")
		return
	case key == "" && r.Method == "PUT" && !exists:
		s.buckets[bucket] = map[string]*fakeObject{}
		return
	case !exists:
		fakeError(w, 404, "NoSuchBucket", "no")
		return
	case key == "":
		s.serveBucket(w, r, bucket, objects, q, body)
	default:
		s.serveObject(w, r, bucket, key, q, body)
	}
}

func (s *fakeS3) serveBucket(w http.ResponseWriter, r *http.Request, bucket string, objects map[string]*fakeObject, q url.Values, body []byte) {
	switch {
	case r.Method == "PUT" && q.Has("policy"):
		s.open[bucket] = true
		w.WriteHeader(204)
	case r.Method == "DELETE" && len(objects) > 0:
		fakeError(w, 409, "BucketNotEmpty", "no")
	case r.Method == "DELETE":
		delete(s.buckets, bucket)
		w.WriteHeader(204)
	case r.Method == "POST" && q.Has("delete"):
		var list struct{ Object []struct{ Key string } }
		xml.Unmarshal(body, &list)
		for _, o := range list.Object {
			delete(objects, o.Key)
		}
		io.WriteString(w, "<DeleteResult/>")
	case r.Method == "GET" && !q.Has("location") && !q.Has("uploads"):
		io.WriteString(w, "<ListBucketResult>")
		for key := range objects {
			if strings.HasPrefix(key, q.Get("prefix")) {
				io.WriteString(w, "<Contents><Key>")
				xml.EscapeText(w, []byte(key))
				io.WriteString(w, "</Key></Contents>")
			}
		}
		io.WriteString(w, "</ListBucketResult>")
	}
}

// verify checks the declared checksums against data.
func verify(h http.Header, data []byte) (code string, sums []checksum.Sum) {
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

func newObject(r *http.Request, data []byte) *fakeObject {
	sum := md5.Sum(data)
	o := &fakeObject{data: data, header: http.Header{}, etag: `"` + hex.EncodeToString(sum[:]) + `"`, stored: time.Now()}
	for name, values := range r.Header {
		if slices.Contains([]string{"Content-Type", "Cache-Control", "Content-Disposition", "Content-Language"}, name) ||
			strings.HasPrefix(name, "X-Amz-Meta-") || strings.HasPrefix(name, "X-Amz-Checksum-") && name != "X-Amz-Checksum-Algorithm" {
			o.header[name] = values
		}
	}
	o.tags, _ = url.ParseQuery(r.Header.Get("X-Amz-Tagging"))
	return o
}

// isSubresource tells whether the query asks for something else than the object.
func isSubresource(q url.Values) bool {
	return q.Has("acl") || q.Has("attributes") || q.Has("retention") || q.Has("legal-hold") || q.Has("tagging")
}

func (s *fakeS3) serveObject(w http.ResponseWriter, r *http.Request, bucket, key string, q url.Values, body []byte) {
	objects := s.buckets[bucket]
	o := objects[key]
	if source := r.Header.Get("X-Amz-Copy-Source"); r.Method == "PUT" && source != "" {
		plain, _ := url.PathUnescape(source)
		from, name, _ := strings.Cut(strings.TrimPrefix(plain, "/"), "/")
		c := *s.buckets[from][name]
		if u := s.uploads[q.Get("uploadId")]; u != nil {
			n, _ := strconv.Atoi(q.Get("partNumber"))
			u.parts[n] = &c
		} else {
			objects[key] = &c
		}
		io.WriteString(w, "<CopyResult/>")
		return
	}
	if q.Has("uploadId") || q.Has("uploads") {
		s.serveUpload(w, r, bucket, key, q, body)
		return
	}
	if isSubresource(q) && !q.Has("tagging") {
		io.WriteString(w, "<Answer/>")
		return
	}
	if q.Has("tagging") && o != nil {
		s.serveTags(w, r, o, body)
		return
	}
	switch r.Method {
	case "DELETE":
		delete(objects, key)
		w.WriteHeader(204)
	case "PUT":
		if o != nil && r.Header.Get("If-None-Match") == "*" || o != nil && r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != o.etag {
			fakeError(w, 412, "PreconditionFailed", "no")
			return
		}
		if code, _ := verify(r.Header, body); code != "" {
			fakeError(w, 400, code, "no")
			return
		}
		objects[key] = newObject(r, body)
		w.Header().Set("Etag", objects[key].etag)
	case "GET", "HEAD":
		if o == nil {
			fakeError(w, 404, "NoSuchKey", "no")
			return
		}
		s.serveContent(w, r, o, q)
	}
}

func (s *fakeS3) serveContent(w http.ResponseWriter, r *http.Request, o *fakeObject, q url.Values) {
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
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "binary/octet-stream")
	}
	if n, err := strconv.Atoi(q.Get("partNumber")); err == nil {
		parts := o.parts
		if parts == nil {
			parts = []int{len(o.data)}
		}
		if n < 1 || n > len(parts) {
			fakeError(w, 416, "InvalidPartNumber", "no")
			return
		}
		from := 0
		for _, p := range parts[:n-1] {
			from += p
		}
		h.Set("X-Amz-Mp-Parts-Count", strconv.Itoa(len(parts)))
		r = r.Clone(r.Context())
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, from+parts[n-1]-1))
	}
	if strings.Contains(r.Header.Get("Range"), ",") {
		r = r.Clone(r.Context())
		r.Header.Del("Range")
	}
	http.ServeContent(w, r, "", o.stored, bytes.NewReader(o.data)) // ranges and conditions
}

func (s *fakeS3) serveTags(w http.ResponseWriter, r *http.Request, o *fakeObject, body []byte) {
	switch r.Method {
	case "PUT":
		var t struct {
			TagSet struct{ Tag []struct{ Key, Value string } }
		}
		xml.Unmarshal(body, &t)
		o.tags = url.Values{}
		for _, tag := range t.TagSet.Tag {
			o.tags.Set(tag.Key, tag.Value)
		}
	case "GET":
		io.WriteString(w, "<Tagging><TagSet>")
		for k, v := range o.tags {
			fmt.Fprintf(w, "<Tag><Key>%s</Key><Value>%s</Value></Tag>", k, v[0])
		}
		io.WriteString(w, "</TagSet></Tagging>")
	case "DELETE":
		o.tags = nil
		w.WriteHeader(204)
	}
}

func (s *fakeS3) serveUpload(w http.ResponseWriter, r *http.Request, bucket, key string, q url.Values, body []byte) {
	if q.Has("uploads") {
		s.serial++
		id := "upload-" + strconv.Itoa(s.serial)
		s.uploads[id] = &fakeUpload{bucket: bucket, key: key, header: r.Header, parts: map[int]*fakeObject{}}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", id)
		return
	}
	u := s.uploads[q.Get("uploadId")]
	if u == nil || u.key != key {
		fakeError(w, 404, "NoSuchUpload", "no")
		return
	}
	numbers := make([]int, 0, len(u.parts))
	for n := range u.parts {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	switch r.Method {
	case "PUT":
		code, sums := verify(r.Header, body)
		if code != "" {
			fakeError(w, 400, code, "no")
			return
		}
		n, _ := strconv.Atoi(q.Get("partNumber"))
		u.parts[n] = newObject(r, body)
		w.Header().Set("Etag", u.parts[n].etag)
		for _, sum := range sums {
			w.Header().Set(sum.Algorithm().Header(), sum.Base64())
		}
	case "GET":
		io.WriteString(w, "<ListPartsResult>")
		for _, n := range numbers {
			fmt.Fprintf(w, "<Part><PartNumber>%d</PartNumber><Size>%d</Size></Part>", n, len(u.parts[n].data))
		}
		io.WriteString(w, "</ListPartsResult>")
	case "POST":
		o := newObject(&http.Request{Header: u.header}, nil)
		for _, n := range numbers {
			o.data = append(o.data, u.parts[n].data...)
			o.parts = append(o.parts, len(u.parts[n].data))
		}
		s.buckets[bucket][key] = o
		delete(s.uploads, q.Get("uploadId"))
		io.WriteString(w, "<CompleteMultipartUploadResult/>")
	case "DELETE":
		delete(s.uploads, q.Get("uploadId"))
		w.WriteHeader(204)
	}
}
