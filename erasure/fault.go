// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package erasure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

var (
	// ErrMissing reports a shard file that is not there. A [Source] returns it
	// (or [fs.ErrNotExist]) wrapped, and [Fault] matches it.
	ErrMissing = errors.New("erasure: shard missing")

	// ErrCorrupt reports a shard whose bytes do not match their hash, or which
	// a [Source] itself knows to be damaged.
	ErrCorrupt = errors.New("erasure: shard corrupt")

	// ErrTruncated reports a shard file that ends too early.
	ErrTruncated = errors.New("erasure: shard truncated")

	// ErrSlow reports a source that was overtaken: enough other shards came
	// before it, after [Options.HedgeDelay].
	ErrSlow = errors.New("erasure: shard source too slow")

	// ErrQuorum reports that fewer shards than data shards could be read of some
	// block. The error is a [*QuorumError].
	ErrQuorum = errors.New("erasure: too few shards")

	// ErrClosed reports the use of something closed.
	ErrClosed = errors.New("erasure: closed")
)

// FaultKind says what is wrong with a shard. Of several faults of one shard the
// greater kind is kept.
type FaultKind uint8

const (
	// FaultNone is the kind of no fault.
	FaultNone FaultKind = iota
	// FaultAbsent: the caller gave no source for the shard.
	FaultAbsent
	// FaultSlow: the source was overtaken. Nothing is known to be damaged.
	FaultSlow
	// FaultFailed: the source returned an error that says nothing of the shard.
	FaultFailed
	// FaultMissing: there is no shard file.
	FaultMissing
	// FaultTruncated: the shard file is too short.
	FaultTruncated
	// FaultCorrupt: a hash does not match.
	FaultCorrupt
)

var faultKinds = [...]struct {
	text string
	err  error
}{
	FaultNone:      {"sound", nil},
	FaultAbsent:    {"absent", nil},
	FaultSlow:      {"slow", ErrSlow},
	FaultFailed:    {"failed", nil},
	FaultMissing:   {"missing", ErrMissing},
	FaultTruncated: {"truncated", ErrTruncated},
	FaultCorrupt:   {"corrupt", ErrCorrupt},
}

// String is the kind in one word.
func (k FaultKind) String() string {
	if int(k) < len(faultKinds) {
		return faultKinds[k].text
	}
	return fmt.Sprintf("FaultKind(%d)", uint8(k))
}

// Damaged says whether the shard on its drive needs healing: it is missing,
// truncated or corrupt. A source that was absent, slow or failed may hold a shard
// that is sound.
func (k FaultKind) Damaged() bool { return k >= FaultMissing }

// Fault is what was found wrong with one shard. It is an error: errors.Is matches
// [ErrMissing], [ErrTruncated], [ErrCorrupt] or [ErrSlow] by its Kind, and
// whatever the source returned.
type Fault struct {
	Shard int       // 0 <= Shard < Data+Parity, parity last
	Kind  FaultKind // what is wrong
	Block int64     // the first block in which the fault was seen
	Err   error     // what the source returned; nil for a hash mismatch
}

// Error names the shard, the block, the kind and the source's own error.
func (f Fault) Error() string {
	if f.Kind == FaultAbsent {
		return fmt.Sprintf("shard %d absent", f.Shard)
	}
	if f.Err == nil {
		return fmt.Sprintf("shard %d %v in block %d", f.Shard, f.Kind, f.Block)
	}
	return fmt.Sprintf("shard %d %v in block %d: %v", f.Shard, f.Kind, f.Block, f.Err)
}

// Unwrap returns the error of the kind and the source's error.
func (f Fault) Unwrap() []error {
	var errs []error
	if int(f.Kind) < len(faultKinds) && faultKinds[f.Kind].err != nil {
		errs = append(errs, faultKinds[f.Kind].err)
	}
	if f.Err != nil {
		errs = append(errs, f.Err)
	}
	return errs
}

// QuorumError says that a block could not be put together. errors.Is matches
// [ErrQuorum], and all that the faults match.
type QuorumError struct {
	Block  int64   // the block, counted from the start of the part
	Need   int     // shards needed: the data shards
	Have   int     // shards of the block that were read and are sound
	Faults []Fault // every shard that could not be used, by shard number
}

// Error names every shard that could not be used, and why.
func (e *QuorumError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v in block %d: have %d of the %d needed", ErrQuorum, e.Block, e.Have, e.Need)
	for i, f := range e.Faults {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(f.Error())
	}
	return b.String()
}

// Unwrap returns [ErrQuorum] and the faults.
func (e *QuorumError) Unwrap() []error {
	errs := make([]error, 0, 1+len(e.Faults))
	errs = append(errs, ErrQuorum)
	for _, f := range e.Faults {
		errs = append(errs, f)
	}
	return errs
}

// kindOf classifies what a source returned for a read that did not succeed.
func kindOf(err error) FaultKind {
	switch {
	case errors.Is(err, ErrCorrupt):
		return FaultCorrupt
	case errors.Is(err, ErrMissing), errors.Is(err, fs.ErrNotExist):
		return FaultMissing
	case errors.Is(err, ErrTruncated), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return FaultTruncated
	case errors.Is(err, ErrSlow):
		return FaultSlow
	}
	return FaultFailed
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
