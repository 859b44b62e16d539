// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Op is what an S3 request asks of the object layer, as far as the plugin needs
// to know.
type Op uint8

const (
	// OpOther is every call that moves no object bytes in its HTTP body (HEAD,
	// LIST, COPY, DELETE, tagging, ...). A descriptor on it has no effect.
	OpOther Op = iota
	// OpGetObject is GetObject, whole, by range, by part number or version.
	OpGetObject
	// OpPutObject is PutObject.
	OpPutObject
	// OpUploadPart is UploadPart (not UploadPartCopy).
	OpUploadPart
	// OpUnsupportedWrite is a call that stores its body in a way the plugin
	// cannot serve (append, archive extraction). With a descriptor it is
	// declined: passed on, it would store an empty body.
	OpUnsupportedWrite
)

// String returns the S3 API's name of the operation.
func (op Op) String() string {
	switch op {
	case OpGetObject:
		return "GetObject"
	case OpPutObject:
		return "PutObject"
	case OpUploadPart:
		return "UploadPart"
	case OpUnsupportedWrite:
		return "UnsupportedWrite"
	}
	return "Other"
}

func (op Op) stores() bool {
	return op == OpPutObject || op == OpUploadPart || op == OpUnsupportedWrite
}

// Identity is who a request was signed by.
type Identity struct {
	// Name tells identities apart: the access key, or the user behind it. It
	// must not be empty, which is what an anonymous request would have.
	Name string
}

// Server is what the plugin needs of the S3 server around it. Its methods are
// called from many goroutines at once.
type Server interface {
	// Classify says what r asks for. It looks at the method, the path, the query
	// and the headers, and reads no body.
	Classify(r *http.Request) Op

	// Authenticate verifies the signature of r, which nobody has changed yet, and
	// tells who signed it. It does not authorize: the handler does that when the
	// diverted request reaches it. An anonymous request is an error. An *[Error]
	// is sent to the client as it is, any other error as 403 AccessDenied.
	Authenticate(r *http.Request) (Identity, error)

	// Divert makes the request that the server's handler gets in place of r: r
	// itself, but with body (PUT and UploadPart: exactly size bytes; the handler
	// may close it, and must not read it after it has returned) or unchanged in
	// body (GET: body is nil, size 0). It must leave r's own header map as it is.
	// An error is sent as 500 InternalError.
	//
	// Where the handler takes checksums from a trailer, as S3's do, the request may
	// announce them: keys of Trailer that are headers of package checksum's algorithms
	// are computed by the plugin over the body's bytes, and are there when the body ends.
	Divert(r *http.Request, id Identity, body io.ReadCloser, size int64) (*http.Request, error)

	// WriteError answers r with e in the server's own form. It adds no headers
	// that would make e look like a success (no ETag).
	WriteError(w http.ResponseWriter, r *http.Request, e *Error)
}

// Retargeter is a [Server] that can act upon another resource than that of the request
// which an identity has signed. The protocol hipobj-rc-v2 needs it, whose requests name
// their object in a header; a server without it declines them.
type Retargeter interface {
	// Retarget makes the request that the server's handler gets in place of r, which id
	// has signed and which is below [HipObjPrefix]: method (GET, HEAD or PUT) of t, with
	// the headers of r that do not belong to a control protocol, and those in header.
	// Body and size are as in Divert. The handler has to authorize id as it would for a
	// request of id's own; names that it serves to nobody have to be refused here. Errors
	// as Divert.
	Retarget(r *http.Request, id Identity, method string, t Target, header http.Header, body io.ReadCloser, size int64) (*http.Request, error)
}

// Target is an object or, with uploadId and partNumber in its query, a part of an upload.
type Target struct {
	Bucket, Key string
	Query       url.Values
}

// ChecksumVerifier is a [Server] whose handler itself compares Content-MD5 and one
// x-amz-checksum-* of the five that all S3 servers know (CRC32, CRC32C, CRC64NVME, SHA1,
// SHA256; alone, or with the x-amz-checksum-algorithm that names it) with the body it
// reads, and stores nothing on a mismatch. The plugin then does not compute them a second
// time; others it verifies in any case.
type ChecksumVerifier interface {
	VerifiesChecksums() bool
}

// Error is an S3 error answer.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Code and Message are the S3 error's. The message is for the client: what
	// was wrong, with which value, what to do. It never shows a descriptor.
	Code, Message string

	// reason is the label of the outcome in events and metrics.
	reason string
	// reply is set on a decline: the reply header then repeats the status.
	reply bool
}

// Error is the code and the message.
func (e *Error) Error() string { return e.Code + ": " + e.Message }

// WriteXML answers with e as the S3 API's error document, for servers that have
// no form of their own.
func (e *Error) WriteXML(w http.ResponseWriter, r *http.Request) {
	body, err := xml.Marshal(struct {
		XMLName  xml.Name `xml:"Error"`
		Code     string
		Message  string
		Resource string
	}{Code: e.Code, Message: e.Message, Resource: r.URL.Path})
	if err != nil {
		// Strings marshal; this is unreachable unless the struct changes.
		body = nil
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(e.Status)
	if r.Method != http.MethodHead {
		io.WriteString(w, xml.Header)
		w.Write(body)
	}
}

// The reasons, which label events and metrics. A decline means that plain HTTP
// would work; a refusal is the client's fault; a failure is a transfer's.
const (
	reasonOff          = "off"
	reasonDialect      = "dialect"
	reasonTransport    = "transport"
	reasonOperation    = "operation"
	reasonSession      = "session"
	reasonThreshold    = "threshold"
	reasonMalformed    = "malformed"
	reasonUnsigned     = "unsigned"
	reasonAuth         = "auth"
	reasonPeer         = "peer"
	reasonBody         = "body"
	reasonWindow       = "window"
	reasonChecksum     = "checksum"
	reasonEnvelope     = "envelope"
	reasonOwner        = "owner"
	reasonStaging      = "staging"
	reasonSessions     = "sessions"
	reasonTransfer     = "transfer"
	reasonServerAnswer = "server"
)

// CodeNoSession is the error code of a decline (501) because the descriptor's
// session does not exist: the client should connect again.
const CodeNoSession = "NoSuchRDMASession"

// CodeChecksumMismatch is the error code of a GET (500) whose bytes, as they were sent,
// do not have the checksum that the server keeps with the object.
const CodeChecksumMismatch = "RDMAChecksumMismatch"

// declined: not able or not willing, use plain HTTP.
func declined(reason, format string, args ...any) *Error {
	return &Error{http.StatusNotImplemented, "NotImplemented", fmt.Sprintf(format, args...), reason, true}
}

// malformedToken: the descriptor, or what came with it, is wrong.
func malformedToken(reason, format string, args ...any) *Error {
	return &Error{http.StatusBadRequest, "InvalidRDMAToken", fmt.Sprintf(format, args...), reason, false}
}

func invalidRequest(reason, format string, args ...any) *Error {
	return &Error{http.StatusBadRequest, "InvalidRequest", fmt.Sprintf(format, args...), reason, false}
}

func badDigest(format string, args ...any) *Error {
	return &Error{http.StatusBadRequest, "BadDigest", fmt.Sprintf(format, args...), reasonChecksum, false}
}

func windowTooSmall(have uint64, need int64) *Error {
	return &Error{http.StatusBadRequest, "RDMAWindowTooSmall",
		fmt.Sprintf("The memory window has %d bytes, the answer has %d. Offer a larger window or ask for a range.", have, need), reasonWindow, false}
}

func accessDenied(reason, format string, args ...any) *Error {
	return &Error{http.StatusForbidden, "AccessDenied", fmt.Sprintf(format, args...), reason, false}
}

func slowDown(reason, format string, args ...any) *Error {
	return &Error{http.StatusServiceUnavailable, "SlowDown", fmt.Sprintf(format, args...), reason, false}
}

func transferFailed(format string, args ...any) *Error {
	return &Error{http.StatusInternalServerError, "RDMATransferFailed", fmt.Sprintf(format, args...), reasonTransfer, false}
}
