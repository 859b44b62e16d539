// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"fmt"
	"sync"

	"github.com/s3rdma/s3rdma/rdmaio"
	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

var (
	_ rdmaio.Target    = (*DCTarget)(nil)
	_ rdmaio.Allocator = (*DCTarget)(nil)
	_ DMABufRegistrar  = (*DCTarget)(nil)
)

// DCTarget is the end that owns the memory, over a DC target of an mlx5 NIC. It has no
// session: its descriptors are good for whoever has the access key and the region's.
type DCTarget struct {
	holder

	making sync.Mutex
	dct    dcTarget // guarded by making
	gid    gid
	lid    uint16

	// port is mlx5Port in real life.
	port func(r *rail) (dcPort, error)
}

// NewDCTarget returns a target. Nothing is opened yet: mistakes in o, and a host without an
// mlx5 NIC, are reported by Register and Describe.
func NewDCTarget(o Options) *DCTarget {
	t := &DCTarget{port: func(r *rail) (dcPort, error) {
		if !r.ctx.SupportsDC() {
			return nil, withoutDC(r.port)
		}
		return mlx5Port{r}, nil
	}}
	t.init(o, t)
	t.what, t.dc = "verbs DC target", true
	return t
}

// Name is "dc".
func (t *DCTarget) Name() string { return rdmaio.TransportDC.String() }

// Hello fails with ErrUnsupported: DC has no sessions, descriptors can be sent at once.
func (t *DCTarget) Hello(context.Context) (rdmaio.Hello, error) {
	return rdmaio.Hello{}, fmt.Errorf("verbs DC target: there is nothing to connect: %w", rdmaio.ErrUnsupported)
}

// Connect fails as Hello does.
func (t *DCTarget) Connect(context.Context, rdmaio.Welcome) error {
	return fmt.Errorf("verbs DC target: there is nothing to connect: %w", rdmaio.ErrUnsupported)
}

// windows implements exposer: DC targets have no queue pair that could bind one.
func (t *DCTarget) windows(*rail) bool { return false }

// name implements exposer.
func (t *DCTarget) name(e *exposed, d *rdmaio.Descriptor) error {
	t.making.Lock()
	defer t.making.Unlock()
	if t.dct == nil {
		if err := t.make(e.rail); err != nil {
			return err
		}
	}
	d.Transport, d.RKey, d.QPN = rdmaio.TransportDC, e.mr.RKey, t.dct.TargetNum()
	d.GID, d.GIDPresent, d.LID = t.gid.raw, true, t.lid
	return nil
}

// make makes the DC target and takes it to where it receives, which is where it has a
// number. making is held.
func (t *DCTarget) make(r *rail) error {
	port, err := t.port(r)
	if err != nil {
		return err
	}
	if t.gid, err = r.source(wanted(t.opt.Devices), wanted(nil)); err != nil {
		return err
	}
	dct, err := port.newDCT(t.opt.DCKey)
	if err != nil {
		return fmt.Errorf("make a DC target on %s: %w", r.port, err)
	}
	if err := receive(dct, &t.opt, r.port.num, t.gid.index, r.mtu()); err != nil {
		dct.Destroy()
		return err
	}
	t.dct = dct
	t.lid = r.lid()
	return nil
}

// receive takes a fresh DC target to where it receives.
func receive(dct dcTarget, o *Options, num uint8, gidIndex int, mtu int32) error {
	init := ibv.QPAttr{
		State: ibv.QPStateInit, PkeyIndex: o.PkeyIndex, PortNum: num,
		AccessFlags: ibv.AccessLocalWrite | ibv.AccessRemoteWrite | ibv.AccessRemoteRead,
	}
	if err := dct.Modify(init, ibv.AttrState|ibv.AttrPkeyIndex|ibv.AttrPort|ibv.AttrAccess); err != nil {
		return fmt.Errorf("initialise a DC target: %w", err)
	}
	rtr := ibv.QPAttr{
		State: ibv.QPStateRTR, PathMTU: mtu, MinRNRTimer: minRNRTimer,
		AH: ibv.AHAttr{
			IsGlobal: 1, PortNum_: num, SL: o.ServiceLevel,
			GRH: ibv.GlobalRoute{SGIDIndex: uint8(gidIndex), HopLimit: hopLimit, TrafficClass_: o.TrafficClass},
		},
	}
	if err := dct.Modify(rtr, ibv.AttrState|ibv.AttrPathMTU|ibv.AttrMinRNRTimer|ibv.AttrAV); err != nil {
		return fmt.Errorf("make a DC target receive: %w", err)
	}
	return nil
}

// Close destroys the DC target, which nobody can reach any more then, withdraws all regions
// and closes the device.
func (t *DCTarget) Close() error {
	t.making.Lock()
	dct := t.dct
	t.dct = nil
	t.making.Unlock()
	if dct != nil {
		dct.Destroy()
	}
	return t.close()
}
