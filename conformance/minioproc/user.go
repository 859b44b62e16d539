// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package minioproc

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/url"

	"golang.org/x/crypto/argon2"

	"github.com/s3rdma/s3rdma/checksum"
	"github.com/s3rdma/s3rdma/conformance/rawhttp"
)

// AddUser makes a user that may read and write all objects, and returns its keys.
func (s *Server) AddUser(ctx context.Context) (rawhttp.Credentials, error) {
	c, err := rawhttp.New(rawhttp.Config{Endpoint: s.Endpoint, Credentials: s.Root, TLS: s.TLS})
	if err != nil {
		return rawhttp.Credentials{}, err
	}
	defer c.Close()
	user := rawhttp.Credentials{AccessKey: "user-" + randomHex(4), SecretKey: randomHex(20)}
	body, err := json.Marshal(map[string]string{"secretKey": user.SecretKey, "status": "enabled"})
	if err != nil {
		return rawhttp.Credentials{}, err
	}
	sealed, err := seal(s.Root.SecretKey, body)
	if err != nil {
		return rawhttp.Credentials{}, err
	}
	for _, r := range []rawhttp.Request{
		{Path: "/minio/admin/v3/add-user", Query: url.Values{"accessKey": {user.AccessKey}}, Body: sealed},
		{Path: "/minio/admin/v3/set-user-or-group-policy", Query: url.Values{"userOrGroup": {user.AccessKey}, "isGroup": {"false"}, "policyName": {"readwrite"}}},
	} {
		r.Method = "PUT"
		r.PayloadHash = checksum.Of(checksum.SHA256, r.Body).Hex() // the admin API takes no other
		resp, err := c.Do(ctx, r)
		if err != nil {
			return rawhttp.Credentials{}, fmt.Errorf("make a user: %w", err)
		}
		if resp.Status != 200 {
			return rawhttp.Credentials{}, fmt.Errorf("make a user: %s answered %d %s", r.Path, resp.Status, resp.Body)
		}
	}
	return user, nil
}

// seal encrypts as the admin API wants its bodies: 32 bytes of salt, an id (0 is
// Argon2id with AES-256-GCM), 8 bytes of nonce, and the text in fragments of 16 KiB,
// of which we need one. Each fragment's nonce ends in its number, little endian; the
// fragment's associated data is a marker (0x80 for the last one) and the tag of the
// empty text under number 0.
func seal(password string, text []byte) ([]byte, error) {
	const fragment = 16 << 10
	if len(text) > fragment {
		return nil, fmt.Errorf("seal %d bytes: at most %d fit into one fragment", len(text), fragment)
	}
	out := make([]byte, 32+1+8)
	rand.Read(out)
	out[32] = 0
	key := argon2.IDKey([]byte(password), out[:32], 1, 64<<10, 4, 32)
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, gcm.NonceSize())
	copy(nonce, out[33:])
	associated := gcm.Seal([]byte{0}, nonce, nil, nil)
	associated[0] = 0x80
	binary.LittleEndian.PutUint32(nonce[8:], 1)
	return gcm.Seal(out, nonce, text, associated), nil
}
