// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
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
	in *attachment // whose queue pair it is bound by,
	at int         // and which life of it
}

// bind returns the window's key, good for the session s, and binds it first if need be.
func (w *window) bind(s *attachment, e *exposed) (uint32, error) {
	if w.mw != nil && w.in == s && w.at == s.lives() {
		return w.mw.RKey(), nil
	}
	if err := w.withdraw(); err != nil {
		return 0, err
	}
	mw, err := e.rail.pd.AllocMW()
	if err != nil {
		return 0, e.rail.explain(err)
	}
	key, life, err := s.bind(mw, e)
	if err != nil {
		mw.Dealloc()
		return 0, err
	}
	w.mw, w.in, w.at = mw, s, life
	return key, nil
}

// withdraw makes the window's key worthless: freeing a window invalidates it, in whatever
// state its queue pair is.
func (w *window) withdraw() error {
	if w.mw == nil {
		return nil
	}
	mw := w.mw
	w.mw, w.in = nil, nil
	if err := mw.Dealloc(); err != nil {
		return fmt.Errorf("free a memory window: %w", err)
	}
	return nil
}

func (a *attachment) lives() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.life
}

// bind binds mw to all of e, and waits until that is done. If the connection is being
// mended meanwhile it tries again.
func (a *attachment) bind(mw *ibv.MW, e *exposed) (key uint32, life int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	const tries = 3
	for range tries {
		if a.binding && !a.waitFor(a.t.opt.PeerTimeout, func() bool { return !a.binding || a.lost || a.ended }) || a.lost || a.ended {
			return 0, 0, rdmaio.ErrNoSession
		}
		key = mw.RKey()&^0xff | (mw.RKey()+1)&0xff // the low byte is ours to choose
		wr := &ibv.SendWR{
			ID: bindID, Opcode: ibv.WRBindMW, Flags: ibv.SendSignaled,
			MW: mw.Handle(), BindRKey: key, BindMR: e.mr.Handle(),
			BindAddr: e.base, BindLength: uint64(e.size), BindAccess: uint32(remote(e.access) &^ ibv.AccessLocalWrite),
		}
		life = a.life
		if _, err = a.qp.PostSend(wr); err != nil {
			return 0, 0, err
		}
		a.binding = true
		if !a.waitFor(a.t.opt.PeerTimeout, func() bool { return !a.binding || a.lost || a.ended }) {
			return 0, 0, fmt.Errorf("bind a memory window: the device did not answer: %w", rdmaio.ErrNoSession)
		}
		if err = a.bindErr; err == nil && !a.lost && !a.ended && life == a.life {
			mw.SetRKey(key)
			return key, life, nil
		}
	}
	return 0, 0, fmt.Errorf("%w: %w", rdmaio.ErrNoSession, err)
}
