// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package plugin

import "time"

// Outcome is how a request with a descriptor ended.
type Outcome uint8

const (
	// OutcomeServed: the bytes moved over the fabric, the answer is a success.
	OutcomeServed Outcome = iota + 1
	// OutcomePassed: the server's handler answered without object bytes (304,
	// 404, 412, a refused policy, ...).
	OutcomePassed
	// OutcomeDeclined: 501, plain HTTP would work.
	OutcomeDeclined
	// OutcomeRefused: 4xx, the request itself is at fault.
	OutcomeRefused
	// OutcomeBusy: 503, try again.
	OutcomeBusy
	// OutcomeFailed: the transfer, or the handler in the middle of it, failed.
	OutcomeFailed
)

var outcomeNames = [...]string{
	OutcomeServed: "served", OutcomePassed: "passed", OutcomeDeclined: "declined",
	OutcomeRefused: "refused", OutcomeBusy: "busy", OutcomeFailed: "failed",
}

// String returns the label used in metrics.
func (o Outcome) String() string {
	if o != 0 && int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown"
}

// RequestInfo describes a finished request that bore a descriptor.
type RequestInfo struct {
	Op Op
	// Dialect is the dialect's name, "" if none that we speak.
	Dialect string
	// Transport is the fabric's name, "" if none was chosen.
	Transport string
	Outcome   Outcome
	// Reason tells why it was not served ("off", "malformed", "staging", ...);
	// "" if it was.
	Reason string
	// Path is the way that the bytes went, or would have gone, between the server's
	// drives and staging memory: [PathDiverted] or a name that the server gave by
	// [Sink.SetPath] or [Source.SetPath]; "" if the request did not get so far.
	// PathReason is why not a better one, in a word of the server's.
	Path, PathReason string
	// Status is the HTTP status that was sent.
	Status int
	// Bytes were moved over the fabric in a served request; in a failed one,
	// posted.
	Bytes int64
	// StagingWait is the time spent waiting for staging memory, Duration the
	// whole request's.
	StagingWait, Duration time.Duration
	// Err is what went wrong in detail, or nil. It shows no descriptor.
	Err error
}

// SessionInfo describes a connect or disconnect.
type SessionInfo struct {
	// Transport is the fabric's name.
	Transport string
	// Owner is the identity.
	Owner string
	// Disconnect is false for a connect.
	Disconnect bool
	// Err is nil if it succeeded.
	Err error
}

// EventListener gets told what happens. Every field may be nil. The functions are
// called in the request's goroutine, after the answer was sent, and must be quick.
type EventListener struct {
	RequestDone func(RequestInfo)
	SessionDone func(SessionInfo)
}

// Tee returns a listener that tells each of ls, in order.
func Tee(ls ...EventListener) EventListener {
	return EventListener{
		RequestDone: func(i RequestInfo) {
			for _, l := range ls {
				l.requestDone(i)
			}
		},
		SessionDone: func(i SessionInfo) {
			for _, l := range ls {
				l.sessionDone(i)
			}
		},
	}
}

func (l EventListener) requestDone(i RequestInfo) {
	if l.RequestDone != nil {
		l.RequestDone(i)
	}
}

func (l EventListener) sessionDone(i SessionInfo) {
	if l.SessionDone != nil {
		l.SessionDone(i)
	}
}
