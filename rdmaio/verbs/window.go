// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"fmt"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// useWindows tells whether a target hands out windows of a rail's device.
func useWindows(w WindowUse, r *rail) bool {
	has := r.dev.CapFlags&(ibv.CapMWType2A|ibv.CapMWType2B) != 0
	return has && (w == WindowsOn || w == WindowsAuto && !r.software)
}

// window is a type 2 memory window over a whole region. The region's lock guards it.
type window struct {
	mw *ibv.MW
	in *attachment // whose queue pair it is bound by, and which frees it with that
}

// bind returns the window's key, good for the session s, and binds it first if need be.
func (w *window) bind(s *attachment, e *exposed) (uint32, error) {
	if w.mw != nil && w.in == s {
		if key, ok := s.keyOf(w.mw); ok {
			return key, nil
		}
	}
	if err := w.withdraw(); err != nil {
		return 0, err
	}
	mw, key, err := s.bind(e)
	if err != nil {
		return 0, err
	}
	w.mw, w.in = mw, s
	return key, nil
}

// withdraw makes the window's key worthless: freeing a window invalidates it, in whatever
// state its queue pair is.
func (w *window) withdraw() error {
	if w.mw == nil {
		return nil
	}
	mw, in := w.mw, w.in
	w.mw, w.in = nil, nil
	return in.unbind(mw)
}

// keyOf returns the key of a window, if it is still bound.
func (a *attachment) keyOf(mw *ibv.MW) (uint32, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.windows[mw]; !ok {
		return 0, false
	}
	return mw.RKey(), true
}

// unbind frees a window, if that has not been done.
func (a *attachment) unbind(mw *ibv.MW) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.windows[mw]; !ok {
		return nil
	}
	delete(a.windows, mw)
	return freeWindow(mw)
}

// freeWindows frees all windows, as has to be done before their queue pair is destroyed.
// a.mu is held.
func (a *attachment) freeWindows() error {
	var errs []error
	for mw := range a.windows {
		errs = append(errs, freeWindow(mw))
	}
	clear(a.windows)
	return errors.Join(errs...)
}

func freeWindow(mw *ibv.MW) error {
	if err := mw.Dealloc(); err != nil {
		return fmt.Errorf("free a memory window: %w", err)
	}
	return nil
}

// bind makes a window over all of e, and waits until it is good. If the connection is
// being mended meanwhile it tries again.
func (a *attachment) bind(e *exposed) (*ibv.MW, uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	const tries = 3
	var err error
	for range tries {
		idle := func() bool { return !a.binding || a.lost || a.ended }
		if !a.waitFor(a.t.opt.PeerTimeout, idle) || a.lost || a.ended {
			return nil, 0, rdmaio.ErrNoSession
		}
		var mw *ibv.MW
		if mw, err = e.rail.pd.AllocMW(); err != nil {
			return nil, 0, e.rail.explain(err)
		}
		key := mw.RKey()&^0xff | (mw.RKey()+1)&0xff // the low byte is ours to choose
		wr := &ibv.SendWR{
			ID: bindID, Opcode: ibv.WRBindMW, Flags: ibv.SendSignaled,
			MW: mw.Handle(), BindRKey: key, BindMR: e.mr.Handle(),
			BindAddr: e.base, BindLength: uint64(e.size), BindAccess: uint32(remote(e.access) &^ ibv.AccessLocalWrite),
		}
		a.windows[mw] = struct{}{}
		if _, err = a.qp.PostSend(wr); err == nil {
			a.binding = true
			if !a.waitFor(a.t.opt.PeerTimeout, idle) {
				err = errors.New("bind a memory window: the device did not answer")
			} else {
				err = a.bindErr
			}
		}
		if _, ok := a.windows[mw]; ok {
			if err == nil {
				mw.SetRKey(key)
				return mw, key, nil
			}
			delete(a.windows, mw)
			freeWindow(mw)
		}
	}
	return nil, 0, fmt.Errorf("%w: %w", rdmaio.ErrNoSession, err)
}
