// Copyright 2026 The s3rdma Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"time"
	"unsafe"

	"github.com/s3rdma/s3rdma/rdmaio/verbs/internal/ibv"
)

const (
	// Retries of the data and of the message connection. Not 7: Soft-RoCE takes that for
	// ever.
	dataRetries = 6
	ctlRetries  = 3

	// ctlDepth is how many messages can be outstanding each way. There is never more
	// than one rearm, its answer, and a farewell.
	ctlDepth = 8

	// minRNRTimer makes a peer that has no receive posted wait 0.64 ms.
	minRNRTimer = 12
	rnrRetries  = 6

	hopLimit = 64
)

// path is how a connection's packets travel.
type path struct {
	rail    *rail
	local   gid
	peer    identity
	mtu     int32
	opt     *Options
	timeout uint8 // code for the data connection
	rnr     uint8 // tries with a peer that has no receive posted; 7: as long as it takes
}

// newPath chooses a rail's address towards peer, and the MTU.
func newPath(r *rail, local gid, peer identity, o *Options) path {
	p := path{rail: r, local: local, peer: peer, mtu: r.mtu(), opt: o, rnr: rnrRetries}
	if peer.extended {
		p.mtu = min(p.mtu, peer.mtu)
	}
	if o.forceMTU != 0 {
		p.mtu = o.forceMTU
	}
	p.timeout = timeoutCode(o.PeerTimeout, dataRetries, r.software)
	return p
}

// timeoutCode is the largest ACK time-out, as the exponent of 4.096 µs, with which all
// tries end within limit. The specification lets a device take up to four times the
// time-out (IBA 9.7.6.1.3); Soft-RoCE takes it as it is, and half the limit is left to
// its machine. Large values matter under loss: a lost last packet costs one.
func timeoutCode(limit time.Duration, retries int, software bool) uint8 {
	factor := time.Duration(4)
	if software {
		factor = 2
	}
	units := uint64(limit/factor/time.Duration(retries+1)) / 4096 // a time-out is 4096 ns times a power of two
	return uint8(min(max(bits.Len64(units)-1, 8), 31))
}

// address is the peer's, as the queue pair needs it.
func (p *path) address() ibv.AHAttr {
	a := ibv.AHAttr{
		DLID: p.peer.lid, SL: p.opt.ServiceLevel, PortNum_: p.rail.port.num,
		GRH: ibv.GlobalRoute{
			DGID:          [2]uint64{binary.NativeEndian.Uint64(p.peer.gid[:]), binary.NativeEndian.Uint64(p.peer.gid[8:])},
			SGIDIndex:     uint8(p.local.index),
			HopLimit:      hopLimit,
			TrafficClass_: p.opt.TrafficClass,
		},
	}
	// Ethernet always needs the global route, InfiniBand only between subnets.
	if !p.rail.infiniband() || p.peer.lid == 0 || [8]byte(p.peer.gid[:8]) != [8]byte(p.local.raw[:8]) {
		a.IsGlobal = 1
	}
	return a
}

// initialise takes a fresh or reset queue pair to INIT. access is what the peer may do.
func (p *path) initialise(qp *ibv.QP, access int) error {
	return initialise(p.rail, qp, p.opt.PkeyIndex, access)
}

func initialise(r *rail, qp *ibv.QP, pkey uint16, access int) error {
	err := qp.Modify(ibv.QPAttr{
		State: ibv.QPStateInit, PkeyIndex: pkey, PortNum: r.port.num, AccessFlags: uint32(access),
	}, ibv.AttrState|ibv.AttrPkeyIndex|ibv.AttrPort|ibv.AttrAccess)
	if err != nil {
		return fmt.Errorf("initialise a queue pair on %s: %w", r.port, err)
	}
	return nil
}

// connect takes a queue pair from INIT to the peer's qpn: first to where it receives,
// the peer's packets from theirs on, then to where it sends, from ours on. reads is how
// many READs we answer and how many we have outstanding.
func (p *path) connect(qp *ibv.QP, qpn, theirs, ours uint32, in, out, timeout, retries uint8) error {
	err := qp.Modify(ibv.QPAttr{
		State: ibv.QPStateRTR, PathMTU: p.mtu, DestQPNum: qpn, RQPSN: theirs & psnMask,
		MaxDestRdAtomic: in, MinRNRTimer: minRNRTimer, AH: p.address(),
	}, ibv.AttrState|ibv.AttrAV|ibv.AttrPathMTU|ibv.AttrDestQPN|ibv.AttrRQPSN|ibv.AttrMaxDestRd|ibv.AttrMinRNRTimer)
	if err != nil {
		return fmt.Errorf("connect from %s (%s, %s) with MTU %d: %w", p.local.addr(), p.rail.port, p.local.kind, ibv.MTUBytes(p.mtu), err)
	}
	err = qp.Modify(ibv.QPAttr{
		State: ibv.QPStateRTS, Timeout: timeout, RetryCnt: retries, RNRRetry: p.rnr,
		SQPSN: ours & psnMask, MaxRdAtomic: out,
	}, ibv.AttrState|ibv.AttrTimeout|ibv.AttrRetryCnt|ibv.AttrRNRRetry|ibv.AttrSQPSN|ibv.AttrMaxRdAtomic)
	if err != nil {
		return fmt.Errorf("make a queue pair on %s send: %w", p.rail.port, err)
	}
	return nil
}

// chain is what requests are posted in.
type chain struct {
	wrs  []ibv.SendWR
	sges []ibv.SGE
}

func newChain() chain {
	return chain{make([]ibv.SendWR, maxChain), make([]ibv.SGE, maxChain)}
}

// post posts requests, at most maxChain, as endpoint has it.
func (c *chain) post(qp *ibv.QP, rs []request, first uint64) (int, error) {
	for i := range rs {
		r := &rs[i]
		c.sges[i] = ibv.SGE{Addr: r.local, Length: r.length, LKey: r.lkey}
		c.wrs[i] = ibv.SendWR{
			ID: first + uint64(i), SGList: uintptr(unsafe.Pointer(&c.sges[i])), NumSGE: 1,
			Opcode: r.op, Remote: r.remote, RKey: r.rkey, Imm: wireImm(r.imm),
		}
		if r.length == 0 { // drivers differ in what they take an empty element for
			c.wrs[i].SGList, c.wrs[i].NumSGE = 0, 0
		}
		if i > 0 {
			c.wrs[i-1].Next = uintptr(unsafe.Pointer(&c.wrs[i]))
		}
	}
	c.wrs[len(rs)-1].Flags = ibv.SendSignaled
	bad, err := qp.PostSend(&c.wrs[0])
	if err != nil {
		return int((bad - uintptr(unsafe.Pointer(&c.wrs[0]))) / unsafe.Sizeof(c.wrs[0])), err
	}
	return len(rs), nil
}

// wireImm takes an immediate value to network order, where requests and completions have
// it, and back.
func wireImm(v uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return binary.NativeEndian.Uint32(b[:])
}

func toError(qp *ibv.QP) error {
	return qp.Modify(ibv.QPAttr{State: ibv.QPStateErr}, ibv.AttrState)
}

// courier is a connection for messages. It needs no memory: a message is an immediate
// value. Its owner's lock is held during every call.
type courier struct {
	qp   *ibv.QP
	send *ibv.SendWR
	recv *ibv.RecvWR
	down bool
}

// newCourier makes the queue pair, in INIT.
func newCourier(r *rail, cq *ibv.CQ, pkey uint16) (*courier, error) {
	qp, err := r.pd.CreateRC(cq, ibv.QPCap{MaxSendWR: ctlDepth, MaxRecvWR: ctlDepth, MaxSendSGE: 1, MaxRecvSGE: 1})
	if err != nil {
		return nil, r.explain(err)
	}
	c := &courier{qp: qp, send: new(ibv.SendWR), recv: new(ibv.RecvWR)}
	if err := initialise(r, qp, pkey, 0); err != nil {
		qp.Destroy()
		return nil, err
	}
	return c, nil
}

// connect starts the courier.
func (c *courier) connect(p *path, ours uint32) error {
	for range ctlDepth {
		if err := c.qp.PostRecv(c.recv); err != nil {
			return err
		}
	}
	timeout := timeoutCode(p.opt.PeerTimeout/2, ctlRetries, p.rail.software)
	return p.connect(c.qp, p.peer.ctlQPN, p.peer.ctlPSN, ours, 0, 0, timeout, ctlRetries)
}

// say sends a message; its completion will come.
func (c *courier) say(m message, qpn uint32) error {
	if c.down {
		return fmt.Errorf("the message connection is down")
	}
	*c.send = ibv.SendWR{
		Opcode: ibv.WRSendImm, Flags: ibv.SendSignaled | ibv.SendSolicited, Imm: wireImm(encodeMessage(m, qpn)),
	}
	_, err := c.qp.PostSend(c.send)
	return err
}

// hear returns the message of a completion, if it is one; sent if it is of our own. An
// error says that the connection is down.
func (c *courier) hear(wc *ibv.WC) (m message, qpn uint32, sent bool, err error) {
	if wc.Status != ibv.WCSuccess {
		c.down = true
		return 0, 0, false, fmt.Errorf("message connection: %s", ibv.StatusName(wc.Status))
	}
	if wc.Opcode&ibv.WCRecv == 0 {
		return 0, 0, true, nil
	}
	if err := c.qp.PostRecv(c.recv); err != nil {
		c.down = true
		return 0, 0, false, err
	}
	m, qpn = decodeMessage(wireImm(wc.Imm))
	return m, qpn, false, nil
}
