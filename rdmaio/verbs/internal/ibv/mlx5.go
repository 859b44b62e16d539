// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package ibv

import (
	"fmt"
	"syscall"
)

// mlx5Lib is an open libmlx5.
type mlx5Lib struct {
	isSupported, createQP, qpExFrom uintptr
}

// Mlx5LibraryName is what LoadMlx5 opens.
const Mlx5LibraryName = "libmlx5.so.1"

// LoadMlx5 opens libmlx5 too, which the DC transport needs. Devices must be opened
// after it. Errors wrap ErrUnavailable.
func (l *Lib) LoadMlx5() error {
	h, err := dlopen(Mlx5LibraryName)
	if err != nil {
		return err
	}
	if l.qpToQPEx == 0 {
		return fmt.Errorf("the library %s has no ibv_qp_to_qp_ex, it is too old: %w", LibraryName, ErrUnavailable)
	}
	var m mlx5Lib
	err = symbols(Mlx5LibraryName, h, map[string]*uintptr{
		"mlx5dv_is_supported":         &m.isSupported,
		"mlx5dv_create_qp":            &m.createQP,
		"mlx5dv_qp_ex_from_ibv_qp_ex": &m.qpExFrom,
	}, nil)
	if err != nil {
		return err
	}
	l.mlx5 = m
	return nil
}

func (m *mlx5Lib) supports(dev uintptr) bool {
	return m.isSupported != 0 && byte(Call(m.isSupported, dev)) != 0
}

// SupportsDC tells whether the device is driven by libmlx5, and LoadMlx5 was called
// before it was opened. Whether its firmware has DC shows when a queue pair is made.
func (c *Context) SupportsDC() bool { return c.mlx5 }

// DCI is a DC initiator: a queue pair whose work requests each name their target.
type DCI struct {
	*QP
	ex   *qpEx
	exh  uintptr
	mqp  uintptr
	mfns *mlx5QPEx
}

// CreateDCI makes a DC initiator for RDMA reads and writes.
func (p *PD) CreateDCI(cq *CQ, cap QPCap) (*DCI, error) {
	c := p.c
	if !c.mlx5 {
		return nil, fmt.Errorf("mlx5dv_create_qp: the device is not driven by libmlx5: %w", syscall.EOPNOTSUPP)
	}
	a := &QPInitAttrEx{
		SendCQ: cq.h, RecvCQ: cq.h, Cap: cap, Type: QPTypeDriver, PD: p.h,
		CompMask:     qpInitExPD | qpInitExSendOps,
		SendOpsFlags: qpExRDMAWrite | qpExRDMARead,
	}
	h, err := p.createMlx5(a, &Mlx5QPInitAttr{CompMask: mlx5InitDC, DCType: mlx5DCTypeDCI})
	if err != nil {
		return nil, err
	}
	exh := Call(c.lib.qpToQPEx, h)
	mqp := Call(c.lib.mlx5.qpExFrom, exh)
	return &DCI{QP: newQP(c, h), ex: ptr[qpEx](exh + qpBaseSize), exh: exh, mqp: mqp, mfns: ptr[mlx5QPEx](mqp)}, nil
}

// SRQ is a shared receive queue: a DC target has to have one.
type SRQ struct {
	lib *Lib
	h   uintptr
}

// CreateSRQ makes a shared receive queue.
func (p *PD) CreateSRQ(maxWR int) (*SRQ, error) {
	l := p.c.lib
	a := &SRQInitAttr{MaxWR: uint32(maxWR), MaxSGE: 1}
	var h uintptr
	var err error
	pinned(a, func(ap uintptr) { h, err = l.object("ibv_create_srq", l.createSRQ, p.h, ap) })
	if err != nil {
		return nil, err
	}
	return &SRQ{l, h}, nil
}

// Destroy frees the queue.
func (s *SRQ) Destroy() error { return s.lib.status("ibv_destroy_srq", s.lib.destroySRQ, s.h) }

// CreateDCT makes a DC target that admits initiators with the access key.
func (p *PD) CreateDCT(cq *CQ, srq *SRQ, accessKey uint64) (*QP, error) {
	if !p.c.mlx5 {
		return nil, fmt.Errorf("mlx5dv_create_qp: the device is not driven by libmlx5: %w", syscall.EOPNOTSUPP)
	}
	a := &QPInitAttrEx{SendCQ: cq.h, RecvCQ: cq.h, SRQ: srq.h, Type: QPTypeDriver, PD: p.h, CompMask: qpInitExPD}
	h, err := p.createMlx5(a, &Mlx5QPInitAttr{CompMask: mlx5InitDC, DCType: mlx5DCTypeDCT, DCTAccessKey: accessKey})
	if err != nil {
		return nil, err
	}
	return newQP(p.c, h), nil
}

// TargetNum is a DC target's number, which it has only when it is ready to receive.
func (q *QP) TargetNum() uint32 { return ptr[qpHead](q.h).QPNum }

func (p *PD) createMlx5(a *QPInitAttrEx, m *Mlx5QPInitAttr) (h uintptr, err error) {
	l := p.c.lib
	pinned(a, func(ap uintptr) {
		pinned(m, func(mp uintptr) {
			h, err = l.object("mlx5dv_create_qp", l.mlx5.createQP, p.c.h, ap, mp)
		})
	})
	return h, err
}

// Start begins a batch; no other post may run until Complete.
func (d *DCI) Start() { Call(d.ex.Start, d.exh) }

// RDMA adds a read or write of sge to the batch.
func (d *DCI) RDMA(opcode int32, id uint64, flags uint32, rkey uint32, remote uint64) {
	d.ex.WRID = id
	d.ex.WRFlags = flags
	fn := d.ex.RDMAWrite
	if opcode == WRRead {
		fn = d.ex.RDMARead
	}
	Call(fn, d.exh, uintptr(rkey), uintptr(remote))
}

// SetDCAddr names the target of the request last added.
func (d *DCI) SetDCAddr(ah *AH, dctn uint32, key uint64) {
	Call(d.mfns.SetDCAddr, d.mqp, ah.h, uintptr(dctn), uintptr(key))
}

// SetSGE names the local memory of the request last added.
func (d *DCI) SetSGE(s SGE) {
	Call(d.ex.SetSGE, d.exh, uintptr(s.LKey), uintptr(s.Addr), uintptr(s.Length))
}

// Complete posts the batch, or none of it.
func (d *DCI) Complete() error {
	if r := int32(Call(d.ex.Complete, d.exh)); r != 0 {
		return postError("ibv_wr_complete", r)
	}
	return nil
}
