// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// The kinds of failure that callers tell apart with errors.Is. The first group is
// what an [*Error], the server's own answer, can be.
var (
	// ErrNotFound: HTTP 404; no such bucket, key, version or upload.
	ErrNotFound = errors.New("not found")
	// ErrPreconditionFailed: HTTP 412, an If-Match and the like does not hold.
	ErrPreconditionFailed = errors.New("precondition failed")
	// ErrNotModified: HTTP 304, the answer to an If-None-Match that matches.
	ErrNotModified = errors.New("not modified")
	// ErrRange: HTTP 416, the range begins behind the object's end.
	ErrRange = errors.New("range not satisfiable")
	// ErrAccessDenied: HTTP 401 or 403.
	ErrAccessDenied = errors.New("access denied")
	// ErrBusy: HTTP 503; nothing happened, the same request may be sent later.
	ErrBusy = errors.New("server is busy")
	// ErrDeclined: HTTP 501, or a reply of 501. The caller only sees it if
	// falling back was not allowed, or if plain HTTP was declined too.
	ErrDeclined = errors.New("declined")
	// ErrTransfer: the server could not move the bytes (RDMATransferFailed).
	// Nothing was stored, or the buffer's content is undefined.
	ErrTransfer = errors.New("transfer failed")
	// ErrChecksum: the server computed another checksum over the bytes than was
	// declared (BadDigest and its relatives; nothing was stored), or than it keeps with
	// the object that it has sent (RDMAChecksumMismatch).
	ErrChecksum = errors.New("server refused the checksum")

	// ErrProtocol: the answer is a success that contradicts itself: status and
	// reply differ, the byte count is no number or not the right one, there is a
	// body. Nothing may be concluded from it.
	ErrProtocol = errors.New("answer violates the protocol")
	// ErrEmptyStored: a server that knows no descriptors took the empty body of a
	// PUT for the object. The key now holds an empty object.
	ErrEmptyStored = errors.New("server stored an empty object")
	// ErrNoFabric: the request was to use the fabric only, and cannot.
	ErrNoFabric = errors.New("fabric cannot be used")
	// ErrTooSmall: the object is larger than the view.
	ErrTooSmall = errors.New("view is too small")
	// ErrTooLarge: more than one request can move.
	ErrTooLarge = errors.New("too large for one request")
	// ErrBufferLost: a key could not be withdrawn, so a peer may still reach the
	// buffer. It can only be closed.
	ErrBufferLost = errors.New("buffer is lost")
	// ErrClosed: the client or the buffer has been closed.
	ErrClosed = errors.New("closed")
	// ErrInvalid: the arguments contradict each other; nothing was sent.
	ErrInvalid = errors.New("invalid argument")
)

// Error is an error answer of the server.
type Error struct {
	// Op is the S3 API's name of the request: GetObject, ...
	Op string
	// Bucket and Key say what it was about; either may be empty.
	Bucket, Key string
	// Status is the HTTP status.
	Status int
	// Code and Message are the S3 error document's, or the status text if there
	// was none. A descriptor that a server repeated is taken out.
	Code, Message string
	// RequestID is what the server calls this request, or empty.
	RequestID string
	// Declined is true if the answer came with the reply 501.
	Declined bool
}

// Error says what was attempted and what the server answered.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString((&call{op: e.Op, bucket: e.Bucket, key: e.Key}).name())
	fmt.Fprintf(&b, ": HTTP %d %s", e.Status, e.Code)
	if e.Message != "" {
		fmt.Fprintf(&b, ": %s", e.Message)
	}
	if e.RequestID != "" {
		fmt.Fprintf(&b, " (request %s)", e.RequestID)
	}
	return b.String()
}

// Is tells which of the package's errors e is.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.Status == http.StatusNotFound
	case ErrPreconditionFailed:
		return e.Status == http.StatusPreconditionFailed
	case ErrNotModified:
		return e.Status == http.StatusNotModified
	case ErrRange:
		return e.Status == http.StatusRequestedRangeNotSatisfiable
	case ErrAccessDenied:
		return e.Status == http.StatusForbidden || e.Status == http.StatusUnauthorized
	case ErrBusy:
		return e.Status == http.StatusServiceUnavailable
	case ErrDeclined:
		return e.Status == http.StatusNotImplemented || e.Declined
	case ErrTransfer:
		return e.Code == "RDMATransferFailed"
	case ErrTooSmall:
		return e.Code == "RDMAWindowTooSmall"
	case ErrChecksum:
		switch e.Code {
		case "BadDigest", "XAmzContentChecksumMismatch", "InvalidDigest", "XAmzContentSHA256Mismatch", "RDMAChecksumMismatch":
			return true
		}
	}
	return false
}

// maxErrorBody bounds what is read of an error document.
const maxErrorBody = 64 << 10

// errorDocument is the S3 API's error answer.
type errorDocument struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	RequestID string `xml:"RequestId"`
}

// answerError makes the error of an answer that is no success. It reads the body
// but does not close it. secrets are taken out of what the server says.
func answerError(c *call, resp *http.Response, secrets ...string) *Error {
	e := &Error{
		Op: c.op, Bucket: c.bucket, Key: c.key,
		Status:    resp.StatusCode,
		RequestID: resp.Header.Get("x-amz-request-id"),
		Declined:  resp.Header.Get(headerReply) == "501",
	}
	var doc errorDocument
	if body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)); err == nil && xml.Unmarshal(body, &doc) == nil {
		e.Code, e.Message = doc.Code, doc.Message
		if e.RequestID == "" {
			e.RequestID = doc.RequestID
		}
	}
	if e.Code == "" {
		e.Code = strings.ReplaceAll(http.StatusText(resp.StatusCode), " ", "")
	}
	for _, s := range secrets {
		if s != "" {
			e.Code = strings.ReplaceAll(e.Code, s, "(hidden)")
			e.Message = strings.ReplaceAll(e.Message, s, "(hidden)")
			e.RequestID = strings.ReplaceAll(e.RequestID, s, "(hidden)")
		}
	}
	return e
}

// protocolError is an answer that violates the protocol.
func protocolError(c *call, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", c.name(), fmt.Sprintf(format, args...), ErrProtocol)
}
