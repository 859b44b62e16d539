// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

// The calls of the provider, libmlx5, that DC needs beside those of RC. Tests record
// them.
type (
	// dcPort makes the objects of DC on a rail.
	dcPort interface {
		newCQ(n int, s eventSource) (dcCQ, error)
		newDCI(cq dcCQ, depth int) (dcInitiator, error)
		newDCT(key uint64) (dcTarget, error)
		newAH(a ibv.AHAttr) (dcAH, error)
	}

	dcCQ interface {
		Poll(wc []ibv.WC) (int, error)
		Request(solicited bool) error
		Destroy() error
	}

	// dcInitiator is a queue pair whose work requests each name their target. A batch is
	// Start, then for each request RDMA, SetDCAddr and SetSGE, then Complete.
	dcInitiator interface {
		Modify(a ibv.QPAttr, mask int) error
		Destroy() error
		Start()
		RDMA(opcode int32, id uint64, flags uint32, rkey uint32, remote uint64)
		SetDCAddr(ah dcAH, dctn uint32, key uint64)
		SetSGE(s ibv.SGE)
		Complete() error
	}

	// dcTarget is the other end. It never gets further than to where it receives, and
	// has its number only there.
	dcTarget interface {
		Modify(a ibv.QPAttr, mask int) error
		TargetNum() uint32
		Destroy() error
	}

	dcAH interface{ Destroy() error }
)

// mlx5Port is a rail whose device libmlx5 drives.
type mlx5Port struct{ r *rail }

// mlx5CQ is a completion queue that reports to a rail.
type mlx5CQ struct {
	*ibv.CQ
	r *rail
}

func (c mlx5CQ) Destroy() error { return c.r.destroyCQ(c.CQ) }

func (p mlx5Port) newCQ(n int, s eventSource) (dcCQ, error) {
	cq, err := p.r.createCQ(n, s)
	if err != nil {
		return nil, err
	}
	return mlx5CQ{cq, p.r}, nil
}

type mlx5DCI struct{ *ibv.DCI }

func (d mlx5DCI) SetDCAddr(ah dcAH, dctn uint32, key uint64) {
	d.DCI.SetDCAddr(ah.(*ibv.AH), dctn, key)
}

func (p mlx5Port) newDCI(cq dcCQ, depth int) (dcInitiator, error) {
	d, err := p.r.pd.CreateDCI(cq.(mlx5CQ).CQ, ibv.QPCap{MaxSendWR: uint32(depth), MaxSendSGE: 1})
	if err != nil {
		return nil, p.r.explain(err)
	}
	return mlx5DCI{d}, nil
}

// mlx5DCT is a DC target, with the queues that it has to have and never uses.
type mlx5DCT struct {
	*ibv.QP
	cq  *ibv.CQ
	srq *ibv.SRQ
}

func (p mlx5Port) newDCT(key uint64) (_ dcTarget, err error) {
	var t mlx5DCT
	defer func() {
		if err != nil {
			t.Destroy()
		}
	}()
	if t.cq, err = p.r.ctx.CreateCQ(1, nil); err != nil {
		return nil, p.r.explain(err)
	}
	if t.srq, err = p.r.pd.CreateSRQ(1); err != nil {
		return nil, p.r.explain(err)
	}
	if t.QP, err = p.r.pd.CreateDCT(t.cq, t.srq, key); err != nil {
		return nil, p.r.explain(err)
	}
	return t, nil
}

func (t mlx5DCT) Destroy() error {
	var err error
	if t.QP != nil {
		err = t.QP.Destroy()
	}
	if t.srq != nil {
		t.srq.Destroy()
	}
	if t.cq != nil {
		t.cq.Destroy()
	}
	return err
}

func (p mlx5Port) newAH(a ibv.AHAttr) (dcAH, error) {
	ah, err := p.r.pd.CreateAH(a)
	if err != nil {
		return nil, err
	}
	return ah, nil
}
