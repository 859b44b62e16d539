// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package broken

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// identity is who sent a request, and what the signature covers.
type identity struct {
	name   string   // access key; "" is anonymous
	signed []string // lower-case names of headers
	query  bool     // presigned
}

func (i identity) covers(header string) bool { return slices.Contains(i.signed, header) }

// authenticate verifies a Signature Version 4 in the header or in the query; false is a
// signature that is none. An anonymous request is an identity without a name.
func authenticate(r *http.Request, secrets map[string]string) (identity, bool) {
	q := r.URL.Query()
	var credential, names, signature string
	presigned := q.Has("X-Amz-Signature")
	switch auth := r.Header.Get("Authorization"); {
	case presigned:
		credential, names, signature = q.Get("X-Amz-Credential"), q.Get("X-Amz-SignedHeaders"), q.Get("X-Amz-Signature")
		q.Del("X-Amz-Signature")
	case auth == "":
		return identity{}, true
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
	secret, ok := secrets[c[0]]
	if !ok || len(c) != 5 {
		return identity{}, false
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
		hash, date = unsignedPayload, q.Get("X-Amz-Date")
	}
	canonical := strings.Join([]string{r.Method, r.URL.EscapedPath(), strings.ReplaceAll(q.Encode(), "+", "%20"), lines.String(), names, hash}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + secret)
	mac := func(text string) {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(text))
		key = h.Sum(nil)
	}
	for _, part := range c[1:] {
		mac(part)
	}
	mac(strings.Join([]string{"AWS4-HMAC-SHA256", date, strings.Join(c[1:], "/"), hex.EncodeToString(sum[:])}, "\n"))
	return identity{name: c[0], signed: signed, query: presigned}, hmac.Equal([]byte(hex.EncodeToString(key)), []byte(signature))
}
